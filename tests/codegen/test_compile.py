"""tilescale.codegen.compile: real NVRTC in worker processes, its crashes and hangs, and the cache."""

from __future__ import annotations

import builtins
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from process_support import cpu_ticks, end_and_list_orphans, running, start_script, wait_until_gone

from tilescale.codegen import compile as compiling
from tilescale.codegen.compile import (
    INCLUDE,
    Binary,
    CompileFailure,
    Compiler,
    Source,
    compile_text,
    headers_digest,
)
from tilescale.codegen.nvrtc_worker import nvrtc_version
from tilescale.errors import CompileError, MissingDependency, RunnerError

KERNEL = """extern "C" __global__ void k(int* p) {
  __shared__ int s[256];
  s[threadIdx.x] = p[0]; __syncthreads(); p[threadIdx.x] = s[255 - threadIdx.x] + NUMBER;
}"""
# NVRTC would need minutes for it.
ENDLESS = 'extern "C" __global__ void k(int* p) { p[0] = ' + "p[1] ? 1 : " * 30000 + "0; }"
SPILLING = """extern "C" __global__ void __launch_bounds__(1024, 2) k(float* p) {
  float a[128];
  #pragma unroll
  for (int i = 0; i < 128; i++) a[i] = p[i * 7 + threadIdx.x];
  #pragma unroll
  for (int i = 0; i < 128; i++) a[i] = a[i] * p[i] + a[(i * 17) % 128];
  #pragma unroll
  for (int i = 0; i < 128; i++) p[i] = a[i] + a[(i * 5) % 128];
}"""
IGNORED = 'extern "C" __global__ void k(int* p) { asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); p[0] = 1; }'


def source(number: int = 0, **changes: Any) -> Source:
    return replace(Source(KERNEL.replace("NUMBER", str(number)), "k"), **changes)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiler]:
    """Shared by tests that do not look at counts; its worker stays warm."""
    with Compiler(1, tmp_path_factory.mktemp("cache")) as compiler:
        yield compiler


def compile_one(compiler: Compiler, wanted: Source) -> Binary | CompileFailure:
    (outcome,) = compiler.compile([wanted])
    return outcome


def test_a_kernel_becomes_a_cubin_with_its_resources(compiler: Compiler) -> None:
    binary = compile_one(compiler, source())
    assert isinstance(binary, Binary)
    assert binary.cubin.startswith(b"\x7fELF")
    assert (binary.entry, binary.arch) == ("k", "sm_90a")
    assert 0 < binary.registers < 64
    assert (binary.spill_bytes, binary.stack_bytes, binary.shared_bytes) == (0, 0, 1024)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('extern "C" __global__ void k(int* p) { p[0] = q; }', 'identifier "q" is undefined'),
        ('extern "C" __global__ void k() { asm volatile("foo.bar;"); }', "Not a name of any known instruction"),
        ('extern "C" __global__ void other() {}', "no such kernel"),
        ("__global__ void k() {}", 'extern "C" kernel k'),
        ('#include "nowhere.cuh"\nextern "C" __global__ void k() {}', "nowhere.cuh"),
    ],
)
def test_text_that_does_not_compile_is_a_failure_with_the_reason(compiler: Compiler, text: str, says: str) -> None:
    failure = compile_one(compiler, Source(text, "k"))
    assert isinstance(failure, CompileFailure)
    assert failure.status == "compile_error"
    assert says in failure.message
    assert "\n" not in failure.message


def test_a_wrong_architecture_is_a_failure(compiler: Compiler) -> None:
    failure = compile_one(compiler, source(arch="sm_99"))
    assert isinstance(failure, CompileFailure)
    assert "arch" in failure.message


@pytest.mark.parametrize(("text", "code"), [(SPILLING, "spill"), (IGNORED, "C7508")])
def test_the_rules_of_the_log_hold_for_new_and_cached_binaries(compiler: Compiler, text: str, code: str) -> None:
    for _ in range(2):
        failure = compile_one(compiler, Source(text, "k"))
        assert isinstance(failure, CompileFailure)
        assert failure.status == "compile_error"
        assert failure.message.startswith(f"{code}: ")
        allowed = compile_one(compiler, Source(text, "k", allow=(code,)))
        assert isinstance(allowed, Binary)
        assert (allowed.spill_bytes > 0) is (code == "spill")


def test_the_device_library_is_found(compiler: Compiler) -> None:
    text = '#include "tilescale/abi.cuh"\nextern "C" __global__ void k(ts::Step* s) { s->kind = sizeof(ts::Step); }'
    assert isinstance(compile_one(compiler, Source(text, "k")), Binary)


