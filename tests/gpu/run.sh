#!/usr/bin/env bash
# Checks on one NVIDIA GPU with torch what ppscope takes for granted; at most 150 seconds.
#
#   tests/gpu/run.sh [OUT.json]         run on this machine's first GPU
#   tests/gpu/run.sh --dry [OUT.json]   the same script and the same checks on made-up traces, without GPU and torch
#
# PYTHON names an interpreter with torch, msgspec and isal (nvidia-ml-py for the NVML part); python3 without it.
# Exit codes: 0 every check holds or was skipped, 1 one does not, 2 usage, 3 there is no GPU or no torch.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}
dry=()
if [ "${1:-}" = --dry ]; then
  dry=(--dry)
  shift
fi
if [ $# -gt 1 ] || [[ "${1:-}" == -* ]]; then
  sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
out=${1:-$here/result.json}

if [ ${#dry[@]} -eq 0 ]; then
  if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
    echo "tests/gpu: skipped, no NVIDIA GPU answers nvidia-smi here" >&2
    exit 3
  fi
  if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "tests/gpu: skipped, $python has no torch that sees a GPU (set PYTHON)" >&2
    exit 3
  fi
fi

cd "$root"
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec timeout --kill-after=5 145 \
  "$python" -m tests.gpu.checks "${dry[@]+"${dry[@]}"}" "$out"
