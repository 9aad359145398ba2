"""op: declarations, their counts, mesh axes, and the refusals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescale import canon
from tilescale.errors import SpecError, TopologyError
from tilescale.spec.op import Spec, linear, matmul, moe_combine, moe_dispatch, redistribute, shift
from tilescale.spec.tensor import Dim, Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import Block, FullCol, FullRow, Partial, Replicate, Shard, View

H200 = Topology.named("8xH200-NVSwitch")
T4 = Topology.named("8xH200-NVSwitch", ranks=4)
MODEL = Topology.scale_model("8xH200-NVSwitch", ranks=4)


def bf16(rows: int | Dim, cols: int | Dim, view: View, order: str = "row") -> Tensor:
    return Tensor((rows, cols), "bfloat16", view, order)


def test_ag_gemm_of_the_recipes() -> None:
    spec = matmul(bf16(4096, 8192, FullRow), bf16(8192, 10240, FullCol, "col"), out=FullCol, topology=MODEL)
    assert spec.op == "ag_gemm"
    assert spec.world == 4
    assert spec.kernels
    assert not spec.local
    assert spec.mnk == (4096, 10240, 8192)
    assert spec.output == bf16(4096, 10240, FullCol)
    assert spec.flops == 2 * 4096 * 2560 * 8192
    assert spec.link_bytes == 3 * 1024 * 8192 * 2
    assert spec.label == "ag_gemm 4096x10240x8192 bfloat16 w4"
    assert (spec.placement, spec.deterministic, spec.then, spec.attributes) == ("ordinary", False, (), ())


def test_linear_takes_w_as_torch_holds_it() -> None:
    x = bf16(512, 4096, FullRow)
    spec = linear(x, bf16(14336, 4096, Shard(0)), out=FullCol, topology=T4)
    assert spec == matmul(x, bf16(4096, 14336, FullCol, "col"), out=FullCol, topology=T4)
    assert linear(bf16(512, 4096, FullCol), bf16(64, 4096, Shard(1)), FullRow, T4).op == "gemm_rs"
    assert linear(x, bf16(64, 4096, Replicate, "col"), FullRow, T4).inputs[1] == bf16(4096, 64, Replicate, "row")
    assert linear(x, bf16(64, 4096, Shard(0)), FullCol, T4, then=["bias"]).then == ("bias",)


def test_real_torch_parameters_declare_the_same() -> None:
    torch = pytest.importorskip("torch")
    dtensor = pytest.importorskip("torch.distributed.tensor")
    layer = torch.nn.Linear(256, 512, bias=False, dtype=torch.bfloat16, device="meta")
    w = Tensor(layer.weight.shape, layer.weight.dtype, dtensor.Shard(0))
    spec = linear(Tensor((64, 256), torch.bfloat16, (dtensor.Shard(0),)), w, dtensor.Shard(-1), T4)  # type: ignore[arg-type]
    assert spec == linear(bf16(64, 256, FullRow), bf16(512, 256, FullRow), FullCol, T4)


# Bytes that a rank must receive and operations it does, for 16 x 16 bfloat16 on 4 ranks (512 bytes, 128 a shard).
COUNTS: list[tuple[str, Callable[[], Spec], int, int]] = [
    ("ag_gemm", lambda: matmul(bf16(16, 16, FullRow), bf16(16, 16, FullCol), FullCol, T4), 384, 2 * 16 * 4 * 16),
    ("gemm_rs", lambda: matmul(bf16(16, 16, FullCol), bf16(16, 16, FullRow), FullRow, T4), 384, 2 * 16 * 16 * 4),
    ("gemm_ar", lambda: matmul(bf16(16, 16, FullCol), bf16(16, 16, FullRow), Replicate, T4), 768, 2 * 16 * 16 * 4),
    ("gemm", lambda: matmul(bf16(16, 16, FullCol), bf16(16, 16, FullRow), Partial, T4), 0, 2 * 16 * 16 * 4),
    ("gemm", lambda: matmul(bf16(16, 16, Replicate), bf16(16, 16, Replicate), Replicate, T4), 0, 2 * 16**3),
    ("weight_gather_gemm", lambda: matmul(bf16(16, 16, FullRow), bf16(16, 16, FullRow), FullRow, T4), 384, 2048),
    ("ag_gemm_k", lambda: matmul(bf16(16, 16, FullCol), bf16(16, 16, FullCol), FullCol, T4), 384, 2048),
    ("summa", lambda: matmul(bf16(16, 16, Block), bf16(16, 16, Block), Block, T4), 2 * 8 * 8 * 2, 2 * 8 * 8 * 16),
    ("all_gather", lambda: redistribute(bf16(16, 16, FullRow), Replicate, T4), 384, 0),
    ("reduce_scatter", lambda: redistribute(bf16(16, 16, Partial), FullRow, T4), 384, 192),
    ("all_reduce", lambda: redistribute(bf16(16, 16, Partial), Replicate, T4), 768, 192),
    ("all_to_all", lambda: redistribute(bf16(16, 16, FullRow), FullCol, T4), 96, 0),
    ("broadcast", lambda: redistribute(bf16(16, 16, Replicate), Replicate, T4, root=3), 512, 0),
    ("shift", lambda: shift(bf16(16, 16, FullRow), -1, T4), 128, 0),
    ("moe_dispatch", lambda: moe_dispatch(bf16(16, 16, FullRow), 8, 2, T4), 192, 0),
]


@pytest.mark.parametrize(("op", "make", "link_bytes", "flops"), COUNTS)
def test_counts_of_one_rank(op: str, make: Callable[[], Spec], link_bytes: int, flops: int) -> None:
    spec = make()
    assert (spec.op, spec.link_bytes, spec.flops) == (op, link_bytes, flops)
    assert canon.loads(Spec, canon.dumps(spec)) == spec


def test_uneven_shards_count_for_the_rank_with_most() -> None:
    spec = matmul(bf16(10, 8, FullRow), bf16(8, 9, FullCol), FullCol, T4)  # rows 3 3 3 1, columns 3 3 3 0
    assert spec.link_bytes == 9 * 8 * 2
    assert spec.flops == 2 * 10 * 8 * 3


def test_out_dtypes() -> None:
    a, b = Tensor((16, 16), "float8_e4m3fn", FullRow), Tensor((16, 16), "float8_e5m2", FullCol)
    assert matmul(a, b, FullCol, T4).output.dtype == "bfloat16"
    assert matmul(bf16(16, 16, FullRow), bf16(16, 16, FullCol), FullCol, T4, out_dtype="float32").output.itemsize == 4
    i8 = Tensor((16, 16), "int8", Replicate)
    assert matmul(i8, i8, Replicate, T4).output.dtype == "int32"


def test_dims_are_bound_and_count_with_their_bound() -> None:
    tokens = Dim("M", 1, 4096)
    spec = matmul(bf16(tokens, 64, FullRow), bf16(64, 32, FullCol), FullCol, T4)
    assert spec.dims == (tokens,)
    assert spec.mnk == (4096, 32, 64)
    assert spec.label == "ag_gemm M<=4096x32x64 bfloat16 w4"
    assert spec.bind(M=16) == matmul(bf16(16, 64, FullRow), bf16(64, 32, FullCol), FullCol, T4)
    with pytest.raises(SpecError, match=r"is a Dim of the declaration; got: 'N'; known: M"):
        spec.bind(N=3)
    with pytest.raises(SpecError, match=r"one range"):
        matmul(bf16(tokens, 64, FullRow), bf16(64, Dim("M", 1, 8), FullCol), FullCol, T4)


@given(
    st.integers(1, 64),
    st.integers(1, 64),
    st.sampled_from([2, 3, 4, 8]),
    st.booleans(),
    st.sampled_from(["ordinary", "symmetric"]),
)
def test_specs_survive_canonical_json(m: int, n: int, ranks: int, fixed: bool, inputs: str) -> None:
    topology = Topology.named("8xH100-NVSwitch", ranks=ranks)
    spec = matmul(
        bf16(m, 8, FullRow), bf16(8, n, FullCol), FullCol, topology, deterministic=fixed, inputs=inputs, then=("bias",)
    )
    again = canon.loads(Spec, canon.dumps(spec))
    assert again == spec
    assert hash(again) == hash(spec)
    assert again.digest == spec.digest


def test_a_digest_is_of_the_work_and_the_structure() -> None:
    a, b = bf16(16, 16, FullRow), bf16(16, 16, FullCol)
    spec = matmul(a, b, FullCol, T4)
    renamed = dataclasses.replace(T4, name="other")
    assert matmul(a, b, FullCol, renamed).digest == spec.digest
    assert matmul(a, bf16(16, 16, Shard(1)), FullCol, T4).digest == spec.digest
    others = [
        matmul(a, bf16(16, 16, FullCol, "col"), FullCol, T4),
        matmul(a, b, FullCol, H200),
        matmul(a, b, FullCol, MODEL),
        matmul(a, b, FullCol, T4, inputs="symmetric"),
        matmul(a, b, FullCol, T4, deterministic=True),
        matmul(a, b, FullCol, T4, out_dtype="float32"),
        matmul(a, b, FullCol, T4, then=["bias"]),
    ]
    assert len({spec.digest, *(other.digest for other in others)}) == len(others) + 1


def test_a_declaration_on_a_mesh_axis_is_about_its_ranks() -> None:
    mesh = H200.with_mesh({"dp": 2, "tp": 4})
    tp = matmul(bf16(16, 16, FullRow.on("tp")), bf16(16, 16, FullCol.on("tp")), FullCol.on("tp"), mesh)
    assert tp == matmul(bf16(16, 16, FullRow), bf16(16, 16, FullCol), FullCol, H200.with_ranks(4))
    dp = redistribute(bf16(16, 16, FullRow.on("dp")), Replicate, mesh)
    assert dp.world == 2
    assert dp.topology.mesh == ()
    assert redistribute(bf16(16, 16, FullRow.on("1")), Replicate, mesh).world == 4
    assert redistribute(bf16(16, 16, FullRow), Replicate, H200.with_mesh({"tp": 8})).world == 8
    assert redistribute(bf16(16, 16, FullRow.on("tp")), Replicate, H200).world == 8
    assert matmul(bf16(16, 16, Block), bf16(16, 16, Block), Block, mesh).link_bytes == 8 * 12 * 2 + 8 * 4 * 2


def test_a_device_mesh_means_the_gpus_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    class DeviceMesh:
        shape = (2, 4)
        mesh_dim_names = ("dp", "tp")

        def size(self) -> int:
            return 8

    monkeypatch.setattr(Topology, "detect", classmethod(lambda cls: H200))
    spec = redistribute(bf16(16, 16, FullRow.on("tp")), Replicate, DeviceMesh())
    assert spec == redistribute(bf16(16, 16, FullRow), Replicate, H200.with_ranks(4))


def test_case_b7_a_mesh_of_some_ranks_in_any_order_is_about_their_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    class Places:
        def __init__(self, *ranks: int) -> None:
            self.ranks = ranks

        def flatten(self) -> Places:
            return self

        def tolist(self) -> list[int]:
            return list(self.ranks)

    class DeviceMesh:
        mesh_dim_names = ("tp",)

        def __init__(self, *ranks: int) -> None:
            self.mesh, self.shape = Places(*ranks), (len(ranks),)

        def size(self) -> int:
            return self.shape[0]

    asked: list[object] = []

    def detect(cls: type[Topology], ranks: list[int] | None = None) -> Topology:
        asked.append(ranks)
        return H200 if ranks is None else H200.with_ranks(len(ranks))

    monkeypatch.setattr(Topology, "detect", classmethod(detect))
    x = bf16(24, 16, FullRow)
    assert redistribute(x, Replicate, DeviceMesh(2, 0, 1)) == redistribute(x, Replicate, H200.with_ranks(3))
    assert redistribute(x, Replicate, DeviceMesh(*range(8))).world == 8
    assert asked == [None, [2, 0, 1], None]
    with pytest.raises(TopologyError, match=r"every rank once; got: \[0, 1, 1\]"):
        redistribute(x, Replicate, DeviceMesh(0, 1, 1))


def test_transposes_on_the_way() -> None:
    qkv = Tensor((64, 8, 4), "bfloat16", Shard(0))  # sequence, heads, width -> heads, sequence, width
    spec = redistribute(qkv, Shard(0), T4, transpose=(1, 0, 2))
    assert spec.op == "all_to_all"
    assert spec.output.shape == (8, 64, 4)
    assert spec.attributes == (("transpose", "1,0,2"),)
    assert spec.link_bytes == 48 * 2 * 4 * 2
    with pytest.raises(SpecError, match=r"shards another dimension afterwards"):
        redistribute(qkv, Shard(1), T4, transpose=(1, 0, 2))
    with pytest.raises(SpecError, match=r"a permutation of 0..2"):
        redistribute(qkv, Shard(1), T4, transpose=(1, 1, 2))
    with pytest.raises(SpecError, match=r"transpose goes with"):
        redistribute(qkv, Replicate, T4, transpose=(1, 0, 2))


def test_kernels_have_limits_that_are_stated() -> None:
    assert "first" in redistribute(bf16(16, 16, FullCol), Replicate, T4).without_kernels
    assert "order" in matmul(bf16(16, 16, FullRow, "col"), bf16(16, 16, FullCol), FullCol, T4).without_kernels
    i8 = Tensor((16, 16), "int8", Replicate)
    then = matmul(i8, i8, Replicate, T4, then=["gelu"])
    assert "epilogues end in bfloat16" in then.without_kernels
    for m, n in ((13, 16), (16, 18)):  # shards that differ have no kernels, where nothing is sent
        a, b, out = (FullRow, Replicate, FullRow) if m % 4 else (Replicate, FullCol, FullCol)
        assert "pad to sizes that the ranks divide" in matmul(bf16(m, 16, a), bf16(16, n, b), out, T4).without_kernels
    with pytest.raises(SpecError, match=r"gemm has kernels for this declaration.*apply them with torch"):
        then.require_kernels()


A, B = bf16(16, 16, FullRow), bf16(16, 16, FullCol)
ONE = Topology.named("8xH200-NVSwitch", ranks=1)
WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: matmul(A, B, FullRow, T4), "with these inputs the output may be FullCol (ag_gemm)"),
    (lambda: matmul(A, B, "FulCol", T4), "did you mean 'FullCol'"),
    (lambda: matmul(bf16(16, 8, FullRow), B, FullCol, T4), "got: A 16x8, B 16x16; give B as (K, N), or use linear"),
    (lambda: matmul(A, Tensor((16, 16), "float16", FullCol), FullCol, T4), "A and B have one dtype"),
    (lambda: matmul(Tensor((16, 16), "int32"), Tensor((16, 16), "int32"), Replicate, T4), "can be multiplied"),
    (lambda: matmul(Tensor((2, 16, 16), "bfloat16"), B, FullCol, T4), "A is a matrix; got: 2x16x16"),
    (lambda: matmul([A, A], B, FullCol, T4), "A is a Tensor; got: list; declare one operation for each"),  # type: ignore[arg-type]
    (lambda: matmul(A, [B], FullCol, T4), "several B are at least two; got: 1"),
    (lambda: matmul(A, (B, bf16(16, 18, FullCol)), FullCol, T4), "as many columns on every rank; got: 16x18"),
    (lambda: matmul(A, (B, Tensor((16, 16), "bfloat16", FullCol, "col")), FullCol, T4), "differ in their columns alone"),
    (lambda: matmul(A, (bf16(16, 64, FullCol),) * 2, FullCol, T4, then=["swiglu"]), "keep their columns"),
    (lambda: matmul(bf16(16, 16, FullRow), (bf16(16, 16, Replicate),) * 2, FullRow, T4), "several B go with ag_gemm"),
    (lambda: matmul(bf16(16, 16, FullCol), bf16(16, 16, FullRow), FullRow, T4, gathered=True), "goes with ag_gemm"),
    (lambda: matmul(A, B, FullCol, T4, gathered=1), "gathered is True or False"),  # type: ignore[arg-type]
    (lambda: matmul(A, B, FullCol, T4, inputs="symetric"), 'inputs is "ordinary" or "symmetric"'),
    (lambda: matmul(A, B, FullCol, T4, out_dtype="bf16"), "a dtype is known"),
    (lambda: matmul(A, B, FullCol, T4, then=["swiglou"]), "did you mean 'swiglu'"),
    (lambda: matmul(A, B, FullCol, T4, then="gelu"), "write then=['gelu']"),
    (lambda: matmul(A, B, FullCol, T4, then=[["bias"]]), "names; got: [['bias']]; such as"),  # type: ignore[list-item]
    (lambda: redistribute(A, Replicate, T4, then=3), "then is a sequence of epilogue names; got: 3"),  # type: ignore[arg-type]
    (lambda: redistribute(A, FullCol, T4, transpose=1), "0..1; got: 1; for example (1, 0)"),  # type: ignore[arg-type]
    (lambda: redistribute(A, FullCol, T4, transpose=(True, False)), "0..1; got: (True, False)"),
    (lambda: matmul(A, B, FullCol, T4, deterministic=1), "deterministic is True or False"),  # type: ignore[arg-type]
    (lambda: matmul(A, B, FullCol, "8xH200-NVSwitch"), "topology is a Topology or a DeviceMesh"),
    (lambda: matmul(A, B, FullCol, ONE), "between at least two ranks; got: 1 rank of 8xH200-NVSwitch"),
    (
        lambda: matmul(bf16(16, 16, Block), bf16(16, 16, Block), Block, H200, algorithm="cannon"),
        "square mesh; got: 2 x 4",
    ),
    (lambda: matmul(bf16(16, 16, Block), bf16(16, 16, Block), Block, T4, algorithm="fox"), "summa or cannon"),
    (lambda: matmul(bf16(16, 16, FullCol), bf16(16, 16, FullRow), Replicate, T4, algorithm="one_shot"), "summa or cannon"),
    (lambda: matmul(bf16(16, 16, Block), bf16(16, 16, Block), Block, H200.with_ranks(3)), "2-D mesh; got: 1 x 3"),
    (lambda: linear(A, bf16(16, 16, Block), FullCol, T4), "w of a linear is not a Block"),
    (lambda: redistribute(A, FullRow, T4), "this needs no communication: use the tensor as it is"),
    (lambda: redistribute(bf16(16, 16, Replicate), FullRow, T4), "slice the local tensor"),
    (lambda: redistribute(A, Partial, T4), "got: FullRow -> Partial; with these inputs the output may be Replicate"),
    (lambda: redistribute(A, Replicate, T4, out_dtype="float32"), "keeps the dtype"),
    (lambda: redistribute(bf16(16, 16, Replicate), Replicate, T4, root=4), "use 0 to 3"),
    (lambda: shift(A, 4, T4), "no multiple of the world; got: k=4, world 4"),
    (lambda: shift(bf16(15, 16, FullRow), 1, T4), "even shards; got: 15 over 4"),
    (lambda: moe_dispatch(A, 6, 2, T4), "experts lie evenly on the ranks; got: 6 over 4"),
    (lambda: moe_dispatch(A, 8, 9, T4), "top_k=9, experts=8; use 1 to 8"),
    (lambda: moe_dispatch(A, 8, 0, T4), "top_k is a positive integer"),
    (lambda: moe_dispatch(A, 8, 2, T4, routing="skewed"), "routing is uniform, histogram:WEIGHTS or trace:FILE#DIGEST"),
    (lambda: moe_dispatch(A, 8, 2, T4, routing="histogram:1,2"), "a weight for every expert"),
    (lambda: moe_dispatch(A, 8, 2, T4, routing="histogram:a"), "weights of a histogram are integers"),
    (lambda: moe_combine(A, 16, 8, 2, T4), "room for the rows of all tokens"),
    (lambda: moe_dispatch(bf16(Dim("M", 1, 16), 16, FullRow), 8, 2, T4), "declare the most tokens"),
    (lambda: redistribute(bf16(16, 16, FullRow), Replicate, H200.with_mesh({"dp": 2, "tp": 4})), "use view.on(axis)"),
    (lambda: redistribute(bf16(16, 16, FullRow.on("pp")), Replicate, H200.with_mesh({"tp": 8})), "axis of the mesh"),
    (lambda: matmul(bf16(16, 16, FullRow.on("tp")), B, FullCol, T4), "add .on('tp')"),
    (
        lambda: matmul(bf16(16, 16, FullRow.on("a")), bf16(16, 16, FullCol.on("b")), FullCol.on("a"), T4),
        "one mesh axis",
    ),
    (
        lambda: redistribute(bf16(16, 16, FullRow.on("a")), Replicate, MODEL.with_mesh({"a": 2, "b": 2})),
        "make the topology with ranks=2",
    ),
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_declaration_that_cannot_be_met_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        make()
    assert message in str(caught.value)
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


def test_a_mesh_that_does_not_fit_the_machine_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"multiply to the ranks"):
        T4.with_mesh({"dp": 2, "tp": 4})


def test_what_is_gathered_is_a_second_output_by_an_attribute() -> None:
    spec, usual = matmul(A, B, FullCol, T4, gathered=True), matmul(A, B, FullCol, T4)
    assert usual.outputs == (("out", usual.output),)
    assert spec.outputs == (("out", usual.output), ("gathered", A.with_view(Replicate)))
    assert spec.attributes == (("gathered", 1),)
    assert spec.digest != usual.digest
    assert dataclasses.replace(spec, attributes=()) == usual


def test_several_b_are_one_tensor_and_an_attribute() -> None:
    spec = matmul(A, (B, bf16(16, 8, FullCol)), FullCol, T4)
    assert spec.inputs[1] == bf16(16, 24, FullCol)
    assert spec.output.shape == (16, 24)
    assert spec.attributes == (("columns", "16,8"),)
    assert spec.columns == (4, 2)
    assert matmul(A, B, FullCol, T4).columns == ()
    assert dataclasses.replace(spec, attributes=()) == matmul(A, bf16(16, 24, FullCol), FullCol, T4)
