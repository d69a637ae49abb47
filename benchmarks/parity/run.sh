#!/usr/bin/env bash
# Trains each model with `trainer fit` and its twin with PyTorch, from the same weights and with the same batches, and
# compares the losses of all steps, the last weights and their averages. What the figures say: docs/parity.md.
#
#   benchmarks/parity/run.sh                            all: a quarter of an hour on one core
#   benchmarks/parity/run.sh gpt2 llama                 some
#   benchmarks/parity/run.sh --precision 32-true        one precision
#   benchmarks/parity/run.sh --out benchmarks/results   into the folder that is committed (default: build/benchmarks)
#
# FULGUR_BENCHMARK_PYTHON=python   an environment of your own with what benchmarks/requirements.txt names; else one is made
#                                  in the cache folder (5 GB)
# TRAINER=trainer                  an installed program; else `trainer` is built
# It ends with 1 if a bound is not met or a run fails.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"
# shellcheck source=benchmarks/head.sh
. "$(dirname "${BASH_SOURCE[0]}")/../head.sh"
read_arguments parity/run.sh "$@"

find_python_for_peers
trainer="${TRAINER:-}"
if [ -z "$trainer" ]; then
  scripts/setup.sh
  build_release trainer
  trainer="$PWD/build/release/bin/trainer"
fi

exec "$python" -B benchmarks/parity/main.py --trainer "$trainer" --build build/release --out "$out" ${arguments[@]+"${arguments[@]}"}
