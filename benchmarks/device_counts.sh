#!/usr/bin/env bash
# Counts what a step of Fulgur, PyTorch and Lightning asks of a GPU: launches, waits of the host, copies, allocations. The GPU is
# simulated (docs/simulated_gpu.md), so the machine needs none. Sets up what it needs, builds, counts, and prints a table in Markdown,
# which it writes into device_counts.md beside device_counts.json.
#
#   benchmarks/device_counts.sh                            all
#   benchmarks/device_counts.sh mlp cnn                    some
#   benchmarks/device_counts.sh mlp --rows 'Fulgur$'       rows whose titles have this
#   benchmarks/device_counts.sh --out benchmarks/results   into the folder that is committed (default: build/benchmarks)
#
# FULGUR_BENCHMARK_PYTHON=python   an environment of your own with what benchmarks/requirements.txt names; else one is made
#                                  in the cache folder (5 GB)
# It ends with 0 where all rows were counted and peers came to the same losses; else with 1.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"
# shellcheck source=benchmarks/head.sh
. "$(dirname "${BASH_SOURCE[0]}")/head.sh"
read_arguments device_counts.sh "$@"
export FULGUR_LIBTORCH=cuda

scripts/setup.sh
find_python_for_peers
build_release gpu_benchmarks simulated_cuda

exec "$python" benchmarks/gpu/device_counts.py --out "$out" ${arguments[@]+"${arguments[@]}"}
