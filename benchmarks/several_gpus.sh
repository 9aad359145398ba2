#!/usr/bin/env bash
# One run on all GPUs that are visible, ended after 9 minutes whatever happens. Options: see several_gpus.py.
cd "$(dirname "$0")/.." || exit
export PYTHONUNBUFFERED=1 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NCCL_NVLS_ENABLE=0 NVSHMEM_DISABLE_NVLS=1
[ -n "${PYTHON:-}" ] || { [ -x .venv/bin/python ] && PYTHON=.venv/bin/python; }
exec timeout --signal=TERM --kill-after=10 535 "${PYTHON:-python3}" benchmarks/several_gpus.py "$@"
