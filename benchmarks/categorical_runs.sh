#!/usr/bin/env bash
# The runs behind docs/categorical.md, side by side on one GPU:
#   bash benchmarks/categorical_runs.sh 1|2 [FOLDER]      (1: Table 3 and FashionMNIST; 2: the rest)
# Needs NESTRUCT_DATA. Run again to go on: what is finished is left alone. A folder in memory (/dev/shm) spares the disk.
set -euo pipefail
part=$1 folder=${2:-runs/categorical}
mkdir -p "$folder"
go() { # name, then what `nestruct train` takes
  local name=$1; shift
  local words=("$@" --run "$folder/$name")
  [ -f "$folder/$name/config.toml" ] && words=(--resume "$folder/$name")
  OMP_NUM_THREADS=1 python -m nestruct train "${words[@]}" --device cuda >"$folder/$name.log" 2>&1 &
}
if [ "$part" = 1 ]; then
  sizes=(16 32 64 128 256 512) members=(60 60 90 100 100 100)
  for i in "${!sizes[@]}"; do
    h=${sizes[$i]}
    go "table3-nes-$h" table3-nes "model.hidden_size=$h" "estimator.population_size=${members[$i]}"
    go "table3-sst-$h" table3-sst "model.hidden_size=$h"
  done
  for method in nes unbiased gsm; do go "fashion-$method" "unstructured-$method"; done
else
  for data in kmnist omniglot; do
    steps=117000; [ $data = omniglot ] && steps=37500 # 300 epochs
    every=$((steps / 60))
    for method in nes unbiased gsm; do
      go "$data-$method" "unstructured-$method" data.dataset=$data training.max_steps=$steps \
        training.eval_interval=$every training.log_interval=$every
    done
  done
  for bound in 1 3 9; do go "bound-$bound" unstructured-nes "model.loss_bound=$bound"; done
  for pair in "16 20" "16 40" "16 90" "32 20" "32 40" "64 40" "64 60"; do
    read -r h n <<<"$pair"
    go "table3-nes-$h-n$n" table3-nes "model.hidden_size=$h" "estimator.population_size=$n"
  done
fi
wait
grep -h "loss_mode:" "$folder"/*.log
