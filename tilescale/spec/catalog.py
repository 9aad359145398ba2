"""The shipped topology files, and reading any file of their format."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tilescale import canon
from tilescale.errors import TilescaleError, TopologyError, nearest
from tilescale.spec.topology import Gpu, Level, Topology

FOLDER = Path(__file__).parent / "topologies"
# The machine whose spaces are recorded and shipped; what is described where no GPU is at hand.
RECORDED_MODEL = "H200"


@dataclass(frozen=True)
class TopologyFile:
    """Content of a topology file. ``nvml_names``: what NVML calls this GPU, matched exactly (H200 is not H200 NVL)."""

    name: str
    ranks: int
    gpu: Gpu
    levels: tuple[Level, ...]
    nvml_names: tuple[str, ...] = ()

    def topology(self) -> Topology:
        return Topology(self.name, "real", self.ranks, self.gpu, self.levels)


def names() -> tuple[str, ...]:
    """Names of the shipped topologies, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load_named(name: str) -> TopologyFile:
    if name not in names():
        raise TopologyError("a topology is known", repr(name), f"{nearest(name, names())}; or load a TOML file")
    return load_file(FOLDER / f"{name}.toml")


def for_model(model: str) -> TopologyFile:
    """The first shipped file (by name) that describes this GPU model."""
    files = [load_named(name) for name in names()]
    for file in files:
        if file.gpu.model == model:
            return file
    known = [file.gpu.model for file in files]
    raise TopologyError("the GPU model is described", repr(model), nearest(model, known))


def for_nvml_name(nvml_name: str) -> TopologyFile:
    """The shipped file whose GPU NVML calls ``nvml_name``; a similar name is named in the error, and never used."""
    files = [load_named(name) for name in names()]
    for file in files:
        if nvml_name in file.nvml_names:
            return file
    known = [alias for file in files for alias in file.nvml_names]
    raise TopologyError(
        "the GPU at hand is described by a topology",
        repr(nvml_name),
        f"{nearest(nvml_name, known)}; describe it in a TOML file for Topology.load (copy a file of {FOLDER})",
    )


def load_file(path: Path) -> TopologyFile:
    """Read one file; TopologyError names the file, the rule, the value and the nearest valid key."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TopologyError(f"topology file {path} can be read", error.strerror, "check the path") from None
    except ValueError as error:
        raise TopologyError(f"topology file {path} is TOML", str(error), "correct the syntax") from None
    try:
        file = canon.decode(TopologyFile, _with_pairs(data))
        file.topology()
    except TilescaleError as error:
        raise TopologyError(f"topology file {path}: {error.rule}", error.actual, error.remedy) from None
    return file


def text_of(file: TopologyFile, comment: str = "") -> str:
    """The file as TOML; `load_file` reads the same value back. `comment`: the first line, without its mark."""
    data = canon.encode(file)
    gpu = dict(data["gpu"])
    rates = dict(gpu.pop("tflops"))
    lines = [f"# {comment}"] if comment else []
    lines += _pairs({name: data[name] for name in ("name", "ranks", "nvml_names")})
    lines += ["", "[gpu]", *_pairs(gpu), "", "[gpu.tflops]", *_pairs(rates)]
    for level in data["levels"]:
        lines += ["", "[[levels]]", *_pairs({key: level[key] for key in ("name", "units", "memory_bytes")})]
        if level["link"]:
            lines += ["", "[levels.link]", *_pairs(level["link"])]
    return "\n".join(lines) + "\n"


def _pairs(table: Mapping[str, object]) -> list[str]:
    """JSON writes texts, numbers, booleans and lists as TOML does."""
    return [f"{key} = {json.dumps(value)}" for key, value in table.items()]


def _with_pairs(data: dict[str, object]) -> dict[str, object]:
    """In a file, ``gpu.tflops`` is a table by dtype; as a value it is a tuple of pairs."""
    gpu = data.get("gpu")
    if not isinstance(gpu, dict) or not isinstance(gpu.get("tflops"), dict):
        return data
    pairs = [list(pair) for pair in gpu["tflops"].items()]
    return {**data, "gpu": {**gpu, "tflops": pairs}}
