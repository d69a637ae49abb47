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

requirements=benchmarks/requirements.txt

# A Python that the wheel supports and that can make environments.
python_for_peers() {
  local py
  for py in /usr/bin/python3 python3 python3.13 python3.12 python3.11 python3.10; do
    py="$(command -v "$py")" || continue
    "$py" -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null || continue
    echo "$py"
    return 0
  done
  return 1
}

# Once per content of requirements.txt; a half-made environment has no stamp.
make_environment() {
  local dir="$1" py
  mkdir -p "$(dirname "$dir")"
  exec 9>"$dir.lock"
  if command -v flock >/dev/null; then flock 9; fi
  if ! cmp -s "$requirements" "$dir/.requirements"; then
    say "Python packages of the peers into $dir"
    rm -rf "$dir"
    if command -v uv >/dev/null; then
      uv venv --quiet --python '>=3.10,<3.15' "$dir" && uv pip install --quiet --python "$dir/bin/python" -r "$requirements"
    else
      py="$(python_for_peers)" || die 2 "run.sh: Python 3.10 to 3.14 with venv is needed for the peers, and none was found"
      "$py" -m venv "$dir" &&
        "$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-cache-dir --retries 10 -r "$requirements"
    fi || die 2 "run.sh: $requirements could not be installed; see the messages above"
    cp "$requirements" "$dir/.requirements"
  fi
  exec 9>&-
}

python="${FULGUR_BENCHMARK_PYTHON:-}"

scripts/setup.sh
if [ -z "$python" ]; then
  environment="${XDG_CACHE_HOME:-$HOME/.cache}/fulgur/benchmarks-python"
  make_environment "$environment"
  python="$environment/bin/python"
fi

build_release benchmarks

exec "$python" benchmarks/harness/main.py --build build/release --out "$out" ${arguments[@]+"${arguments[@]}"}
