"""Where learned models are kept."""

from __future__ import annotations

from pathlib import Path

SUFFIX = ".model"


def user_path(source: str) -> Path:
    """The file of the user's own model of a source; whether it is there is for the caller to see."""
    import platformdirs

    return Path(platformdirs.user_data_dir("tilescale")) / "models" / f"{source}{SUFFIX}"
