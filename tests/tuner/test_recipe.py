"""tilescale.tuner.recipe: the shipped recipes, and one message for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilescale.errors import RecipeError, SpecError, TilescaleError, TopologyError
from tilescale.schedules.space import Space
from tilescale.tuner.recipe import Tuning, read

ROOT = Path(__file__).parents[2] / "recipes"
SHIPPED = sorted(path for folder in ("ag_gemm", "all_gather") for path in (ROOT / folder).glob("*.toml"))

TOPOLOGY = '[topology]\nkind = "scale_model"\nname = "8xH200-NVSwitch"\nranks = 4\n'
WORKLOAD = """[[workload]]
name = "up"
op = "ag_gemm"
a = { shape = [512, 4096], dtype = "bfloat16", view = "FullRow" }
b = { shape = [4096, 14336], dtype = "bfloat16", view = "FullCol", order = "col" }
out = "FullCol"
"""
GATHER = """[[workload]]
name = "gather"
x = { shape = [512, 4096], dtype = "bfloat16", view = "FullRow" }
to = "Replicate"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_recipes_declare_workloads_with_schedules(path: Path) -> None:
    recipe = read(path)
    assert recipe.title
    assert recipe.workloads
    for spec in recipe.specs.values():
        assert spec.op == path.parent.name
        assert Space(spec).feasible > 0


def test_everything_a_recipe_may_say(tmp_path: Path) -> None:
    path = write(tmp_path, TOPOLOGY + WORKLOAD + 'inputs = "symmetric"\ndeterministic = true\nout_dtype = "float32"\n' + """
[[workload]]
x = { shape = [512, 4096], dtype = "float16", view = "FullRow" }
w = { shape = [14336, 4096], dtype = "float16", view = "FullRow" }
out = "FullCol"
""" + GATHER + """
[space]
transport = ["tma"]
num_stages = [3, 4]
[tune]
trials = 12
seconds = 1.5
seed = 3
strategy = "random"
[export]
dir = "out/bundle"
""")
    recipe = read(path)
    assert list(recipe.specs) == ["up", "workload1", "gather"]
    up, linear, gather = recipe.specs.values()
    assert (up.op, up.placement, up.deterministic, up.output.dtype) == ("ag_gemm", "symmetric", True, "float32")
    assert (linear.op, linear.inputs[1].order, linear.mnk) == ("ag_gemm", "col", (512, 14336, 4096))
    assert gather.op == "all_gather"
    assert recipe.restrict == (("transport", ("tma",)), ("num_stages", (3, 4)))
    assert recipe.tuning == Tuning(12, 1.5, 3, "random")
    assert recipe.export == tmp_path / "out" / "bundle"
    assert recipe.title == "recipe"


def test_a_recipe_may_allow_rounded_partials(tmp_path: Path) -> None:
    recipe = read(write(tmp_path, TOPOLOGY + """
[[workload]]
x = { shape = [512, 14336], dtype = "bfloat16", view = "FullCol" }
w = { shape = [4096, 14336], dtype = "bfloat16", view = "FullCol" }
out = "FullRow"
partial_dtype = "bfloat16"
"""))
    (spec,) = recipe.specs.values()
    assert (spec.op, spec.attributes) == ("gemm_rs", (("partial_dtype", "bfloat16"),))


def test_a_topology_file_is_relative_to_the_recipe(tmp_path: Path) -> None:
    from tilescale.spec import catalog

    (tmp_path / "mine.toml").write_text((catalog.FOLDER / "4xPCIe.toml").read_text())
    recipe = read(write(tmp_path, '[topology]\nfile = "mine.toml"\nranks = 2\n' + WORKLOAD))
    assert (recipe.spec("up").topology.name, recipe.spec("up").world) == ("4xPCIe", 2)


