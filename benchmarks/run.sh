#!/usr/bin/env bash
# Compares Fulgur with Lightning, Fabric, PyTorch and LibTorch as they are used. Sets up what it needs, builds, measures,
# and writes results.json, results.md and results.svg. Safe to run again. What is measured: docs/performance.md.
#
#   benchmarks/run.sh                            all
#   benchmarks/run.sh C2 C3 --repeats 5          some
#   benchmarks/run.sh --out benchmarks/results   into the folder that is committed (default: build/benchmarks)
#   benchmarks/run.sh --quick                    shows that all runs; its figures mean nothing
#
# FULGUR_BENCHMARK_PYTHON=python   an environment of your own with what benchmarks/requirements.txt names; else one is made
#                                  in the cache folder (5 GB)
# It ends with 0 where peers came to the same losses and parameters, reached or not what was aimed at; else with 1.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"
# shellcheck source=benchmarks/head.sh
. "$(dirname "${BASH_SOURCE[0]}")/head.sh"
read_arguments run.sh "$@"

scripts/setup.sh
find_python_for_peers
build_release benchmarks

exec "$python" benchmarks/harness/main.py --build build/release --out "$out" ${arguments[@]+"${arguments[@]}"}
