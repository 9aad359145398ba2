"""Equal shares of one GPU: each rank's streams lie in a green context over its own group of SMs.

Made with the driver API: group [rank] of an even split is the same disjoint group in every process, which an MPS
percentage does not give (its persistent kernels deadlock) and torch's own green contexts do not either (every process
gets the first group).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilescale.errors import RunnerError


@dataclass(frozen=True)
class Share:
    """A rank's part of a GPU: `context` is a CUgreenCtx, `sms` the SMs in it, `groups` the groups that were made."""

    context: Any
    sms: int
    groups: int


def make_share(cu: Any, call: Any, device: Any, rank: int, world: int, sms: int) -> Share:
    """The green context of `rank` on `device`, of `sms` SMs. `cu` is cuda.bindings.driver, `call` checks its results.

    The primary context must be retained before, or making one is slow. Raises RunnerError where the GPU cannot be split
    into `world` such groups.
    """
    whole = call(cu.cuDeviceGetDevResource(device, cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
    groups, count, _ = call(cu.cuDevSmResourceSplitByCount(world, whole, 0, sms))
    sizes = [int(group.sm.smCount) for group in groups[: int(count)]]
    if len(sizes) < world or sizes[rank] != sms:
        raise RunnerError(f"the GPU splits into {world} groups of {sms} SMs", f"groups of {sizes} SMs",
                          "use fewer ranks, or a topology that describes this GPU")
    description = call(cu.cuDevResourceGenerateDesc([groups[rank]], 1))
    flags = int(cu.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM)
    context = call(cu.cuGreenCtxCreate(description, device, flags))
    return Share(context, sizes[rank], len(sizes))


def make_stream(cu: Any, call: Any, share: Share) -> int:
    """A stream in the share that does not wait for the default stream."""
    return int(call(cu.cuGreenCtxStreamCreate(share.context, int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING), 0)))
