#!/usr/bin/env bash
# Measures each known way to make training faster or smaller: `trainer fit` without it and with it, in turn, and writes
# techniques.json and techniques.md. Sets up what it needs and builds. What the figures say: docs/techniques.md.
#
#   benchmarks/techniques.sh                            all: half an hour
#   benchmarks/techniques.sh amp clipping --repeats 5   some
#   benchmarks/techniques.sh --out benchmarks/results   into the folder that is committed (default: build/benchmarks)
#   benchmarks/techniques.sh --quick                    shows that all runs; its figures mean nothing
#
# Python's standard library is all that it needs beside what builds. It ends with 1 where a run fails.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"
# shellcheck source=benchmarks/head.sh
. "$(dirname "${BASH_SOURCE[0]}")/head.sh"
read_arguments techniques.sh "$@"

scripts/setup.sh
build_release trainer techniques_plugin

exec python3 -B benchmarks/techniques/main.py --build build/release --out "$out" ${arguments[@]+"${arguments[@]}"}
