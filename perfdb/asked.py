"""Questions of people: values that no row can have are errors, values that no row has are named, with the nearest."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from perfdb.errors import RecordError
from perfdb.records import OPERATION, normal_gpu
from perfdb.session import Database
from perfdb.shapes import shape_distance

_SIZES = re.compile(r"[1-9][0-9]{0,17}(x[1-9][0-9]{0,17})*")
DTYPES = (
    "bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2", "tfloat32",
    "int8", "uint8", "int16", "int32", "int64", "bool",
)  # fmt: skip
# What a question may name: the table and column that hold it, and what a person calls it.
_PLACES = {
    "op": ("workload", "op", "operation"),
    "dtype": ("workload", "dtype", "dtype"),
    "world": ("workload", "world", "number of ranks"),
    "gpu": ("environment", "gpu", "GPU model"),
    "power_cap_w": ("environment", "power_cap_w", "power cap"),
    "schedule": ("schedule", "digest", "schedule digest"),
    "model": ("prediction", "model", "model"),
    "session": ("session", "id", "session"),
}
MOST = 5


def require(
    db: Database, *, op: str | None = None, shape: str | None = None, gpu: str | None = None, dtype: str | None = None
) -> None:
    """Errors: RecordError for a value that is none of its kind, with the nearest that are stored."""
    if op is not None and not OPERATION.fullmatch(op) and not _stored(db, "op", op):
        raise RecordError("an operation is one word", repr(op), _nearest_text(db, "op", op))
    if gpu is not None and not normal_gpu(gpu):
        raise RecordError("a GPU model has a name", repr(gpu), _nearest_text(db, "gpu", gpu))
    if dtype is not None and dtype not in DTYPES and not _stored(db, "dtype", dtype):
        near = difflib.get_close_matches(dtype, DTYPES, MOST, 0.3) or DTYPES
        raise RecordError("a dtype is one of torch's", repr(dtype), f"for example {', '.join(near)}")
    if shape is not None and not _SIZES.fullmatch(shape):
        stored = {str(row[0]) for row in db.rows("SELECT DISTINCT shape FROM workload")}
        if shape not in stored:
            raise RecordError("a shape is sizes above 0 joined by x", repr(shape), _shape_remedy(db, op, shape))


def _shape_remedy(db: Database, op: str | None, shape: str) -> str:
    meant = "x".join(str(int(size)) for size in re.findall(r"[0-9]{1,18}", shape) if int(size))
    rows = db.rows("SELECT op, shape FROM workload")
    names = sorted({str(row[1]) for row in rows if op in (None, row[0])} or {str(row[1]) for row in rows})
    near = sorted(names, key=lambda name: (shape_distance(meant, name), -_alike(shape, name), name))[:MOST]
    parts = [f"write {meant}" if meant else "for example 4096x10240x8192"]
    return "; ".join([*parts, *([f"nearest stored: {', '.join(near)}"] if near else [])])


def unknown(db: Database, asked: Mapping[str, str | int | None]) -> list[str]:
    """A line for each value that no row has; keys are those of `_PLACES`, None asks for all."""
    found = []
    for name, value in asked.items():
        wanted = normal_gpu(value) if name == "gpu" and isinstance(value, str) else value
        if wanted is not None and not _stored(db, name, wanted):
            found.append(f"no stored {_PLACES[name][2]} is {wanted}; {_nearest_text(db, name, wanted)}")
    return found


def _stored(db: Database, name: str, value: str | int) -> bool:
    table, column, _ = _PLACES[name]
    return bool(db.rows(f"SELECT 1 FROM {table} WHERE {column} = ? LIMIT 1", (value,)))


def _nearest_text(db: Database, name: str, value: str | int) -> str:
    table, column, _ = _PLACES[name]
    values: Sequence[str | int] = [row[0] for row in db.rows(f"SELECT DISTINCT {column} FROM {table}")]
    if not values:
        return "none is stored"
    if isinstance(value, int):
        near = sorted(values, key=lambda one: (abs(int(one) - value), one))
    else:
        near = sorted(values, key=lambda one: (-_alike(value, str(one)), one))
    shown = ", ".join(str(one) for one in near[:MOST])
    return f"nearest: {shown}" + (f" and {len(near) - MOST} more" if len(near) > MOST else "")


def _alike(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.lower(), other.lower()).ratio()
