#!/usr/bin/env bash
# Runs COMMAND with CUDA simulated on the CPU (docs/simulated_gpu.md): its LibTorch, in C++ or Python, sees GPUs and computes the right
# numbers. Installed, it is bin/fulgur-simulated-gpu.
#
#   scripts/simulated_gpu.sh build/release/bin/trainer fit --config configs/fashion_mnist_mlp.yaml --trainer.accelerator cuda
#   SIMULATED_CUDA_DEVICES=2 scripts/simulated_gpu.sh my_program
#
# FULGUR_SIMULATED_CUDA_DIR   the folder of the libraries (default: build/release/simulated_cuda, or where they are installed)
set -euo pipefail

me="$(basename "$0")"
usage() { sed -n '2,9s/^# \{0,1\}//p' "$0" | sed "s#scripts/simulated_gpu.sh#$me#"; }
[ $# -gt 0 ] || { usage >&2; exit 2; }
case "$1" in
  -h | --help) usage; exit 0 ;;
esac
root="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)"
whole() { [ -e "$1/libcudart.so.13" ] && [ -e "$1/libsimulated_cuda_operators.so" ]; }
dir="${FULGUR_SIMULATED_CUDA_DIR:-}"
if [ -z "$dir" ]; then
  # A source folder, or an installation prefix with one of the usual names of its library folder.
  for dir in "$root"/build/release/simulated_cuda "$root"/lib*/fulgur/simulated_cuda "$root"/lib/*/fulgur/simulated_cuda; do
    if whole "$dir"; then break; fi
  done
fi
if ! whole "$dir"; then
  echo "$me: no simulated CUDA in ${FULGUR_SIMULATED_CUDA_DIR:-$root}, or it is incomplete. In Fulgur's source folder, build it with" \
    "cmake --preset release && cmake --build build/release --target simulated_cuda; it is installed with the rest" >&2
  exit 2
fi

# LD_PRELOAD is needed: LibTorch's wheel names the folders of CUDA's libraries in DT_RPATH, which comes before LD_LIBRARY_PATH.
libraries=()
for library in "$dir"/lib*.so.[0-9]*; do libraries+=("$library"); done
preload="$(IFS=:; echo "${libraries[*]}")"
export LD_PRELOAD="$preload${LD_PRELOAD:+:$LD_PRELOAD}"
exec -- "$@"
