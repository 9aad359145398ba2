"""Numeric features of a schedule of a spec, for models that learn."""

from __future__ import annotations

from dataclasses import fields
from math import log2

from tilescale.costmodel.analytic import Prediction, predict
from tilescale.schedules.knob import BY_NAME
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec


def features(spec: Spec, schedule: Schedule, prediction: Prediction | None = None) -> dict[str, float]:
    """Features by name, the same names for every schedule and spec, all finite.

    What the operation is (sizes as logarithms to base 2), what the machine is, the schedule's knobs (named ones as one
    0/1 feature a value, numbers as log2(1 + value)), and the analytic model's time and its parts as logarithms.
    `prediction`: that of the schedule, where the caller has it already.
    """
    prediction = prediction or predict(spec, schedule)
    found = _problem(spec) | _machine(spec) | _knobs(schedule)
    found["predicted_log_us"] = log2(prediction.us)
    for name, us in prediction.parts:
        found[f"predicted_{name}_fraction"] = us / prediction.us
    return found


def _problem(spec: Spec) -> dict[str, float]:
    operand, output = spec.inputs[0], spec.output
    rows, columns = operand.local_shape(0, spec.world)[0], output.local_shape(0, spec.world)[-1]
    return {
        "log_rows": log2(max(1, rows)),
        "log_columns": log2(max(1, columns)),
        "log_flops": log2(1 + spec.flops),
        "log_link_bytes": log2(1 + spec.link_bytes),
        "itemsize": float(operand.itemsize),
    }


def _machine(spec: Spec) -> dict[str, float]:
    topology = spec.topology
    kinds = {f"topology_{kind}": float(topology.kind == kind) for kind in ("real", "scale_model", "shared_gpu")}
    return kinds | {
        "world": float(topology.world),
        "sm_share": float(topology.sm_share),
        "log_link_gbps": log2(topology.link.gbps),
        "log_hbm_gbps": log2(topology.gpu.hbm_gbps),
    }


def _knobs(schedule: Schedule) -> dict[str, float]:
    found: dict[str, float] = {}
    for knob in fields(schedule):
        value = getattr(schedule, knob.name)
        if isinstance(value, str):
            domain = BY_NAME[knob.name].domain if knob.name in BY_NAME else (value,)
            found |= {f"{knob.name}_{option}": float(value == option) for option in domain}
        else:
            found[knob.name] = log2(1 + value)
    return found
