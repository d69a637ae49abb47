#!/usr/bin/env bash
# Trains a network on two ranks with a slow link between them, once for each option of ddp for slow networks
# (docs/slow_networks.md), and prints the time of a step, the bytes that a rank sends in it, and what the network has learned.
# The link is made in network namespaces, which needs root; nothing outside of them is reachable.
#
#   benchmarks/slow_networks.sh                              1 Gbit/s, 5 ms in each direction
#   benchmarks/slow_networks.sh --mbit 100 --delay_ms 20     another link
#   benchmarks/slow_networks.sh --rows powersgd              rows whose titles contain this
#   benchmarks/slow_networks.sh --out benchmarks/results     into the folder that is committed (default: build/benchmarks)
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"
# shellcheck source=benchmarks/head.sh
. "$(dirname "${BASH_SOURCE[0]}")/head.sh"
read_arguments slow_networks.sh "$@"

scripts/setup.sh
build_release trainer

exec python3 -B benchmarks/network/slow_networks.py --trainer "$PWD/build/release/bin/trainer" --out "$out" ${arguments[@]+"${arguments[@]}"}
