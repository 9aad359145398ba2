from __future__ import annotations

import pytest

from tilescale.codegen.compile import compile_text
from tilescale.deploy import elf
from tilescale.errors import BundleError

TEXT = 'extern "C" __global__ void one(int* p) { *p = 1; }\nextern "C" __global__ void two(int* p) { *p = 2; }'


@pytest.fixture(scope="module")
def cubins(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return {arch: compile_text(TEXT, "one", arch, cache_dir=cache).cubin for arch in ("sm_80", "sm_90a", "sm_100a")}


def test_entries_architecture_and_compiler(cubins):
    for arch, data in cubins.items():
        assert elf.read(data) == elf.Cubin(("one", "two"), arch, (13, 0))


def test_the_flags_speak_without_the_note(cubins):
    bare = cubins["sm_100a"].replace(b"-arch sm_100a", b"-arsh sm_100a").replace(b"release 13", b"relaese 13")
    assert elf.read(bare) == elf.Cubin(("one", "two"), "sm_100", None)


@pytest.mark.parametrize("size", [0, 10, 64, 1000, 2000])
def test_a_cut_file_is_refused(cubins, size):
    with pytest.raises(BundleError, match="cubin is an ELF file"):
        elf.read(cubins["sm_90a"][:size])


def test_another_elf_is_refused(cubins):
    data = bytearray(cubins["sm_90a"])
    data[18:20] = (62).to_bytes(2, "little")
    with pytest.raises(BundleError, match="machine is number 62"):
        elf.read(bytes(data))
