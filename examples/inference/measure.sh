#!/usr/bin/env bash
# Start-up and latency of a trained model: five processes, each with its own times.
#   measure.sh PROGRAM FILE FEATURES
set -euo pipefail
[ $# = 3 ] || { echo "usage: measure.sh PROGRAM FILE FEATURES" >&2; exit 2; }
for _ in 1 2 3 4 5; do
  begin=$(date +%s%N)
  "$@"
  echo "the whole process: $((($(date +%s%N) - begin) / 1000000)) ms"
done
