"""Learned models as files: a line of JSON that says what it is, then a pickle of the model.

The line is {"format", "source", "sklearn", "version", "rows", "digest"}; the digest is that of the pickle, and is
looked at before anything is unpickled. It tells damage, not malice: a pickle runs code, so load only models that you or
somebody you trust has fitted. Trees of another scikit-learn release may load and be wrong, so its version is checked.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import pickle
from pathlib import Path
from typing import Any

from tilescale import canon
from tilescale.costmodel.learned import LearnedModel
from tilescale.costmodel.rows import ModelError

FORMAT = 1
_REMEDY = "fit it again: tilescale model fit"


def save(model: LearnedModel, path: str | Path) -> str:
    """Write the model, aside and renamed, and return the digest of its content."""
    body = pickle.dumps(model, protocol=5)
    header = {
        "format": FORMAT,
        "source": model.source,
        "sklearn": _sklearn(),
        "version": importlib.metadata.version("tilescale"),
        "rows": model.rows,
        "digest": canon.digest_bytes(body),
    }
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f"{target.name}.{os.getpid()}")
    aside.write_bytes(json.dumps(header, sort_keys=True).encode() + b"\n" + body)
    os.replace(aside, target)
    return str(header["digest"])


def load(path: str | Path) -> LearnedModel:
    """The model in a file.

    Raises ModelError for a file that is missing, damaged, of another format or of another scikit-learn release.
    """
    header, body = _read(Path(path))
    if header.get("format") != FORMAT:
        raise ModelError(f"{path} is a model of format {FORMAT}", header.get("format"), _REMEDY)
    if canon.digest_bytes(body) != header.get("digest"):
        actual = f"a content of digest {canon.digest_bytes(body)}"
        raise ModelError(f"{path} is whole: its content has digest {header.get('digest')}", actual, _REMEDY)
    if _release(str(header.get("sklearn"))) != _release(_sklearn()):
        actual = f"fitted under {header.get('sklearn')}"
        raise ModelError(f"{path} was fitted under the installed scikit-learn {_sklearn()}", actual, _REMEDY)
    try:
        model = pickle.loads(body)
    except (pickle.UnpicklingError, AttributeError, ImportError, EOFError, TypeError) as error:
        raise ModelError(f"{path} holds a model of this version", error, _REMEDY) from None
    if not isinstance(model, LearnedModel):
        raise ModelError(f"{path} holds a learned model", type(model).__name__, _REMEDY)
    return model


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    try:
        first, _, body = path.read_bytes().partition(b"\n")
        header = json.loads(first)
    except FileNotFoundError:
        raise ModelError(f"the model {path} exists", "no such file", _REMEDY) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is a learned model", error, _REMEDY) from None
    if not isinstance(header, dict):
        raise ModelError(f"{path} is a learned model", "its first line is no JSON object", _REMEDY)
    return header, body


def _sklearn() -> str:
    try:
        return importlib.metadata.version("scikit-learn")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _release(version: str) -> list[str]:
    return version.split(".")[:2]
