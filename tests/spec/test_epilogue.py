"""Epilogues: what they ask for beside the inputs, where they apply, and what they are on numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilescale.errors import SpecError
from tilescale.runtime.reference import NumpyArrays
from tilescale.spec.epilogue import EPILOGUES, Epilogue
from tilescale.spec.epilogues.swiglu import interleaved
from tilescale.spec.op import Spec, matmul, redistribute
from tilescale.spec.tensor import Tensor
from tilescale.spec.topology import Topology
from tilescale.spec.views import Block, FullCol, FullRow, Partial, Replicate, Shard, View

T4 = Topology.named("8xH200-NVSwitch", ranks=4)
MATH = NumpyArrays()
RANDOM = np.random.default_rng(0)


def bf16(view: View, columns: int = 256) -> Tensor:
    return Tensor((256, columns), "bfloat16", view)


def product(a: View, b: View, out: View, *then: str, columns: int = 256) -> Spec:
    return matmul(bf16(a), bf16(b, columns), out, T4, then=then)


def test_every_epilogue_lives_in_the_file_of_its_name() -> None:
    for epilogue in EPILOGUES:
        assert epilogue.apply.__module__ == f"tilescale.spec.epilogues.{epilogue.name}"


def test_extra_operands_follow_the_inputs_and_lie_as_the_output_does() -> None:
    spec = product(FullRow, FullCol, FullCol, "bias", "accumulate")
    assert [operand.name for operand in spec.operands] == ["a", "b", "bias", "addend"]
    bias, addend = spec.extras
    assert bias.tensor == Tensor((256,), "bfloat16", Shard(0))
    assert bias.tensor.local_shape(1, 4) == (64,)
    assert (addend.tensor, addend.rows) == (spec.output, True)
    assert product(FullCol, FullRow, FullRow, "bias").extras[0].tensor.view == Replicate
    residual, gamma = product(FullCol, FullRow, FullRow, "residual_rmsnorm").extras
    assert (residual.tensor.view, residual.rows, gamma.tensor.shape) == (FullRow, True, (256,))
    summed = redistribute(bf16(Partial), Replicate, T4, then=["bias"])
    assert [operand.name for operand in summed.operands] == ["a", "bias"]
    assert product(FullRow, FullCol, FullCol).extras == ()
    assert spec.label == "ag_gemm+bias+accumulate 256x256x256 bfloat16 w4"


def test_a_sum_may_be_returned_beside_its_norm() -> None:
    spec, alone = (product(FullCol, FullRow, FullRow, name) for name in ("add_rmsnorm", "residual_rmsnorm"))
    assert spec.outputs == (("out", spec.output), ("added", spec.output))
    assert alone.outputs == (("out", alone.output),)
    assert spec.extras == alone.extras
    assert spec.attributes == ()
    x, extras = RANDOM.standard_normal((4, 24)), [RANDOM.standard_normal((4, 24)), RANDOM.standard_normal(24)]
    one, other = EPILOGUES["add_rmsnorm"], EPILOGUES["residual_rmsnorm"]
    assert (one.apply(MATH, x, extras) == other.apply(MATH, x, extras)).all()
    assert one.aside is not None
    assert (one.aside.apply(MATH, x, extras) == x + extras[0]).all()
    assert (one.aside.room(MATH, x, 0.5, extras) >= 0.5).all()


def test_swiglu_halves_the_columns() -> None:
    spec = product(FullRow, FullCol, FullCol, "bias", "swiglu", columns=512)
    assert spec.output.shape == (256, 256)
    assert spec.extras[0].tensor.shape == (512,)


def test_gate_and_up_are_joined_eight_columns_in_turn() -> None:
    gate, up = RANDOM.standard_normal((4, 24)), RANDOM.standard_normal((4, 24))
    joined = interleaved(gate, up)
    assert joined.shape == (4, 48)
    assert (joined[:, :8] == gate[:, :8]).all()
    assert (joined[:, 8:16] == up[:, :8]).all()
    assert (joined[:, 40:] == up[:, 16:]).all()
    found = EPILOGUES["swiglu"].apply(MATH, joined, [])
    assert np.abs(found - gate / (1 + np.exp(-gate)) * up).max() < 1e-12
    torch = pytest.importorskip("torch")
    assert (interleaved(torch.tensor(gate), torch.tensor(up)).numpy() == joined).all()
    with pytest.raises(SpecError, match="multiple of 8 columns"):
        interleaved(gate[:, :12], up[:, :12])


WRONG: list[tuple[Callable[[], Spec], str]] = [
    (lambda: product(FullRow, FullCol, FullCol, "bias", "bias"), "an epilogue is named once"),
    (lambda: product(FullCol, FullRow, Partial, "bias"), "sum first: declare the output Replicate or FullRow"),
    (lambda: product(Block, Block, Block, "silu"), "output Block"),
    (lambda: redistribute(bf16(FullRow), Replicate, T4, then=["silu"]), "follows a product or a sum over ranks"),
    (lambda: product(FullCol, FullRow, FullRow, "swiglu"), "complete on its rank"),
    (lambda: product(FullRow, FullCol, FullCol, "swiglu", "bias"), "swiglu is the last epilogue"),
    (lambda: product(FullRow, FullCol, FullCol, "swiglu", columns=32), "whole blocks of 8 columns"),
    (lambda: product(FullRow, FullCol, FullCol, "residual_rmsnorm"), "follows a sum over ranks"),
    (lambda: product(FullCol, FullRow, Replicate, "residual_rmsnorm", "silu"), "the only epilogue"),
    (lambda: product(FullRow, FullCol, FullCol, "add_rmsnorm"), "add_rmsnorm follows a sum over ranks"),
    (lambda: product(FullCol, FullRow, Replicate, "add_rmsnorm", "bias"), "add_rmsnorm is the only epilogue"),
    (lambda: redistribute(Tensor((4, 16, 8), "float32", Partial), Replicate, T4, then=["residual_rmsnorm"]),
     "whole rows of a matrix"),
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[message for _, message in WRONG])
def test_an_epilogue_that_does_not_apply_is_refused(make: Callable[[], Spec], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        make()
    assert message in str(caught.value)


def test_a_sum_that_stays_partial_may_be_accumulated() -> None:
    spec = product(FullCol, FullRow, Partial, "accumulate")
    assert spec.kernels
    assert spec.extras[0].tensor.view == Partial


def _extras(epilogue: Epilogue, x: np.ndarray) -> list[np.ndarray]:
    wide = RANDOM.standard_normal(x.shape)
    count = {"bias": [wide[0]], "accumulate": [wide], "residual_rmsnorm": [wide, wide[0]],
             "add_rmsnorm": [wide, wide[0]]}
    return count.get(epilogue.name, [])


@pytest.mark.parametrize("name", EPILOGUES.names())
def test_a_bound_holds_for_what_was_off_before(name: str) -> None:
    """A value off by as much as allowed gives results off by no more than the bound says, and the bound is not idle."""
    epilogue = EPILOGUES[name]
    x = RANDOM.standard_normal((64, 128)) * RANDOM.choice([0.1, 1.0, 8.0], (64, 1))
    extras = _extras(epilogue, x)
    value = epilogue.apply(MATH, x, extras)
    for size in (1e-6, 1e-2, 0.1):
        room = epilogue.room(MATH, x, np.full(x.shape, size), extras)
        assert room.shape == value.shape
        off = x + size * RANDOM.choice([-1.0, 1.0], x.shape)
        found = np.abs(epilogue.apply(MATH, off, extras) - value)
        assert (found <= room).all()
        assert size < 1e-3 or found.max() > 0.02 * room.max()


@pytest.mark.parametrize("name", EPILOGUES.names())
def test_a_bound_holds_for_fp32(name: str) -> None:
    """What numpy computes in fp32 with another order of operations is within the bound for fp32."""
    epilogue = EPILOGUES[name]
    x = (RANDOM.standard_normal((64, 128)) * 4).astype(np.float32)
    extras = [extra.astype(np.float32) for extra in _extras(epilogue, x)]
    wide, own = x.astype(np.float64), [extra.astype(np.float64) for extra in extras]
    found = epilogue.apply(MATH, x, extras).astype(np.float64)
    room = epilogue.room(MATH, wide, np.zeros(x.shape), own)
    assert (np.abs(found - epilogue.apply(MATH, wide, own)) <= room).all()


def test_activations_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    x = torch.linspace(-20, 20, 4001, dtype=torch.float64)
    functions = torch.nn.functional
    for name, wanted in (("silu", functions.silu(x)), ("gelu", functions.gelu(x))):
        assert np.abs(EPILOGUES[name].apply(MATH, x.numpy(), []) - wanted.numpy()).max() < 1e-12
    y, gamma = torch.randn(8, 64, dtype=torch.float64), torch.randn(64, dtype=torch.float64)
    found = EPILOGUES["residual_rmsnorm"].apply(MATH, y.numpy(), [np.zeros((8, 64)), gamma.numpy()])
    assert np.abs(found - functions.rms_norm(y, (64,), gamma, 2.0**-20).numpy()).max() < 1e-12
