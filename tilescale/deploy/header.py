"""The C header of a bundle: binary layouts of kernel arguments and tables, and the entry points it holds."""

from __future__ import annotations

from tilescale.codegen.table import MAX_RANKS, MAX_SLOTS
from tilescale.deploy.manifest import Manifest, Variant

# The structures of include/tilescale/abi.cuh and comm.cuh in C; a test compiles this text and compares sizes.
_LAYOUTS = """\
#include <stdint.h>

#define TILESCALE_MAX_SLOTS @slots@
#define TILESCALE_MAX_RANKS @ranks@

/* One row of a step table. Kinds and the other fields: include/tilescale/abi.cuh. */
typedef struct tilescale_step {
  uint32_t kind, id, source, target, counter, value, per_call, rows;
  uint64_t source_offset, target_offset, size;
  uint32_t first_tile, peer;
} tilescale_step;

/* What one block of a launch does. role: 1 copies, 2 multiplies. */
typedef struct tilescale_block {
  uint32_t role, first_step, num_steps, index, gang, reserved[3];
} tilescale_block;

/* In device memory of each rank, zeroed once. failed != 0: a wait ran out of time, the workspace must be made anew. */
typedef struct tilescale_state {
  uint32_t calls, exits, failed, failed_rank, failed_step, failed_counter, wanted, found;
} tilescale_state;

/* First kernel parameter, by value. Pointers are device addresses. */
typedef struct tilescale_arguments {
  uint64_t base[TILESCALE_MAX_SLOTS];
  uint64_t stride[TILESCALE_MAX_SLOTS];
  uint64_t counters[TILESCALE_MAX_RANKS];
  uint64_t state, steps, blocks;
  uint64_t time_limit_ns;
  uint32_t rank, last, n, k;
  uint64_t link_fs_per_byte;
  union {
    tilescale_step only;       /* of a launch of one step without communication, or of packets: its row */
    tilescale_block roles[2];  /* of others: the rows of the first blocks of at most two gangs; else zeros */
  } first;
} tilescale_arguments;

/* Second kernel parameter, by value: CUtensorMap values, aligned to 64 bytes; zeros where nothing is multiplied. */
typedef struct tilescale_maps {
  uint64_t a[3][16];  /* own shard; gathered operand of even calls; of odd calls */
  uint64_t b[16];
  uint64_t out[16];
} tilescale_maps;

typedef struct tilescale_kernel {
  const char *entry, *arch, *cubin;  /* cubin: path below the bundle */
} tilescale_kernel;

typedef struct tilescale_operation {
  const char *name, *op, *spec, *schedule, *table;  /* digests; table: path below the bundle */
  const char *operands;  /* the caller's buffers, by the names that slots of the table have, and "out" */
} tilescale_operation;
"""


def _operands(variant: Variant) -> str:
    return ",".join([*(operand.name for operand in variant.spec.operands), "out"])


def text(manifest: Manifest) -> str:
    """The header of a bundle: plain C99, usable from C++."""
    layouts = _LAYOUTS.replace("@slots@", str(MAX_SLOTS)).replace("@ranks@", str(MAX_RANKS))
    kernels = [f'  {{"{k.entry}", "{k.arch}", "{k.cubin}"}},' for k in manifest.kernels]
    operations = [
        f'  {{"{entry.name}", "{entry.op}", "{v.spec_digest}", "{v.schedule_digest}", "{v.table}", "{_operands(v)}"}},'
        for entry in manifest.operations
        for v in entry.variants
    ]
    return "\n".join([
        f"/* Made by tilescale {manifest.tilescale}. Kernels take (tilescale_arguments, tilescale_maps). */",
        "#ifndef TILESCALE_BUNDLE_H",
        "#define TILESCALE_BUNDLE_H",
        layouts,
        f"#define TILESCALE_FORMAT {manifest.format}",
        f"#define TILESCALE_WORLD {manifest.world}",
        f"#define TILESCALE_MINIMUM_CUDA {manifest.minimum_cuda}",
        f"#define TILESCALE_NUM_KERNELS {len(kernels)}",
        f"#define TILESCALE_NUM_OPERATIONS {len(operations)}",
        "",
        "static const tilescale_kernel tilescale_kernels[] = {",
        *(kernels or ["  {0, 0, 0},"]),
        "};",
        "static const tilescale_operation tilescale_operations[] = {",
        *operations,
        "};",
        "#endif",
        "",
    ])
