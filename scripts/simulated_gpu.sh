#!/usr/bin/env bash
# Runs COMMAND with CUDA simulated on the CPU (docs/simulated_gpu.md): LibTorch in it, of C++ or Python, sees GPUs and computes the right
# numbers.
#
#   scripts/simulated_gpu.sh build/release/bin/trainer fit --config configs/fashion_mnist_mlp.yaml --trainer.accelerator cuda
#   SIMULATED_CUDA_DEVICES=2 scripts/simulated_gpu.sh my_program
#
# FULGUR_SIMULATED_CUDA_DIR   the folder of the libraries (default: build/release/simulated_cuda)
set -euo pipefail

[ $# -gt 0 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
dir="${FULGUR_SIMULATED_CUDA_DIR:-$root/build/release/simulated_cuda}"
if [ ! -e "$dir/libcudart.so.13" ] || [ ! -e "$dir/libsimulated_cuda_operators.so" ]; then
  echo "simulated_gpu.sh: no simulated CUDA in $dir, or not all of it. Build it: cmake --preset release && cmake --build build/release --target simulated_cuda" >&2
  exit 2
fi

# By LD_PRELOAD: LibTorch's wheel names the folders of CUDA's libraries in DT_RPATH, which comes before LD_LIBRARY_PATH.
libraries=()
for library in "$dir"/lib*.so.[0-9]*; do libraries+=("$library"); done
preload="$(IFS=:; echo "${libraries[*]}")"
export LD_PRELOAD="$preload${LD_PRELOAD:+:$LD_PRELOAD}"
exec "$@"
