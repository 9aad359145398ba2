"""What goes into the database: plain frozen values, without a database library.

A trial holds its whole key: the workload (what was asked), the topology (the structure it ran on), the environment
(the machine's state and the toolchain), the schedule (how it was done) and the source (what kind of number it is).
Digests of workload, topology and schedule are the caller's; that of an environment is computed here from its columns.
`document` fields are JSON texts for whatever the columns do not say; they are stored as given and are never part of a
key.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from perfdb.errors import RecordError

SOURCES = ("measured", "measured_scale_model", "measured_shared_gpu", "replayed", "predicted", "emulated")
STATUSES = (
    "ok",
    "illegal",
    "compile_error",
    "compile_timeout",
    "launch_error",
    "timeout",
    "wrong_result",
    "interrupted",
)
SESSION_STATUSES = ("running", "complete", "exhausted", "interrupted", "failed")

# The columns that make an environment, in the order in which differences are reported.
ENVIRONMENT_FIELDS = (
    "gpu",
    "arch",
    "power_cap_w",
    "driver",
    "nvrtc",
    "nccl",
    "torch",
    "clock_policy",
    "gpu_count",
    "timer_version",
    "validation_version",
)


# What the columns of both engines hold.
INTEGER, BIGINT, DIGEST = 2**31 - 1, 2**63 - 1, 64
# How a person may name an operation.
OPERATION = re.compile(r"[A-Za-z][\w.+-]*")


def normal_gpu(name: str) -> str:
    """One spelling a GPU model: `NVIDIA H200_NVL` -> `H200 NVL`. Different models stay different."""
    words = re.sub(r"[_\-\s]+", " ", name).strip().upper()
    return words.removeprefix("NVIDIA ")


def _require(ok: bool, rule: str, actual: object, remedy: str = "") -> None:
    if not ok:
        raise RecordError(rule, actual, remedy)


def _check_fields(key: object, **ranges: tuple[int, int]) -> None:
    """Hold a key to what both engines can store: numbers in range, as plain ints; digests short; texts that encode."""
    for name, (least, most) in ranges.items():
        value = getattr(key, name)
        if type(value) is not int:
            try:
                object.__setattr__(key, name, operator.index(value))
            except TypeError as error:
                raise RecordError(f"{name} is a whole number", repr(value)) from error
        if not least <= value <= most:
            raise RecordError(f"{name} is from {least} to {most}", value)
    texts = {name: value for name, value in vars(key).items() if isinstance(value, str)}
    if len(texts.get("digest", "")) > DIGEST:
        raise RecordError(f"a digest has at most {DIGEST} characters", texts["digest"])
    # Keys are made for every record: all of their texts at once, and one by one only where something is odd.
    together = "".join(texts.values())
    if "\0" in together or not together.isascii():
        for name, value in texts.items():
            _require(storable(value) == value, f"{name} is text without NUL or half characters", repr(value))


def storable(text: str) -> str:
    """The text with what no database stores (NUL, half of a surrogate pair) shown as U+FFFD."""
    if "\0" in text:
        text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


@dataclass(frozen=True)
class WorkloadKey:
    """What was asked for. `digest` identifies it; `op`, `shape` ("4096x10240x8192"), `dtype` are for queries.

    `flops` and `link_bytes` are per rank (0: not known).
    """

    digest: str
    op: str
    shape: str
    dtype: str
    world: int
    label: str = ""
    flops: int = 0
    link_bytes: int = 0
    document: str = "{}"

    def __post_init__(self) -> None:
        _require(bool(self.digest and self.op), "a workload needs a digest and an op", (self.digest, self.op))
        _require(self.world >= 1, "world size must be at least 1", self.world)
        _check_fields(self, world=(1, INTEGER), flops=(0, BIGINT), link_bytes=(0, BIGINT))


@dataclass(frozen=True)
class TopologyKey:
    """The structure of the machine, without host, UUIDs or driver. `kind`: "real", "shared_gpu" or "scale_model"."""

    digest: str
    name: str
    kind: str
    world: int
    gpu: str = ""
    document: str = "{}"

    def __post_init__(self) -> None:
        _require(bool(self.digest), "a topology needs a digest", self.digest)
        _require(self.world >= 1, "world size must be at least 1", self.world)
        _check_fields(self, world=(1, INTEGER))


@dataclass(frozen=True)
class EnvironmentKey:
    """The state of the machine and the toolchain; every column is part of the key, `document` is not.

    `gpu` is the model that the times are about, kept in one spelling (`normal_gpu`); `power_cap_w` is the enforced
    limit in whole watts, 0 if there is none; `clock_policy` is what was asked of the clocks ("default",
    "locked:1830"), never what was observed: observed clocks vary from run to run and belong in
    `TrialRecord.conditions`. Versions are texts, "" if absent.
    """

    gpu: str
    arch: str
    power_cap_w: int = 0
    driver: str = ""
    nvrtc: str = ""
    nccl: str = ""
    torch: str = ""
    clock_policy: str = "default"
    gpu_count: int = 1
    timer_version: str = "1"
    validation_version: str = "1"
    document: str = "{}"

    def __post_init__(self) -> None:
        # NVML reports milliwatts and its limits wander by fractions of a watt: whole watts are the identity.
        object.__setattr__(self, "power_cap_w", round(self.power_cap_w))
        object.__setattr__(self, "gpu", normal_gpu(self.gpu))
        _require(bool(self.gpu), "an environment names a GPU model (or 'none')", self.gpu)
        _require(self.power_cap_w >= 0, "power_cap_w is in watts, 0 for none", self.power_cap_w)
        _check_fields(self, power_cap_w=(0, INTEGER), gpu_count=(0, INTEGER))

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits over `ENVIRONMENT_FIELDS`."""
        values = {name: getattr(self, name) for name in ENVIRONMENT_FIELDS}
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ScheduleKey:
    """How it was done. `label` is one short line for tables; `document` the schedule itself."""

    digest: str
    label: str = ""
    document: str = "{}"

    def __post_init__(self) -> None:
        _require(bool(self.digest), "a schedule needs a digest", self.digest)
        _check_fields(self)


