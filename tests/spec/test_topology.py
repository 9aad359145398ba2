"""topology: shipped files, parts and models of them, wrong files, and digests of structure only."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescale import canon
from tilescale.errors import TopologyError
from tilescale.spec import catalog, detect
from tilescale.spec.topology import LEVELS, Topology

NAMES = ("4xA100-NVLink", "4xPCIe", "8xB200-NVSwitch", "8xH100-NVSwitch", "8xH200-NVSwitch")
H200 = Topology.named("8xH200-NVSwitch")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared topologies describe the GPU at hand; these tests are about the recorded one."""
    monkeypatch.setattr(detect, "model_at_hand", lambda: None)


def with_link(topology: Topology, **changes: object) -> Topology:
    link = dataclasses.replace(topology.link, **changes)  # type: ignore[arg-type]
    levels = [dataclasses.replace(one, link=link) if one.name == "node" else one for one in topology.levels]
    return dataclasses.replace(topology, levels=tuple(levels))


def test_the_shipped_topologies() -> None:
    assert catalog.names() == NAMES
    for name in NAMES:
        topology = Topology.named(name)
        assert topology.name == name
        assert topology.kind == "real"
        assert topology.source == "measured"
        assert topology.world == topology.ranks == int(name[0])
        assert tuple(level.name for level in topology.levels) == LEVELS
        assert topology.sm_share == topology.gpu.sms == topology.level("gpu").units
        assert topology.link.gbps <= topology.link.nominal_gbps
        assert canon.loads(Topology, canon.dumps(topology)) == topology
    assert len({Topology.named(name).digest for name in NAMES}) == len(NAMES)


def test_facts_of_the_h200_and_of_pcie() -> None:
    gpu = H200.gpu
    assert (gpu.model, gpu.arch, gpu.sms, gpu.smem_bytes, gpu.l2_bytes) == ("H200", "sm_90a", 132, 232448, 50 << 20)
    assert (H200.link.gbps, H200.link.nominal_gbps) == (375.0, 450.0)
    assert H200.link.peer_access
    assert H200.link.multicast
    assert gpu.rate_tflops("bfloat16") == 700.0
    assert gpu.rate_tflops("int32") == gpu.rate_tflops("float32")
    pcie = Topology.named("4xPCIe").link
    assert (pcie.kind, pcie.peer_access, pcie.multicast) == ("pcie", False, False)


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_case_b8_any_part_of_a_host(ranks: int) -> None:
    part = Topology.named("8xH200-NVSwitch", ranks=ranks)
    assert part.world == part.level("node").units == ranks
    assert part.link == H200.link
    assert part.sm_share == 132
    assert part.digest != H200.digest


@pytest.mark.parametrize("ranks", [0, 9, 2.0, True])
def test_case_b8_a_world_that_cannot_be_met_names_the_allowed_ones(ranks: object) -> None:
    with pytest.raises(TopologyError, match=r"8xH200-NVSwitch has 8 GPUs; got: ranks=.*allowed worlds: 1, 2, .*, 8"):
        Topology.named("8xH200-NVSwitch", ranks=ranks)  # type: ignore[arg-type]


@pytest.mark.parametrize(("ranks", "share"), [(2, 64), (3, 40), (4, 32), (8, 16)])
def test_scale_models_keep_the_proportion(ranks: int, share: int) -> None:
    model = Topology.scale_model("8xH200-NVSwitch", ranks=ranks)
    assert (model.kind, model.source, model.sm_share) == ("scale_model", "measured_scale_model", share)
    assert model.gpu == H200.gpu
    assert model.link.gbps == pytest.approx(375.0 / ranks)
    assert model.link.nominal_gbps == pytest.approx(450.0 / ranks)
    assert not model.link.multicast


@pytest.mark.parametrize(("ranks", "gbps"), [(2, 350.0), (4, 350.0), (8, 225.0)])
def test_shared_gpu_without_a_gpu_is_the_recorded_one(ranks: int, gbps: float) -> None:
    shared = Topology.shared_gpu(ranks=ranks)
    assert (shared.kind, shared.source, shared.gpu.model) == ("shared_gpu", "measured_shared_gpu", "H200")
    assert shared.link.gbps == pytest.approx(gbps)
    assert shared.sm_share * ranks <= shared.gpu.sms


def test_shared_gpu_describes_the_gpu_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "model_at_hand", lambda: "A100")
    shared = Topology.shared_gpu(ranks=4)
    assert (shared.gpu.model, shared.sm_share) == ("A100", 24)


def test_shared_worlds_that_cannot_be_met() -> None:
    with pytest.raises(TopologyError, match=r"at least 8 of the 132 SMs .*ranks=17; allowed worlds: 2 to 16"):
        Topology.shared_gpu(ranks=17)
    with pytest.raises(TopologyError, match=r"allowed worlds: 2 to 16"):
        Topology.shared_gpu(ranks=1)
    with pytest.raises(TopologyError, match=r"4xA100-NVLink has 4 GPUs; got: ranks=8; allowed worlds: 2, 3, 4"):
        Topology.scale_model("4xA100-NVLink", ranks=8)


def test_case_b8_virtual_ranks_are_part_of_what_a_topology_is() -> None:
    for shared in (Topology.shared_gpu(ranks=4), Topology.scale_model("8xH200-NVSwitch", ranks=4)):
        assert shared.with_ranks(4) == shared
        with pytest.raises(TopologyError, match=rf"a {shared.kind} topology is made for its ranks; .*make it with ranks=3"):
            shared.with_ranks(3)


