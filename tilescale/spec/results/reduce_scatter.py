"""Reduce-scatter: every rank receives its shard of the sum of what all ranks add; the last shards may be empty."""

from __future__ import annotations

from tilescale.spec.declaration import Spec
from tilescale.spec.result import RESULTS, Kind, Result, addends


def _result(spec: Spec, rank: int) -> Result:
    dim = spec.output.shard_dim or 0
    first = spec.output.local_offset(rank, spec.world)[dim]
    return Result(addends(spec), dim, first, spec.output.local_shape(rank, spec.world)[dim])


RESULTS.register(Kind("reduce_scatter", _result))
