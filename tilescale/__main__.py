"""The command line: `tilescale`, or `python -m tilescale`."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line; an installation for deployment alone lacks what it needs, and is told so."""
    try:
        from tilescale.cli import main as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("tilescale", "perfdb"):
            raise
        sys.exit(f"error: the command line needs {error.name}; got: an installation without it; "
                 "pip install 'tilescale[tune]', or call tilescale.deploy.checking.check(folder) to look at a bundle")
    except KeyboardInterrupt:  # importing takes a moment, in which a user may think again
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