def test_the_second_time_nothing_is_compiled_and_no_worker_started(tmp_path: Path) -> None:
    wanted = [source(number) for number in (0, 1, 0)]
    with Compiler(2, tmp_path) as first:
        made = first.compile(wanted)
        assert (first.compiled, first.hits) == (2, 0)
    assert made[0] == made[2] != made[1]
    with Compiler(2, tmp_path) as second:
        assert second.compile(wanted) == made
        assert (second.compiled, second.hits) == (0, 2)
        assert second.pids == ()


def test_the_same_text_gives_the_same_binary_anywhere(tmp_path: Path) -> None:
    made = [compile_text(source().text, "k", cache_dir=tmp_path / name) for name in ("a", "b")]
    assert made[0] == made[1]


def test_a_damaged_entry_is_compiled_again(tmp_path: Path) -> None:
    with Compiler(1, tmp_path) as compiler:
        made = compiler.compile([source()])
        (entry,) = tmp_path.glob("*/*.bin")
        entry.write_bytes(entry.read_bytes()[:-1])
        assert compiler.compile([source()]) == made
        assert compiler.compiled == 2
        assert compiler.compile([source()]) == made
        assert compiler.compiled == 2


def test_the_key_holds_everything_that_decides_the_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    include = tmp_path / "include"
    (include / "sub").mkdir(parents=True)
    (include / "sub" / "a.cuh").write_text("int a;")

    def key(wanted: Source = source()) -> str:  # noqa: B008
        with Compiler(1, tmp_path / "cache", include=include) as compiler:
            return compiler.key(wanted)

    def seen(change: Callable[[], object]) -> str:
        change()
        return key()

    keys = [key(), key(source(1)), key(source(arch="sm_90")), key(source(entry="k2"))]
    assert key(source(allow=("spill",))) == key()
    keys.append(seen(lambda: (include / "sub" / "a.cuh").write_text("int b;")))
    keys.append(seen(lambda: (include / "sub" / "a.cuh").rename(include / "a.cuh")))
    keys.append(seen(lambda: (include / "empty.cuh").touch()))
    monkeypatch.setattr(compiling, "OPTIONS", ("-std=c++20",))
    keys.append(key())
    monkeypatch.setattr(compiling, "nvrtc_version", lambda: "99.0")
    keys.append(key())
    assert len(set(keys)) == len(keys)


def test_a_changed_header_is_compiled_anew(tmp_path: Path) -> None:
    include = tmp_path / "include"
    include.mkdir()
    text = '#include "n.cuh"\nextern "C" __global__ void k(int* p) { __shared__ int s[N]; s[0] = p[0]; p[1] = s[0]; }'
    for size in (16, 32):
        (include / "n.cuh").write_text(f"constexpr int N = {size};")
        binary = compile_text(text, "k", include=include, cache_dir=tmp_path / "cache")
        assert binary.cubin.startswith(b"\x7fELF")
    assert len(list((tmp_path / "cache").glob("*/*.bin"))) == 2


def test_a_header_that_changes_meanwhile_stores_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = iter(["before", "after"])
    monkeypatch.setattr(compiling, "headers_digest", lambda include: next(digests))
    with Compiler(1, tmp_path) as compiler, pytest.raises(CompileError, match="compile again"):
        compiler.compile([source()])
    assert list(tmp_path.glob("*/*.bin")) == []


@pytest.mark.timeout(120)  # minutes, if one of them were waited for
def test_c3_compiles_that_never_end_cost_their_limit_and_leave_no_process(tmp_path: Path) -> None:
    wanted = [source(number) for number in range(10)]
    for number in (0, 5, 9):
        wanted[number] = Source(ENDLESS + " " * number, "k")
    with Compiler(2, tmp_path, timeout_s=4.0) as compiler:
        compiler.compile([source(10)])
        pids = compiler.pids  # later none may be left: those of the last jobs are killed with them
        outcomes = compiler.compile(wanted)
        pids += compiler.pids
    late = [number for number, found in enumerate(outcomes) if isinstance(found, CompileFailure)]
    assert late == [0, 5, 9]
    for number in late:
        failure = outcomes[number]
        assert isinstance(failure, CompileFailure)
        assert failure.status == "compile_timeout"
        assert "4 s" in failure.message
    assert compiler.compiled == 8
    assert pids
    assert running(pids) == []


