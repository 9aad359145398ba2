"""tilescale.tuner.models: layers of public models as workloads."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import topology

from tilescale.errors import RecipeError
from tilescale.tuner.models import names, read_model

FOLDER = Path(__file__).parents[2] / "recipes" / "models"


@pytest.mark.parametrize("name", names(FOLDER))
def test_every_model_has_layers_with_kernels(name: str) -> None:
    recipe, skipped = read_model(name, topology(8), 4096, where=FOLDER)
    for spec in recipe.specs.values():
        assert (spec.world, spec.mnk[0]) == (8, 4096)
    assert {spec.op for spec in recipe.specs.values()} <= {"ag_gemm", "gemm_rs", "gemm_ar"}
    assert not skipped


def test_a_layer_has_the_sizes_of_the_file() -> None:
    recipe, skipped = read_model("llama-3-70b", topology(8), 512, "float16", FOLDER)
    up = recipe.spec("mlp_up")
    assert (up.mnk, up.inputs[0].dtype, up.inputs[1].order) == ((512, 28672, 8192), "float16", "col")
    assert (recipe.spec("mlp_down").mnk, skipped) == ((512, 8192, 28672), {})


@pytest.mark.parametrize(("old", "new", "says"), [
    ("layer = ", "layr = ", "did you mean 'layer'?"),
    ("N = 8\n", "", "no N"),
    ('"ag_gemm"', '"ag_gem"', "did you mean 'ag_gemm'?"),
    ("K = 16", "K = [", "is TOML"),
])
def test_mistakes(tmp_path: Path, old: str, new: str, says: str) -> None:
    good = 'title = "Tiny"\n[[layer]]\nlayer = "up"\nop = "ag_gemm"\nN = 8\nK = 16\n'
    (tmp_path / "tiny.toml").write_text(good.replace(old, new))
    with pytest.raises(RecipeError) as caught:
        read_model("tiny", topology(2), 4, where=tmp_path)
    assert says in str(caught.value)


def test_an_unknown_model_is_refused_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'llama-3-70b'"):
        read_model("llama3-70b", topology(8), 4096, where=FOLDER)