@dataclass(frozen=True)
class TrialRecord:
    """One finished attempt at one schedule, good or bad.

    `value_us`: the time of the operation, the median over samples of the maximum over ranks; None (or NaN) unless
    status is "ok". `samples_us`: one tuple a rank. `conditions`: JSON text of what was observed (clocks, power,
    throttle reasons). `recorded_at`: aware datetime, now if None. `session_id`: from `Database.start_session`, None
    outside of one.
    """

    workload: WorkloadKey
    topology: TopologyKey
    environment: EnvironmentKey
    schedule: ScheduleKey
    source: str
    status: str
    value_us: float | None = None
    samples_us: tuple[tuple[float, ...], ...] = ()
    message: str = ""
    binary_digest: str = ""
    table_digest: str = ""
    session_id: int | None = None
    conditions: str = "{}"
    recorded_at: datetime | None = None

    def __post_init__(self) -> None:
        _require(self.source in SOURCES, f"source must be one of {', '.join(SOURCES)}", self.source)
        _require(self.status in STATUSES, f"status must be one of {', '.join(STATUSES)}", self.status)
        if self.value_us is not None and math.isnan(self.value_us):
            object.__setattr__(self, "value_us", None)
        # What a compiler or a dying process says is kept, whatever bytes it is made of.
        object.__setattr__(self, "message", storable(self.message))
        object.__setattr__(self, "conditions", storable(self.conditions))
        good = self.value_us is not None and math.isfinite(self.value_us) and self.value_us > 0
        if self.status == "ok":
            _require(good, "a trial with status ok has a finite value_us above 0", self.value_us)
        else:
            _require(self.value_us is None, f"a trial with status {self.status} has no value_us", self.value_us)
        worlds = (self.workload.world, self.topology.world)
        _require(worlds[0] == worlds[1], "workload and topology must have the same world size", worlds)
        _require(len(self.samples_us) <= worlds[0], "samples_us has one row a rank at most", len(self.samples_us))
        require_aware(self.recorded_at)


@dataclass(frozen=True)
class PredictionRecord:
    """A time that a model expects, with an interval [low_us, high_us], kept to be scored against a measurement."""

    workload: WorkloadKey
    topology: TopologyKey
    schedule: ScheduleKey
    model: str
    value_us: float
    low_us: float | None = None
    high_us: float | None = None
    model_digest: str = ""
    environment: EnvironmentKey | None = None
    session_id: int | None = None
    document: str = "{}"
    recorded_at: datetime | None = None

    def __post_init__(self) -> None:
        _require(
            math.isfinite(self.value_us) and self.value_us > 0,
            "a predicted value_us is finite and above 0",
            self.value_us,
        )
        require_aware(self.recorded_at)


@dataclass(frozen=True)
class DecisionRecord:
    """The winner that a session chose, and the trials that it could not tell apart from the winner."""

    workload: WorkloadKey
    topology: TopologyKey
    environment: EnvironmentKey
    source: str
    winner_trial_id: int
    tie_trial_ids: tuple[int, ...] = ()
    reason: str = ""
    session_id: int | None = None
    document: str = "{}"
    recorded_at: datetime | None = None

    def __post_init__(self) -> None:
        _require(self.source in SOURCES, f"source must be one of {', '.join(SOURCES)}", self.source)
        require_aware(self.recorded_at)


@dataclass(frozen=True)
class TrialRow:
    """A stored trial, as `exact` and `known` return it.

    `stale` rows come from another environment than the one asked for and are returned only when asked for; `differs`
    says how.
    """

    trial_id: int
    schedule: str
    source: str
    status: str
    value_us: float | None
    message: str
    binary_digest: str
    table_digest: str
    session_id: int | None
    recorded_at: datetime
    environment: str
    stale: bool = False
    differs: str = ""


def require_aware(time: datetime | None) -> None:
    """Refuse a datetime without a time zone: it would be read as another moment on another machine."""
    _require(
        time is None or time.tzinfo is not None, "recorded_at must carry a time zone", time, "use datetime.now(UTC)"
    )
    try:
        if time is not None:
            time.astimezone(UTC)
    except OverflowError as error:
        raise RecordError("recorded_at lies in the years 1 to 9999, in UTC", time) from error
