#!/usr/bin/env bash
# The runs behind docs/categorical.md, several side by side on one GPU:
#   bash benchmarks/categorical_runs.sh [FOLDER] [JOBS] [PATTERN]
# Runs the lines of categorical_runs.txt that PATTERN (a regular expression on a line's start) fits. Needs NESTRUCT_DATA. Run again to go on: what
# is finished is left alone. A folder in memory (/dev/shm) spares the disk, and CUDA's multi-process service (nvidia-cuda-mps-control -d) shares the GPU.
set -euo pipefail
export folder=${1:-runs/categorical}
one() {
  local name=$1; shift
  local words=("$@" --run "$folder/$name")
  [ -d "$folder/$name/checkpoints/last" ] && words=(--resume "$folder/$name")
  mkdir -p "$(dirname "$folder/$name")"
  OMP_NUM_THREADS=1 python -m nestruct train "${words[@]}" >>"$folder/$name.log" 2>&1 || echo "$name failed: see $folder/$name.log"
}
export -f one
grep -E "^(${3:-[^#]})" "$(dirname "$0")/categorical_runs.txt" | xargs -P "${2:-12}" -I{} bash -c 'one {}'
grep -rh "loss_mode:" "$folder" --include='*.log'
