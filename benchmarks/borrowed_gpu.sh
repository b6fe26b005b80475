#!/usr/bin/env bash
# A plan on a machine that is lent for minutes: what was reached comes back, and goes on next time.
#
#   bash benchmarks/borrowed_gpu.sh OUT MINUTES PLAN [nestruct reproduce's options]
#
# Runs `nestruct reproduce PLAN` in runs/ for so many minutes. OUT gets the small files of all runs
# every minute (small.tar.xz), and at the end the checkpoints of runs that are not done, as many as
# 45 MB hold, in pieces of 15 MB (unfinished.tar.xz.NN). To go on: unpack small.tar.xz and the pieces
# (cat unfinished.tar.xz.* | tar -xJ) where this is started. While the machine is still held, the
# same command goes on with all of them. Where git is not at hand, NESTRUCT_COMMIT says the commit.
# MINUTES should end a minute before whatever stops this script, which stops its archives too.
set -u
out=$1 minutes=$2 plan=$3
shift 3
mkdir -p "$out" runs
small() {
  tar -cJf "$out/small.tmp" --exclude=checkpoints --exclude='*.log' runs 2>/dev/null &&
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
room=45000 unfinished=()
for run in runs/*/*/; do
  if [ -d "$run/checkpoints/last" ] && ! grep -qs '"split": "test"' "$run/metrics.jsonl"; then
    size=$(du -s --exclude='*.previous' "$run" | cut -f1)
    if [ "$size" -le "$room" ]; then unfinished+=("$run") room=$((room - size)); fi
  fi
done
if [ ${#unfinished[@]} -gt 0 ]; then
  tar -c --exclude='*.previous' "${unfinished[@]}" | xz -T0 -1 | split -b 15M -d - "$out/unfinished.tar.xz."
fi
ls -l "$out"