def test_a_compiler_that_crashes_costs_its_own_job(tmp_path: Path) -> None:
    with Compiler(1, tmp_path, timeout_s=60) as compiler:
        compiler.compile([source(100)])
        (victim,) = compiler.pids
        idle_ticks = cpu_ticks(victim)

        def crash() -> None:
            while cpu_ticks(victim) < idle_ticks + 10:  # until it is busy with the endless text
                time.sleep(0.01)
            os.kill(victim, signal.SIGSEGV)

        killer = threading.Thread(target=crash)
        killer.start()
        outcomes = compiler.compile([Source(ENDLESS, "k"), source(1), source(2)])
        killer.join()
        assert victim not in compiler.pids
    failure = outcomes[0]
    assert isinstance(failure, CompileFailure)
    assert failure.status == "compile_error"
    assert "SIGSEGV" in failure.message
    assert all(isinstance(found, Binary) for found in outcomes[1:])


def test_a_worker_that_dies_idle_costs_no_job(tmp_path: Path) -> None:
    with Compiler(1, tmp_path) as compiler:
        compiler.compile([source(1)])
        pids = compiler.pids
        os.kill(pids[0], signal.SIGKILL)
        assert wait_until_gone(pids) == []
        assert isinstance(compile_one(compiler, source(2)), Binary)


def test_two_processes_compile_the_same_kernels_into_one_cache(tmp_path: Path) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_compile import source
from tilescale.codegen.compile import Compiler
with Compiler(1, {str(tmp_path)!r}) as compiler:
    print(*[found.digest for found in compiler.compile([source(number) for number in range(4)])])
"""
    processes = [start_script(script) for _ in range(2)]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [err for _, err in outputs] == ["", ""]
    assert len({out for out, _ in outputs}) == 1
    with Compiler(1, tmp_path) as compiler:
        found = compiler.compile([source(number) for number in range(4)])
        assert (compiler.compiled, compiler.hits) == (0, 4)
    assert " ".join(b.digest for b in found if isinstance(b, Binary)) == outputs[0][0].strip()


def test_compile_text_raises_with_the_compilers_words(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"kernel k compiles for sm_90a \(compile_error\).*is undefined"):
        compile_text('extern "C" __global__ void k(int* p) { p[0] = q; }', "k", cache_dir=tmp_path)


def test_without_nvrtc_the_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("cuda"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with Compiler(1, tmp_path) as compiler, pytest.raises(MissingDependency) as error:
        compiler.compile([source()])
    assert "nvidia-cuda-nvrtc" in error.value.remedy


def test_a_closed_compiler_compiles_nothing(tmp_path: Path) -> None:
    compiler = Compiler(1, tmp_path)
    compiler.compile([source()])
    pids = compiler.pids
    compiler.close()
    compiler.close()
    assert running(pids) == []
    with pytest.raises(RunnerError, match="closed"):
        compiler.compile([source(1)])


def test_versions_and_headers_are_known() -> None:
    assert nvrtc_version().split(".")[0].isdigit()
    assert len(headers_digest(INCLUDE)) == 64


HANGING = f"""
import sys, threading, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_compile import ENDLESS, source
from tilescale.codegen.compile import Compiler, Source
compiler = Compiler(2, CACHE, timeout_s=1000)
compiler.compile([source(0), source(1)])
def tell():
    time.sleep(0.5)
    print(*compiler.pids, flush=True)
threading.Thread(target=tell).start()
with compiler:
    compiler.compile([Source(ENDLESS, "k"), Source(ENDLESS + " ", "k")])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_compiler_outlives_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    left, code = end_and_list_orphans(HANGING.replace("CACHE", repr(str(tmp_path))), number)
    assert left == []
    assert code == -number


def test_the_version_of_nvrtc_does_not_depend_on_who_loaded_it() -> None:
    """torch may have loaded it first; the version is part of the cache's keys and of a database's environment."""
    ask = "from tilescale.codegen.nvrtc_worker import nvrtc_version; print(nvrtc_version())"
    first = "import ctypes; from cuda.pathfinder import load_nvidia_dynamic_lib as load; "
    path = subprocess.run([sys.executable, "-c", first + "print(load('nvrtc').abs_path)"], capture_output=True, text=True,
                          check=True).stdout.strip()
    said = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
            for code in (ask, f"import ctypes; ctypes.CDLL({path!r}); {ask}", f"import torch; {ask}")]
    assert said[0] == said[1] == said[2]
    assert said[0].strip()