def test_an_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(TopologyError, match=r"got: '8xH200'; did you mean '8xH200-NVSwitch'"):
        Topology.named("8xH200")


@given(st.floats(1, 1e4), st.floats(0, 100), st.text())
def test_a_digest_ignores_rates_and_names(gbps: float, latency_us: float, name: str) -> None:
    other = dataclasses.replace(with_link(H200, gbps=gbps, latency_us=latency_us), name=name)
    other = dataclasses.replace(other, gpu=dataclasses.replace(other.gpu, hbm_gbps=gbps, tflops=(("float16", gbps),)))
    assert other.digest == H200.digest


def test_a_digest_holds_structure() -> None:
    model = Topology.scale_model("8xH200-NVSwitch", ranks=4)
    different = [
        H200,
        with_link(H200, multicast=False),
        with_link(H200, kind="pcie"),
        dataclasses.replace(H200, gpu=dataclasses.replace(H200.gpu, model="H200_NVL")),
        dataclasses.replace(H200, gpu=dataclasses.replace(H200.gpu, smem_bytes=166912)),
        H200.with_ranks(4),
        H200.with_mesh({"dp": 2, "tp": 4}),
        H200.with_mesh({"dp": 4, "tp": 2}),
        Topology.shared_gpu(ranks=4),
        model,
        with_link(model, gbps=model.link.gbps / 2),
    ]
    assert len({topology.digest for topology in different}) == len(different)
    assert H200.with_mesh({"tp": 8}).digest == H200.digest
    assert H200.with_mesh({"a": 2, "b": 4}).digest == H200.with_mesh({"dp": 2, "tp": 4}).digest


def edited(tmp_path: Path, old: str, new: str) -> Path:
    text = (catalog.FOLDER / "8xH200-NVSwitch.toml").read_text()
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new))
    return path


def test_a_file_is_loaded(tmp_path: Path) -> None:
    loaded = Topology.load(edited(tmp_path, 'name = "8xH200-NVSwitch"', 'name = "mine"'))
    assert dataclasses.replace(loaded, name=H200.name) == H200


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("sms = 132", "smss = 132", ["gpu has only known keys", "smss", "did you mean 'sms'"]),
        ("sms = 132", 'sms = "132"', ["gpu.sms is an integer", "'132'"]),
        ("sms = 132", "sms = 100", ["the gpu level has gpu.sms units", "132, sms = 100"]),
        ("sms = 132", "sms = -1", ["gpu.sms is a positive number", "-1"]),
        ('arch = "sm_90a"', 'arch = "hopper"', ["gpu.arch is an architecture", "'hopper'", "sm_90a"]),
        ("ranks = 8", "ranks = 4", ["units of the node level", "4, 8"]),
        ("ranks = 8", "rank = 8", ["TopologyFile has only known keys", "did you mean 'ranks'"]),
        ("ranks = 8\n", "", ["has all its keys", "missing ranks"]),
        ("gbps = 375.0", "gbps = nan", ["link.gbps is a positive number", "nan"]),
        ('name = "warp"', 'name = "wrap"', ["a level is one of", "wrap"]),
        ('name = "warp"', 'name = "sm"', ["levels come in the order"]),
        (
            "peer_access = true\nmulticast = true",
            "peer_access = false\nmulticast = true",
            ["multicast needs peer access"],
        ),
        ("[gpu]", "[gpu", ["is TOML"]),
        ("bfloat16 = 700.0", "bfloat16 = 0.0", ["gpu.bfloat16 is a positive number"]),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    path = edited(tmp_path, old, new)
    with pytest.raises(TopologyError) as caught:
        Topology.load(path)
    for word in (str(path), *words):
        assert word in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"can be read; got: No such file"):
        Topology.load(tmp_path / "none.toml")


def test_case_b10_files_of_other_machines(tmp_path: Path) -> None:
    no_multicast = Topology.load(edited(tmp_path, "multicast = true", "multicast = false"))
    assert no_multicast.link.peer_access
    assert not no_multicast.link.multicast
    pair = tmp_path / "pair.toml"
    text = (catalog.FOLDER / "4xA100-NVLink.toml").read_text()
    pair.write_text(text.replace("ranks = 4", "ranks = 2").replace("units = 4", "units = 2"))
    assert Topology.load(pair).world == 2


def test_meshes() -> None:
    assert H200.with_mesh({"dp": 2, "tp": 4}).mesh_sizes == (2, 4)
    assert H200.mesh_sizes == (2, 4)
    assert H200.with_ranks(4).mesh_sizes == (2, 2)
    with pytest.raises(TopologyError, match=r"multiply to the ranks"):
        H200.with_mesh({"dp": 2, "tp": 2})
    with pytest.raises(TopologyError, match=r"a mesh is a DeviceMesh or"):
        H200.with_mesh(8)
    with pytest.raises(TopologyError, match=r"different names"):
        H200.with_mesh([("tp", 2), ("tp", 4)])


def test_a_torch_device_mesh_is_accepted() -> None:
    pytest.importorskip("torch")
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    try:
        ranks = [[0, 1, 2, 3], [4, 5, 6, 7]]
        named = DeviceMesh("cpu", ranks, mesh_dim_names=("dp", "tp"))
        assert H200.with_mesh(named).mesh == (("dp", 2), ("tp", 4))
        assert H200.with_mesh(DeviceMesh("cpu", ranks)).mesh == (("0", 2), ("1", 4))
    finally:
        dist.destroy_process_group()
