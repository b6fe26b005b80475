#!/usr/bin/env bash
# The runs behind a page of docs/, several side by side on one GPU:
#   bash benchmarks/runs.sh LIST FOLDER [JOBS] [PATTERN]
# Runs the lines of LIST (categorical_runs.txt, graph_layout_runs.txt) that PATTERN, a regular expression on a line's start, fits. Run again to go
# on: what is finished is left alone. A folder in memory (/dev/shm) spares the disk, and CUDA's multi-process service (nvidia-cuda-mps-control -d)
# shares the GPU.
set -euo pipefail
export folder=$2
one() {
  local name=$1; shift
  local words=("$@" --run "$folder/$name")
  [ -d "$folder/$name/checkpoints/last" ] && words=(--resume "$folder/$name")
  mkdir -p "$(dirname "$folder/$name")"
  OMP_NUM_THREADS=1 python -m nestruct train "${words[@]}" >>"$folder/$name.log" 2>&1 || echo "$name failed: see $folder/$name.log"
}
export -f one
grep -E "^(${4:-[^#]})" "$1" | xargs -P "${3:-4}" -I{} bash -c 'one {}'
