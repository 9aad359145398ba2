"""perfdb.importing: files of other tools become records, each once, and a bad file stores nothing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import perfdb
from perfdb.exploring import recommendations
from perfdb.importing import Facts, import_file, importers
from tests.support import ag_gemm
from tilescale.runtime.replay import RecordedSpace, find_recorded
from tilescale.tuner.records import schedule_key, topology_key, workload_key

SHIPPED = sorted((Path(__file__).parents[2] / "tilescale" / "runtime" / "spaces").glob("*.jsonl.gz"))

NCCL = """# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1
#
# Using devices
#  Rank  0 Group  0 Pid   9551 on   somehost device  0 [0000:01:00] NVIDIA H200
#  Rank  1 Group  0 Pid   9551 on   somehost device  1 [0000:02:00] NVIDIA H200
NCCL version 2.28.3+cuda13.0
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           512  bfloat16     sum      -1    11.25    0.09    0.09      0    10.75    0.10    0.10      0
        2048          1024  bfloat16     sum      -1    12.50    0.16    0.16      3    11.50    0.18    0.18    N/A
        4096          2048  bfloat16     sum      -1     0.00    0.00    0.00      0    13.00    0.32    0.32      0
# Out of bounds values : 0 OK
"""


def test_a_recorded_space_gets_the_keys_of_tilescale(db: perfdb.Database) -> None:
    path = SHIPPED[0]
    counts, _ = import_file(db, path)
    space = RecordedSpace.load(path)
    assert counts.stored["trial"] == len(space.rows)
    best = space.best
    assert best is not None
    trials = perfdb.trials(db, workload=workload_key(space.spec).digest, topology=topology_key(space.spec).digest)
    assert len(trials) == len(space.rows)
    assert set(trials["source"]) == {space.source}
    assert trials["value_us"].min() == pytest.approx(best.value_us)
    row = trials[trials["schedule"] == schedule_key(best.schedule).digest].iloc[0]
    assert row["value_us"] == pytest.approx(best.value_us)
    assert (row["op"], row["world"], row["gpu"]) == (space.spec.op, space.spec.world, "H200")
    again, _ = import_file(db, path)
    assert (again.stored["trial"], again.known["trial"]) == (0, len(space.rows))


def test_a_measured_space_keeps_its_samples(db: perfdb.Database, tmp_path: Path) -> None:
    found = find_recorded(ag_gemm((4096, 6144, 4096)), [SHIPPED[0].parent])
    assert found is not None
    space = RecordedSpace.of(found.spec, "measured", found.rows[:3])
    import_file(db, space.save(tmp_path), facts=Facts({"power_cap_w": "700", "driver": "580.65"}))
    trials = perfdb.trials(db)
    assert set(zip(trials["source"], trials["power_cap_w"], trials["driver"], strict=True)) == {
        ("measured", 700, "580.65")
    }
    assert list(perfdb.samples(db, int(trials["trial_id"].iloc[0]))["us"]) == [
        us for rank in space.rows[0].samples_us for us in rank
    ]


def moe(folder: Path, name: str, content: object) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(content))
    return path


KNOBS = {
    "BLOCK_SIZE_M": 16,
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 1,
    "num_warps": 4,
    "num_stages": 5,
}


@pytest.mark.parametrize(
    ("folder", "name", "extra", "op", "dtype", "triton"),
    [
        ("v", "E=8,N=7168,device_name=NVIDIA_H200.json", {}, "fused_moe", "bfloat16", ""),
        (
            "v",
            "E=128,N=384,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json",
            {"triton_version": "3.4.0"},
            "fused_moe",
            "fp8_w8a8",
            "triton 3.4.0",
        ),
        (
            "triton_3_4_0",
            "E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128]_down.json",
            {},
            "fused_moe_down",
            "fp8_w8a8",
            "triton 3.4.0",
        ),
    ],
)
def test_tuning_files_of_vllm_and_sglang(
    db: perfdb.Database, tmp_path: Path, folder: str, name: str, extra: dict[str, str], op: str, dtype: str, triton: str
) -> None:
    path = moe(tmp_path / folder, name, {**extra, "1": KNOBS, "64": {**KNOBS, "num_warps": 8}})
    counts, read = import_file(db, path)
    assert (counts.stored["trial"], counts.stored["recommendation"]) == (0, 2)
    assert "no times" in read.notes[0]
    frame = recommendations(db, op=op, gpu="H200")
    assert list(frame["shape"]) == [
        f"{tokens}x{name[2:].split(',')[0]}x{name.split('N=')[1].split(',')[0]}" for tokens in (1, 64)
    ]
    assert set(frame["dtype"]) == {dtype}
    assert set(frame["nvrtc"]) == {triton}
    assert json.loads(frame["document"].iloc[1])["num_warps"] == 8
    # A winner without a time ranks nowhere.
    assert perfdb.best(db, op=op).empty
    assert import_file(db, path)[0].known["recommendation"] == 2


def test_the_output_of_nccl_tests(db: perfdb.Database, tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    path.write_text(NCCL)
    counts, read = import_file(db, path, facts=Facts({"power_cap_w": 700}))
    assert counts.stored["trial"] == 5
    assert read.notes == ("1 rows without a time left out",)
    trials = perfdb.trials(db)
    shown = trials[["op", "shape", "dtype", "world", "status", "gpu", "nccl", "gpu_count"]].itertuples(index=False)
    assert next(iter(shown)) == ("all_reduce", "512", "bfloat16", 2, "ok", "H200", "2.28.3", 2)
    assert list(trials["value_us"].dropna()) == [11.25, 10.75, 11.5, 13.0]
    assert list(trials["status"]).count("wrong_result") == 1
    assert set(trials["schedule_label"]) == {"nccl in place", "nccl out of place"}
    assert import_file(db, path, facts=Facts({"power_cap_w": 700}))[0].stored["trial"] == 0


def test_the_operation_must_be_known(local: perfdb.Database, tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    path.write_text(NCCL.split("\n", 1)[1])
    with pytest.raises(perfdb.RecordError, match="--op"):
        import_file(local, path)
    import_file(local, path, facts=Facts(op="all_gather"))
    assert set(perfdb.trials(local)["op"]) == {"all_gather"}


def cut(path: Path) -> bytes:
    return SHIPPED[0].read_bytes()[:2000]


def altered(path: Path) -> bytes:
    return gzip.compress(gzip.decompress(SHIPPED[0].read_bytes()).replace(b'"ok"', b'"no"', 1))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl.gz", cut),
        ("x.jsonl.gz", altered),
        ("E=8,N=7168,device_name=H200.json", lambda _: b'{"1": {}}'),
        ("E=8,N=7168,device_name=H200.json", lambda _: b'{"1": '),
        ("E=8,device_name=H200.json", lambda _: b"{}"),
        ("run.txt", lambda _: NCCL.split("#       size")[0].encode()),
        ("notes.txt", lambda _: b"nothing of the kind"),
    ],
)
def test_a_bad_file_is_an_error_with_its_path_and_stores_nothing(
    local: perfdb.Database, tmp_path: Path, name: str, content: object
) -> None:
    path = tmp_path / name
    path.write_bytes(content(path))  # type: ignore[operator]
    with pytest.raises(perfdb.RecordError) as caught:
        import_file(local, path)
    assert str(path) in str(caught.value)
    assert perfdb.trials(local).empty


def test_importers_are_found_by_name(local: perfdb.Database, tmp_path: Path) -> None:
    assert list(importers()) == ["fused_moe", "nccl_tests", "recorded_space"]
    with pytest.raises(perfdb.RecordError, match="fused_moe, nccl_tests, recorded_space"):
        import_file(local, tmp_path / "x", kind="csv")
    with pytest.raises(perfdb.DatabaseError, match="can be read"):
        import_file(local, tmp_path / "missing")
    with pytest.raises(perfdb.RecordError, match="a fact is one of gpu"):
        Facts({"colour": "red"})
