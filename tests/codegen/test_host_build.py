"""Building for the host: cache, errors, concurrent builders, layouts."""

from __future__ import annotations

import ctypes
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tilescale.codegen.host import build
from tilescale.codegen.table import ARGUMENTS, BLOCK, STATE, STEP
from tilescale.errors import CompileError, EmulationError, MissingDependency

TEXT = """
#include "primitives.hpp"
extern "C" u64 size_of(int what) {
  using namespace ts;
  const u64 sizes[] = {sizeof(Arguments), sizeof(Step), sizeof(Block), sizeof(State), sizeof(TensorMap)};
  return sizes[what];
}
extern "C" u32 fp16(float value) { return ts::pack1<ts::Fp16>(value); }
extern "C" u32 bf16(float value) { return ts::pack2<ts::Bf16>(0.f, value) >> 16; }
"""


@pytest.fixture(scope="module")
def helpers() -> ctypes.CDLL:
    ctypes.CDLL(str(build.build_runtime()))
    library = ctypes.CDLL(str(build.build_candidate(TEXT)))
    library.size_of.restype = ctypes.c_uint64
    for name in ("fp16", "bf16"):
        getattr(library, name).argtypes = [ctypes.c_float]
    return library


def test_layouts_match_the_tables(helpers: ctypes.CDLL) -> None:
    assert [helpers.size_of(i) for i in range(5)] == [ARGUMENTS.size, STEP.size, BLOCK.size, STATE.size, 128]


@pytest.mark.parametrize(
    ("value", "fp16", "bf16"),
    [
        (1.0, 0x3C00, 0x3F80),
        (-2.5, 0xC100, 0xC020),
        (65504.0, 0x7BFF, 0x4780),
        (65519.9, 0x7BFF, 0x4780),
        (65520.0, 0x7C00, 0x4780),
        (6e-8, 0x0001, 0x3381),
        (2.9e-8, 0x0000, 0x32F9),
        (1.0009765625, 0x3C01, 0x3F80),
        (1.00048828125, 0x3C00, 0x3F80),
        (1.00390625, 0x3C04, 0x3F80),
        (1.01171875, 0x3C0C, 0x3F82),
        (float("inf"), 0x7C00, 0x7F80),
        (float("nan"), 0x7FFF, 0x7FFF),
    ],
)
def test_rounding_is_to_nearest_even(helpers: ctypes.CDLL, value: float, fp16: int, bf16: int) -> None:
    assert (helpers.fp16(value), helpers.bf16(value)) == (fp16, bf16)


def test_equal_texts_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.build_candidate(TEXT)
    monkeypatch.setattr(build, "_build", lambda *_: pytest.fail("built again"))
    assert build.build_candidate(TEXT) == first


def test_a_changed_header_is_another_kernel(tmp_path: Path) -> None:
    text = '#include "value.h"\nextern "C" int value() { return VALUE; }\n'
    found = []
    for value in (1, 2):
        (tmp_path / "value.h").write_text(f"#define VALUE {value}\n")
        found.append(ctypes.CDLL(str(build.build_candidate(text, [tmp_path]))).value())
    assert found == [1, 2]


def test_builders_at_the_same_time_leave_one_library(tmp_path: Path) -> None:
    runtime = build.build_runtime()
    shutil.copy(runtime, tmp_path / runtime.name)
    with ThreadPoolExecutor(3) as pool:
        paths = set(pool.map(lambda _: build.build_candidate(TEXT, folder=tmp_path), range(3)))
    assert {file.name for file in tmp_path.iterdir()} == {runtime.name, *(path.name for path in paths)}
    assert len(paths) == 1


def test_broken_text_is_a_compile_error() -> None:
    with pytest.raises(CompileError, match="no_such_primitive"):
        build.build_candidate('#include "primitives.hpp"\nextern "C" void f() { ts::no_such_primitive(); }\n')


def test_a_name_without_a_body_is_a_compile_error() -> None:
    with pytest.raises(CompileError, match="undefined"):
        build.build_candidate('void missing(); extern "C" void f() { missing(); }\n')


def test_without_a_compiler_the_rest_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    build.compiler.cache_clear()
    try:
        with pytest.raises(MissingDependency, match="space, verify, emit and compile still work"):
            build.build_runtime()
    finally:
        build.compiler.cache_clear()


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EmulationError, match="TILESCALE_CACHE"):
        build.build_candidate(TEXT, folder=tmp_path / "file" / "host")
