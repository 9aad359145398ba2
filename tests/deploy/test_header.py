from __future__ import annotations

import shutil
import subprocess

import pytest

from tilescale.codegen.table import ARGUMENTS, BLOCK, STATE, STEP
from tilescale.deploy import bundle as bundles
from tilescale.deploy.driver import MAP_BYTES, MAPS

SIZES = {"tilescale_step": STEP.size, "tilescale_block": BLOCK.size, "tilescale_state": STATE.size,
         "tilescale_arguments": ARGUMENTS.size, "tilescale_maps": MAPS * MAP_BYTES}

CHECK = "\n".join([
    '#include <stdio.h>', '#include "tilescale_bundle.h"', "int main(void) {",
    *(f'  printf("{name} %d\\n", (int)sizeof({name}));' for name in SIZES),
    '  for (int i = 0; i < TILESCALE_NUM_KERNELS; ++i)',
    '    printf("%s %s\\n", tilescale_kernels[i].entry, tilescale_kernels[i].cubin);',
    '  for (int i = 0; i < TILESCALE_NUM_OPERATIONS; ++i)',
    '    printf("%s %s %s\\n", tilescale_operations[i].name, tilescale_operations[i].table,',
    '           tilescale_operations[i].operands);',
    '  printf("%d %d %d\\n", TILESCALE_FORMAT, TILESCALE_WORLD, TILESCALE_MINIMUM_CUDA);', "  return 0;", "}"])


@pytest.mark.parametrize(("compiler", "suffix", "options"), [("gcc", "c", ["-std=c99"]), ("g++", "cpp", ["-std=c++17"])])
def test_c_sees_the_layouts_and_the_content(exported, tmp_path, compiler, suffix, options):
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    (tmp_path / f"check.{suffix}").write_text(CHECK)
    flags = [*options, "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{exported}"]
    subprocess.run([compiler, *flags, f"check.{suffix}", "-o", "check"], cwd=tmp_path, check=True)
    lines = subprocess.run([tmp_path / "check"], capture_output=True, text=True, check=True).stdout.splitlines()
    manifest = bundles.read(exported).manifest
    assert lines == [
        *(f"{name} {size}" for name, size in SIZES.items()),
        *(f"{kernel.entry} {kernel.cubin}" for kernel in manifest.kernels),
        *(f"{entry.name} {variant.table} {','.join((*(o.name for o in variant.spec.operands), 'out'))}"
          for entry in manifest.operations for variant in entry.variants),
        "1 2 13000",
    ]
