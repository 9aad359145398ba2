"""`python -m tilescale`: the command line."""

from __future__ import annotations

from tilescale.cli import main

if __name__ == "__main__":
    main()
