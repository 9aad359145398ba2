"""What single steps cost on a machine: the parameters of the analytic model and the formulas that use them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tilescale.costmodel.product import product_us
from tilescale.schedules import tile
from tilescale.schedules.schedule import Schedule
from tilescale.spec.op import Spec

# Tiles a library chooses from, for the number of waves it needs.
LIBRARY_TILES = ((128, 256), (128, 128), (64, 256), (64, 128), (64, 64))
LIBRARY_STAGES = 6


@dataclass(frozen=True)
class Parameters:
    """Parameters of the model; a calibration replaces them. Defaults are for an H200.

    Measured on one H200 (docs: facts of the project): `copy_block_gbps`, 512 threads with four 16-byte accesses in
    flight each. Fitted to 1469 schedules of fused operations on ranks that share one: `generated_efficiency` and
    `library_efficiency`, of the rate of the GPU's topology, and `beside_slow`, how much longer products take that others
    copy or store beside. `l2_gbps_per_sm` (operand tiles of one SM) is what these need at least.
    Taken equal until measured: `tma_block_gbps`. From vendors' and public measurements, to be calibrated: `graph_us`
    (launch of a graph to its first node), `kernel_gap_us` (from a node to the next on its stream), `join_us` (to a node
    of another stream), `copy_engine_us` (start of a copy), `signal_us` (block barrier and system fence),
    `next_signal_us` (another signal behind the same fence), `wait_us` (successful poll to the next step), `packet_us`
    (the same of packets, which need no block barrier),
    `load_latency_us` (global memory to a stage), `store_gbps_per_sm` (epilogue).
    `*_error` are relative half-widths of the interval that each kind of cost gets.
    """

    copy_block_gbps: float = 48.0
    tma_block_gbps: float = 48.0
    copy_engine_us: float = 3.0
    graph_us: float = 3.0
    kernel_gap_us: float = 1.2
    join_us: float = 1.8
    signal_us: float = 0.9
    next_signal_us: float = 0.1
    wait_us: float = 0.5
    packet_us: float = 0.3
    load_latency_us: float = 0.8
    l2_gbps_per_sm: float = 70.0
    store_gbps_per_sm: float = 60.0
    generated_efficiency: float = 1.1
    library_efficiency: float = 0.92
    beside_slow: float = 1.1
    compute_error: float = 0.12
    copy_error: float = 0.2
    link_error: float = 0.1
    sync_error: float = 0.5
    launch_error: float = 0.5


DEFAULT = Parameters()


@dataclass(frozen=True)
class Costs:
    """Costs of the steps of plans on one machine. Rates are of one rank; GB/s is bytes a nanosecond, or 1e3 bytes a us.

    `tile`: (block_m, block_n, block_k, num_stages) of generated products. `sm_tflops`: of one SM. `local_us`: the whole
    generated product of an operation without communication, 0 for others. `owners`: products that share a tile.
    """

    parameters: Parameters
    sm_tflops: float
    sm_share: int
    hbm_gbps: float
    link_gbps: float
    link_latency_us: float
    copy_engines: int
    block_gbps: float
    tile: tuple[int, int, int, int]
    local_us: float = 0.0
    owners: int = 1

    def copy_us(self, size: int, blocks: int) -> float:
        """A copy by blocks, reading and writing memory at most once each, before any link."""
        return size / 1e3 / min(blocks * self.block_gbps, self.hbm_gbps / 2)

    def engine_us(self, size: int) -> float:
        """A copy engine at the memory's rate, without its start, before any link."""
        return size / 1e3 / (self.hbm_gbps / 2)

    def link_us(self, size: int) -> float:
        return size / 1e3 / self.link_gbps

    def tiles(self, m: int, n: int) -> float:
        """Tiles of a generated product; parts of tiles where products share them."""
        return -(-m * self.owners // self.tile[0]) / self.owners * -(-n // self.tile[1])

    def generated_tile_us(self, k: int, itemsize: int, out_itemsize: int) -> float:
        """One tile of a generated product on one SM."""
        p = self.parameters
        return _tile_us(self.tile, k, itemsize, out_itemsize, self.sm_tflops * p.generated_efficiency, p)

    def library_us(self, m: int, n: int, k: int, itemsize: int, out_itemsize: int, sms: int) -> float:
        """A library product on `sms` SMs: the best tile's waves, or the memory's time."""
        p = self.parameters
        compute = min(_library_waves_us(m, n, k, itemsize, out_itemsize, sms, self.sm_tflops, p))
        moved = (m * k + k * n) * itemsize + m * n * out_itemsize
        return max(compute, moved / 1e3 / self.hbm_gbps)


def _library_waves_us(
    m: int, n: int, k: int, itemsize: int, out_itemsize: int, sms: int, sm_tflops: float, p: Parameters
) -> list[float]:
    found = []
    for block_m, block_n in LIBRARY_TILES:
        waves = -(-(-(-m // block_m) * -(-n // block_n)) // max(1, sms))
        tile = (block_m, block_n, 64, LIBRARY_STAGES)
        found.append(waves * _tile_us(tile, k, itemsize, out_itemsize, sm_tflops * p.library_efficiency, p))
    return found


@lru_cache(maxsize=4096)
def _tile_us(
    tile: tuple[int, int, int, int], k: int, itemsize: int, out_itemsize: int, sm_tflops: float, p: Parameters
) -> float:
    """Fill of the pipeline, then the slowest of multiplying, loading, and latency over stages, then the stores."""
    block_m, block_n, block_k, stages = tile
    multiply = 2 * block_m * block_n * block_k / (sm_tflops * 1e6)
    load = (block_m + block_n) * block_k * itemsize / 1e3 / p.l2_gbps_per_sm
    steps = -(-k // block_k)
    drain = block_m * block_n * out_itemsize / 1e3 / p.store_gbps_per_sm
    return p.load_latency_us + steps * max(multiply, load, p.load_latency_us / stages) + drain


def costs(spec: Spec, schedule: Schedule, parameters: Parameters = DEFAULT) -> Costs:
    """Costs of a schedule's steps on the topology of `spec`. The link of a scale model already is that of the share."""
    topology, gpu = spec.topology, spec.topology.gpu
    shared = 1 if topology.kind == "real" else topology.ranks
    rate = gpu.rate_tflops(spec.inputs[0].dtype) if spec.operation.compute == "gemm" else 1.0
    slow = 1.0 if schedule.overlap == "none" else parameters.beside_slow
    block = parameters.tma_block_gbps if schedule.transport == "tma" else parameters.copy_block_gbps
    return Costs(
        parameters,
        sm_tflops=rate / gpu.sms / slow,
        sm_share=topology.sm_share,
        hbm_gbps=gpu.hbm_gbps / shared,
        link_gbps=topology.link.gbps,
        link_latency_us=topology.link.latency_us,
        copy_engines=max(1, gpu.copy_engines // shared),
        block_gbps=block,
        local_us=product_us(spec, schedule) if spec.local and schedule.block_m else 0.0,
        owners=tile.owners(spec, schedule),
        tile=(schedule.block_m or 128, schedule.block_n or 256, schedule.block_k or 64, schedule.num_stages or 4),
    )
