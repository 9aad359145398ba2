"""Plans that sum, built by hand: no kernel carries them out yet, the verifier proves them.

`gemm_rs` is the protocol of FACTS: persistent blocks multiply a tile into their own staging memory, an engine a block
adds it to the owner's sum and says when the staging has been read and when the sum has been written, and the owner hands
out what all ranks have added to, and clears it.
"""

from __future__ import annotations

from tilescale.schedules.plan import (
    Buffer,
    Clear,
    Copy,
    Gemm,
    Goal,
    Launch,
    Phase,
    Plan,
    Reduce,
    Region,
    Role,
    Signal,
    Step,
    Wait,
)

ROW, OUT_ROW, N, K = 32, 32, 8, 16  # 2-byte operands, 4-byte sums
SMEM = 232448


def gemm_rs(world: int, blocks: int, tiles: int) -> Plan:
    """`tiles` tiles (of one row) for every rank's shard, shared by `blocks` blocks; nothing is merged.

    Counters of a rank: 3 b: tile issued, 3 b + 1: staging read, 3 b + 2: sum written, of block b; last: blocks that are
    done with all their tiles.
    """
    ranks = tuple((_launch(rank, world, blocks, tiles),) for rank in range(world))
    shard, whole = tiles * OUT_ROW, world * tiles
    buffers = (
        Buffer("a", "input", whole * ROW),
        Buffer("b", "input", K * N * 2),
        Buffer("staging", "workspace", blocks * OUT_ROW),
        Buffer("flight", "workspace", blocks * OUT_ROW),
        Buffer("sum", "workspace", shard, True, 2, zeroed=True),
        Buffer("out", "output", shard),
    )
    goal = Goal("a", "out", tuple(r * tiles * ROW for r in range(world + 1)), ROW, OUT_ROW, True, reduces=True)
    return Plan("gemm_rs", buffers, 3 * blocks + 1, ranks, goal, 2 * blocks, SMEM)


def _launch(rank: int, world: int, blocks: int, tiles: int) -> Launch:
    roles = []
    for block in range(blocks):
        issued, read, written = (3 * block + i for i in range(3))
        staging = Region("staging", rank, block * OUT_ROW, OUT_ROW)
        flight = Region("flight", rank, block * OUT_ROW, OUT_ROW)
        work: list[Step] = []
        engine: list[Step] = []
        count = 0
        for tile in range(block, world * tiles, blocks):
            owner, row = (tile // tiles + rank + 1) % world, tile % tiles
            source = owner * tiles + row
            if count:
                work.append(Wait(read, count))
            count += 1
            work += [
                Gemm(Region("a", rank, source * ROW, ROW), Region("b", rank, 0, K * N * 2), staging, 1, N, K),
                Signal(rank, issued),
            ]
            engine += [Wait(issued, count), Copy(staging, flight), Signal(rank, read)]
            engine += [Reduce(flight, Region("sum", owner, row * OUT_ROW, OUT_ROW)), Signal(rank, written)]
        work.append(Wait(written, count))
        work += [Signal((rank + distance) % world, 3 * blocks) for distance in range(1, world + 1)]
        work.append(Wait(3 * blocks, world * blocks))
        for row in range(block, tiles, blocks):
            mine = Region("sum", rank, row * OUT_ROW, OUT_ROW)
            work += [Copy(mine, Region("out", rank, row * OUT_ROW, OUT_ROW)), Clear(mine)]
        roles += [Role(f"work{block}", "blocks", 1, tuple(work)), Role(f"engine{block}", "blocks", 1, tuple(engine))]
    return Launch("gemm_rs", 0, tuple(roles), (), "fused", 384, 1024)


def reduce_scatter(
    world: int, blocks: int = 2, rows: int = 2, *, replicate: bool = False, early: bool = False
) -> Plan:
    """Every rank adds its part of each shard to that shard's owner; `replicate`: of all shards to every rank.

    `early` is wrong: each owner hears at once, so the next call of a fast rank stands in for a slow one.
    """
    shard = rows * ROW
    size = shard * (world if replicate else 1)
    ranks = []
    for rank in range(world):
        steps: list[Step] = []
        owners = [(rank + distance) % world for distance in range(1, world + 1)]
        for owner in owners:
            source = Region("a", rank, 0 if replicate else owner * shard, size)
            steps += [Reduce(source, Region("sum", owner, 0, size)), *([Signal(owner, 0)] if early else [])]
        steps += [] if early else [Signal(owner, 0) for owner in owners]
        total = Region("sum", rank, 0, size)
        steps += [Wait(0, world * blocks), Copy(total, Region("out", rank, 0, size)), Clear(total)]
        ranks.append((Launch("sum", 0, (Role("sum", "blocks", blocks, tuple(steps)),), (), "copy", 512),))
    buffers = (
        Buffer("a", "input", world * shard),
        Buffer("sum", "workspace", size, True, 2, zeroed=True),
        Buffer("out", "output", size),
    )
    goal = Goal("a", "out", tuple(r * shard for r in range(world + 1)), ROW, ROW, False, reduces=True)
    op = "all_reduce" if replicate else "reduce_scatter"
    return Plan(op, buffers, 1, tuple(ranks), goal, 16, SMEM)


def stages(world: int = 2, depth: int = 2, tiles: int = 6, *, drained: bool = True) -> Plan:
    """all_gather of one rank's part by a loader and a storer with a ring of `depth` stages, by parity of barriers.

    Counters: 2 s: stage s is full; 2 s + 1: stage s is empty; the last: ranks that have stored all. The loader ends with
    all stages empty. Without `drained` it does not wait for them, and laps the storer.
    """
    ranks = []
    for rank in range(world):
        load: list[Step] = []
        store: list[Step] = []
        for tile in range(tiles):
            stage, lap = tile % depth, tile // depth
            here = Region("ring", rank, stage * ROW, ROW)
            if lap and drained:
                load.append(Wait(2 * stage + 1, lap))
            load += [Copy(Region("a", rank, tile * ROW, ROW), here), Signal(rank, 2 * stage)]
            store += [Wait(2 * stage, lap + 1)]
            store += [Copy(here, Region("gather", peer, (rank * tiles + tile) * ROW, ROW)) for peer in range(world)]
            store.append(Signal(rank, 2 * stage + 1))
        if drained:
            load += [Wait(2 * stage + 1, -(-(tiles - stage) // depth)) for stage in range(depth)]
        store += [Signal(peer, 2 * depth) for peer in range(world)]
        store.append(Wait(2 * depth, world))
        size = world * tiles * ROW
        store.append(Copy(Region("gather", rank, 0, size), Region("out", rank, 0, size)))
        roles = (Role("load", "blocks", 1, tuple(load)), Role("store", "blocks", 1, tuple(store)))
        ranks.append((Launch("stages", 0, roles, (), "copy", 512),))
    whole = world * tiles * ROW
    buffers = (
        Buffer("a", "input", tiles * ROW),
        Buffer("ring", "workspace", depth * ROW),
        Buffer("gather", "workspace", whole, True, 2),
        Buffer("out", "output", whole),
    )
    goal = Goal("a", "out", tuple(r * tiles * ROW for r in range(world + 1)), ROW, ROW, False)
    phases = tuple(Phase(counter, 1) for counter in range(2 * depth))
    return Plan("all_gather", buffers, 2 * depth + 1, tuple(ranks), goal, 16, SMEM, phases=phases)
