"""The command line: `perfdb`, or `python -m perfdb`."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line; an installation without its packages is told so."""
    try:
        from perfdb.cli import main as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "perfdb":
            raise
        sys.exit(f"error: the command line needs {error.name}; got: an installation without it; "
                 "pip install 'tilescale[perfdb]'")
    except KeyboardInterrupt:  # importing takes a moment, in which a user may think again
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
