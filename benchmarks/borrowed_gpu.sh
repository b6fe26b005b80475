#!/usr/bin/env bash
# A plan on a machine that is lent for minutes: what was reached comes back, and goes on next time.
#
#   bash benchmarks/borrowed_gpu.sh OUT MINUTES PLAN [nestruct reproduce's options]
#
# Runs `nestruct reproduce PLAN` in runs/ for so many minutes. OUT gets the small files of all runs
# every minute (small.tar.xz), and at the end the checkpoints of those that are not done, in pieces of
# 15 MB (unfinished.tar.NN). To go on: unpack small.tar.xz and the pieces (cat unfinished.tar.* | tar -x)
# where this is started. Where git is not at hand, NESTRUCT_COMMIT says the commit.
set -u
out=$1 minutes=$2 plan=$3
shift 3
mkdir -p "$out" runs
small() {
  tar -cJf "$out/small.tmp" --exclude=checkpoints --exclude='*.log' runs 2>/dev/null
  mv "$out/small.tmp" "$out/small.tar.xz"
}
python3 -m nestruct reproduce "$plan" --run runs --budget "$minutes" "$@" &
process=$!
trap 'kill -TERM $process 2>/dev/null' TERM INT
while kill -0 $process 2>/dev/null; do
  for _ in $(seq 60); do kill -0 $process 2>/dev/null && sleep 1; done
  small
done
wait $process
small
unfinished=$(for run in runs/*/*/; do grep -qs '"split": "test"' "$run/metrics.jsonl" || echo "$run"; done)
if [ -n "$unfinished" ]; then tar -c $unfinished 2>/dev/null | split -b 15M -d - "$out/unfinished.tar."; fi
ls -l "$out"
