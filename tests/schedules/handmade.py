"""Small plans built by hand, right ones, for the verifier's tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilescale.schedules.plan import Buffer, Copy, Gemm, Goal, Launch, Plan, Region, Role, Signal, Step, Wait

ROW, OUT_ROW, N, K = 32, 16, 8, 16  # bytes of a row of the operand and of the output; 2-byte elements


def goal(world: int, rows: int, computes: bool) -> Goal:
    starts = tuple(r * rows * ROW for r in range(world + 1))
    return Goal("a", "out", starts, ROW, OUT_ROW if computes else ROW, computes)


def buffers(world: int, rows: int, computes: bool, versions: int, visible_input: bool = False) -> tuple[Buffer, ...]:
    shard = rows * ROW
    out = world * rows * (OUT_ROW if computes else ROW)
    local = (Buffer("b", "input", K * N * 2),) if computes else ()
    return (
        Buffer("a", "input", shard, visible_input),
        *local,
        Buffer("gather", "workspace", shard * world, True, versions),
        Buffer("out", "output", out),
    )


def gemm(rank: int, source: str, first_row: int, out_row: int, rows: int) -> Gemm:
    return Gemm(
        Region(source, rank, first_row * ROW, rows * ROW),
        Region("b", rank, 0, K * N * 2),
        Region("out", rank, out_row * OUT_ROW, rows * OUT_ROW),
        rows,
        N,
        K,
    )


def fused_push(
    world: int,
    chunks: int = 1,
    chunk_rows: int = 2,
    comm: int = 2,
    compute: int = 3,
    versions: int = 2,
    sm_share: int = 16,
) -> Plan:
    """One kernel: copy blocks put the own shard to all peers chunk by chunk, compute blocks follow the arrivals.

    Counter source * chunks + chunk of a rank counts the blocks that have put that chunk there.
    """
    rows = chunks * chunk_rows
    ranks = []
    for rank in range(world):
        puts: list[Step] = []
        segments: list[Step] = [gemm(rank, "a", 0, rank * rows, rows)]
        for distance in range(1, world):
            peer, source = (rank + distance) % world, (rank - distance) % world
            for chunk in range(chunks):
                size = chunk_rows * ROW
                puts += [
                    Copy(
                        Region("a", rank, chunk * size, size),
                        Region("gather", peer, (rank * chunks + chunk) * size, size),
                    ),
                    Signal(peer, rank * chunks + chunk),
                ]
                row = source * rows + chunk * chunk_rows
                segments += [Wait(source * chunks + chunk, comm), gemm(rank, "gather", row, row, chunk_rows)]
        roles = (Role("comm", "blocks", comm, tuple(puts)), Role("compute", "blocks", compute, tuple(segments)))
        ranks.append((Launch("fused", 0, roles, (), "fused", 384, 1024),))
    return Plan(
        "ag_gemm",
        buffers(world, rows, True, versions),
        world * chunks,
        tuple(ranks),
        goal(world, rows, True),
        sm_share,
        232448,
    )


def pull(world: int, staged: bool = True, blocks: int = 2) -> Plan:
    """all_gather: ranks announce their shard, then get those of the peers and say when they have read them."""
    rows, shard = 4, 4 * ROW
    ranks = []
    for rank in range(world):
        steps: list[Step] = []
        source, offset = ("gather", rank * shard) if staged else ("a", 0)
        if staged:
            steps.append(Copy(Region("a", rank, 0, shard), Region("gather", rank, offset, shard)))
        peers = [(rank + d) % world for d in range(1, world)]
        steps += [Signal(peer, 0) for peer in peers]
        steps.append(Copy(Region("a", rank, 0, shard), Region("out", rank, rank * shard, shard)))
        steps.append(Wait(0, blocks * (world - 1)))
        for peer in peers:
            origin = peer * shard if staged else 0
            steps.append(Copy(Region(source, peer, origin, shard), Region("out", rank, peer * shard, shard)))
        if not staged:  # the caller may write the input again only when all have read it
            steps += [Signal(peer, 1) for peer in peers]
            steps.append(Wait(1, blocks * (world - 1)))
        ranks.append((Launch("pull", 0, (Role("copy", "blocks", blocks, tuple(steps)),), (), "copy", 512),))
    return Plan(
        "all_gather", buffers(world, rows, False, 2, not staged), 2, tuple(ranks), goal(world, rows, False), 16, 232448
    )


def ring(world: int, blocks: int = 1, versions: int = 2) -> Plan:
    """all_gather: each block hands its part of what it got last to the next rank; counter shard * blocks + block."""
    rows, shard = 4 * blocks, 4 * blocks * ROW
    part = shard // blocks
    ranks = []
    for rank in range(world):
        following, roles = (rank + 1) % world, []
        for block in range(blocks):
            steps: list[Step] = []
            for step in range(world - 1):
                which = (rank - step) % world
                at = which * shard + block * part
                source = Region("a", rank, block * part, part)
                if step:
                    steps.append(Wait(which * blocks + block, 1))
                    source = Region("gather", rank, at, part)
                steps += [
                    Copy(source, Region("gather", following, at, part)),
                    Signal(following, which * blocks + block),
                ]
            steps.append(Wait(following * blocks + block, 1))
            for which in range(world):
                at = which * shard + block * part
                source = Region("a", rank, block * part, part) if which == rank else Region("gather", rank, at, part)
                steps.append(Copy(source, Region("out", rank, at, part)))
            roles.append(Role(f"ring{block}", "blocks", 1, tuple(steps)))
        ranks.append((Launch("ring", 0, tuple(roles), (), "copy", 512),))
    return Plan(
        "all_gather",
        buffers(world, rows, False, versions),
        world * blocks,
        tuple(ranks),
        goal(world, rows, False),
        16,
        232448,
    )


def chunked(world: int, chunks: int = 2) -> Plan:
    """Copy engines put chunks on one stream a peer; a small kernel waits for each shard before a library call."""
    rows, shard = chunks * 2, chunks * 2 * ROW
    size = shard // chunks
    ranks = []
    for rank in range(world):
        launches = [Launch("gemm_own", 0, (Role("gemm", "library", 1, (gemm(rank, "a", 0, rank * rows, rows),)),))]
        for distance in range(1, world):
            peer, source = (rank + distance) % world, (rank - distance) % world
            for chunk in range(chunks):
                put = Copy(
                    Region("a", rank, chunk * size, size), Region("gather", peer, rank * shard + chunk * size, size)
                )
                name = f"put{peer}_{chunk}"
                launches.append(Launch(name, distance, (Role("put", "copy_engine", 1, (put,)),)))
                launches.append(
                    Launch(f"tell{peer}_{chunk}", distance, (Role("tell", "blocks", 1, (Signal(peer, rank),)),))
                )
            launches.append(Launch(f"wait{source}", 0, (Role("wait", "blocks", 1, (Wait(source, chunks),)),)))
            call = gemm(rank, "gather", source * rows, source * rows, rows)
            launches.append(Launch(f"gemm{source}", 0, (Role("gemm", "library", 1, (call,)),)))
        ranks.append(tuple(launches))
    return Plan("ag_gemm", buffers(world, rows, True, 2), world, tuple(ranks), goal(world, rows, True), 16, 232448)


Change = Callable[[Step], list[Step]]


def edit(plan: Plan, rank: int, number: int, change: Change) -> Plan:
    """The plan with step `number` of `rank` replaced by what `change` makes of it."""
    count = 0
    launches = []
    for launch in plan.ranks[rank]:
        roles = []
        for role in launch.roles:
            steps: list[Step] = []
            for step in role.steps:
                steps += change(step) if count == number else [step]
                count += 1
            roles.append(replace(role, steps=tuple(steps)))
        launches.append(replace(launch, roles=tuple(roles)))
    return replace(plan, ranks=(*plan.ranks[:rank], tuple(launches), *plan.ranks[rank + 1 :]))


def find(plan: Plan, rank: int, kind: type, which: int = 0) -> int:
    """Number of the `which`-th step of a kind."""
    return [number for number, _, _, step in plan.steps_of(rank) if isinstance(step, kind)][which]


def drop(step: Step) -> list[Step]:
    """A change that removes the step."""
    return []