# What is wrong, the text to put in place of another, and what the message must say.
MISTAKES = [
    ("top key", "[[workload]]", "[[workloads]]", RecipeError, "'workloads'; did you mean 'workload'?"),
    ("tensor key", "dtype = ", "dtpye = ", RecipeError, "workload 'up': a: a tensor has only known keys; got: 'dtpye'"),
    ("workload key", 'out = "FullCol"', 'outt = "FullCol"', RecipeError, "'outt'; did you mean 'out'?"),
    ("view", '"FullRow"', '"FulRow"', SpecError, "workload 'up': a: a view is known; got: 'FulRow'; did you mean 'Ful"),
    ("dtype", '"bfloat16", view = "FullRow"', '"bfloat61", view = "FullRow"', SpecError, "did you mean 'bfloat16'?"),
    ("shape", "[512, 4096]", "[512, 4095]", SpecError, "the contraction sizes match: A (M, K), B (K, N); got: A 512x4095"),
    ("size", "[512, 4096]", "[-1, 4096]", SpecError, "a size is an integer from 0 up or a Dim; got: -1"),
    ("shape type", "[512, 4096]", '"512x4096"', SpecError, "a shape is a sequence of integers"),
    ("order", 'order = "col"', 'order = "column"', SpecError, "got: 'column'"),
    ("views", 'out = "FullCol"', 'out = "Replicate"', SpecError, "with these inputs the output may be FullCol (ag_gemm)"),
    ("op", 'op = "ag_gemm"', 'op = "gemm_rs"', RecipeError, "got: op = 'gemm_rs', the views say 'ag_gemm'"),
    ("op typo", 'op = "ag_gemm"', 'op = "ag_gem"', RecipeError, "op is known; got: 'ag_gem'; did you mean 'ag_gemm'?"),
    ("op kind", 'op = "ag_gemm"', 'op = 3', RecipeError, "op is known; got: 3; known: ag_gemm"),
    ("zero ranks", "ranks = 4", "ranks = 0", RecipeError, "[topology] ranks is an integer from 1; got: 0; for example"),
    ("ranks text", "ranks = 4", 'ranks = "4"', RecipeError, "[topology] ranks is an integer from 1; got: '4'"),
    ("missing", 'out = "FullCol"\n', "", RecipeError, "a matmul workload has all its keys; got: no out"),
    ("kind", '"scale_model"', '"scaled"', RecipeError, "did you mean 'scale_model'?"),
    ("machine", "8xH200-NVSwitch", "8xH200", TopologyError, "did you mean '8xH200-NVSwitch'?"),
    ("ranks", "ranks = 4", "ranks = 9", TopologyError, "got: ranks=9; allowed worlds: 2, 3"),
    ("no ranks", "ranks = 4\n", "", RecipeError, "[topology] of kind scale_model has ranks; got: no ranks"),
    ("no topology", TOPOLOGY, "", RecipeError, "[topology] is a table; got: nothing; add [topology]"),
    ("no workload", WORKLOAD, "", RecipeError, "a recipe has [[workload]] tables; got: none"),
    ("knob", WORKLOAD, WORKLOAD + "[space]\ntransprt = [1]\n", RecipeError, "did you mean 'transport'?"),
    ("knob value", WORKLOAD, WORKLOAD + "[space]\nblock_m = [96]\n", RecipeError,
     "block_m is one of 8, 16, 32, 64, 128, 256; got: 96"),
    ("knob list", WORKLOAD, WORKLOAD + "[space]\nblock_m = 64\n", RecipeError, "gives each knob a list of values"),
    ("tune key", WORKLOAD, WORKLOAD + "[tune]\ntrial = 5\n", RecipeError, "did you mean 'trials'?"),
    ("trials", WORKLOAD, WORKLOAD + "[tune]\ntrials = 0\n", RecipeError, "[tune] trials is an integer from 1; got: 0"),
    ("seconds", WORKLOAD, WORKLOAD + '[tune]\nseconds = "1"\n', RecipeError, "[tune] seconds is a positive number"),
    ("strategy", WORKLOAD, WORKLOAD + '[tune]\nstrategy = "modle"\n', RecipeError, "did you mean 'model'?"),
    ("export", WORKLOAD, WORKLOAD + "[export]\ndir = 3\n", RecipeError, "[export] dir is a non-empty text; got: 3"),
    ("twice", WORKLOAD, WORKLOAD + WORKLOAD, RecipeError, "names of workloads are different; got: 'up'"),
    ("syntax", "[topology]", "[topology", RecipeError, "is TOML"),
]


X = 'x = { shape = [512, 4096], dtype = "bfloat16", view = "FullRow" }'
ALONE = [
    ('op = "all_gather"', "a redistribute workload has all its keys; got: no to; give x, to; it may have transpose, root"),
    ('op = "shift"', "a shift workload has all its keys; got: no k; give x, k"),
    ('op = "ag_gemm"', "a workload has all the keys of a declaration; got: x; linear: x, w, out; redistribute: x, to; sh"),
    ("", "a workload has all the keys of a declaration; got: x; linear: x, w, out; redistribute: x, to; shift: x, k"),
    ('op = "all_gather"\ntoo = "Replicate"', "a redistribute workload has only known keys; got: 'too'; did you mean 'to'?"),
]


@pytest.mark.parametrize(("more", "says"), ALONE, ids=[case[0] for case in ALONE])
def test_what_is_missing_is_that_of_the_operation(tmp_path: Path, more: str, says: str) -> None:
    path = write(tmp_path, f'{TOPOLOGY}\n[[workload]]\nname = "w"\n{more}\n{X}\n')
    with pytest.raises(RecipeError) as caught:
        read(path)
    assert says in str(caught.value)


@pytest.mark.parametrize(("old", "new", "kind", "says"), [c[1:] for c in MISTAKES], ids=[c[0] for c in MISTAKES])
def test_a_mistake_is_one_message_with_the_file(
    tmp_path: Path, old: str, new: str, kind: type[TilescaleError], says: str
) -> None:
    good = TOPOLOGY + WORKLOAD
    assert old in good
    path = write(tmp_path, good.replace(old, new, 1))
    with pytest.raises(TilescaleError) as caught:
        read(path)
    message = str(caught.value)
    assert type(caught.value) is kind
    assert message.startswith(f"recipe {path}")
    assert says in message
    assert "\n" not in message


def test_a_missing_file_and_an_unknown_workload() -> None:
    with pytest.raises(RecipeError, match="No such file"):
        read("nowhere.toml")
    with pytest.raises(RecipeError, match="did you mean 'attn_qkv_4096'"):
        read(ROOT / "ag_gemm" / "llama-3-70b.toml").spec("attn_qkv")
