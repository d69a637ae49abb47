#!/usr/bin/env bash
# Configures against made-up folders of LibTorch: what is missing for CUDA and NCCL is said, with the wheel that brings it.
#   find_libtorch_test.sh CMAKE MODULE COMPILER WORK_DIR
set -euo pipefail
cmake="$1" module="$2" compiler="$3" work="$4"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

fail() { echo "FAILED: $*" >&2; exit 1; }
unset CMAKE_PREFIX_PATH Torch_DIR CUDA_HOME FULGUR_LIBTORCH

rm -rf "$work"
site="$work/site"
make() { mkdir -p "$(dirname "$site/$1")"; touch "$site/$1"; }
# expect CUDA NCCL WORDS...: configures, and looks for the words.
expect() {
  local cuda="$1" nccl="$2" word
  shift 2
  "$cmake" -S "$here/find_libtorch" -B "$work/build" -G Ninja --fresh "-DMODULE=$module" "-DCMAKE_CXX_COMPILER=$compiler" \
    "-DTorch_DIR=$site/torch/share/cmake/Torch" >"$work/log" 2>&1 || { cat "$work/log"; fail "configure"; }
  grep -q "cuda=$cuda nccl=$nccl" "$work/log" || { cat "$work/log"; fail "expected cuda=$cuda nccl=$nccl"; }
  # cmake breaks long lines.
  for word in "$@"; do tr -s '\n ' ' ' <"$work/log" | grep -qF -e "$word" || { cat "$work/log"; fail "not said: $word"; }; done
}

mkdir -p "$site/torch/share/cmake/Torch"
make torch/lib/libtorch_cpu.so
make torch/include/ATen/core/Tensor.h
expect OFF OFF "CUDA is left out" "this LibTorch has no $site/torch/lib/libtorch_cuda.so"
make torch/lib/libtorch_cuda.so
make torch/lib/libc10_cuda.so
make nvidia/cu13/include/cuda_runtime_api.h
expect OFF OFF "CUDA is left out" "nvidia-cuda-crt" "no libcudart.so.13"
make nvidia/cu13/lib/libcudart.so.13
make nvidia/cu13/include/crt/host_config.h
# A compiler that finds a toolkit's headers by itself does not need those of the wheels.
if ! echo '#include <cusparse.h>' | "$compiler" -x c++ -fsyntax-only - 2>"$work/log"; then
  expect OFF OFF "CUDA is left out" "cusparse.h" "do not compile" "FULGUR_LIBTORCH=cuda scripts/setup.sh"
fi
for header in cuda_fp16 cusparse cublas_v2 cublasLt cusolverDn; do make "nvidia/cu13/include/$header.h"; done
expect ON OFF "NCCL is left out" "$site/nvidia/nccl/include/nccl.h" "nvidia-nccl-cu13" "process_group_backend: gloo"
make nvidia/nccl/include/nccl.h
expect ON ON
# A Torch_DIR without a LibTorch is an error, although CMAKE_PREFIX_PATH has one; so is another version.
refuse() {
  if "$cmake" -S "$here/find_libtorch" -B "$work/build" -G Ninja --fresh "-DMODULE=$module" "-DCMAKE_CXX_COMPILER=$compiler" \
    "-DTorch_DIR=$1" "-DCMAKE_PREFIX_PATH=$site/torch" >"$work/refused" 2>&1; then
    cat "$work/refused"; fail "configured with $1"
  fi
  tr -s '\n ' ' ' <"$work/refused" | grep -qF -e "$2" || { cat "$work/refused"; fail "not said: $2"; }
}
refuse "$work/nowhere/share/cmake/Torch" "contains no LibTorch"
if Torch_DIR="$work/nowhere" "$cmake" -S "$here/find_libtorch" -B "$work/build" -G Ninja --fresh "-DMODULE=$module" \
  "-DCMAKE_CXX_COMPILER=$compiler" "-DCMAKE_PREFIX_PATH=$site/torch" >"$work/refused" 2>&1; then
  fail "configured with a wrong Torch_DIR of the environment"
fi
tr -s '\n ' ' ' <"$work/refused" | grep -qF "The environment variable Torch_DIR is $work/nowhere, but" || { cat "$work/refused"; fail "the variable is not said"; }

# A project that uses an installed Fulgur: the LibTorch of the build, unless Torch_DIR names another one. What is wrong is one
# error, at the project's find_package.
mkdir -p "$work/package" "$work/user"
cp "$module" "$work/package/FulgurLibTorch.cmake"
touch "$work/package/fulgurTargets.cmake" "$work/package/FulgurSimulatedGpu.cmake"
sed -e 's|@PACKAGE_INIT@|macro(check_required_components name)\nendmacro()|' -e "s|@FULGUR_TORCH_ROOT@|$site/torch|" -e 's|@[A-Za-z_]*@||' \
  "$(dirname "$module")/fulgurConfig.cmake.in" >"$work/package/fulgurConfig.cmake"
printf 'cmake_minimum_required(VERSION 3.25)\nproject(user LANGUAGES CXX)\nfind_package(fulgur CONFIG REQUIRED)\nmessage(STATUS "root=${FULGUR_TORCH_ROOT}")\n' >"$work/user/CMakeLists.txt"
# use RC WORDS [ARGUMENTS...]
use() {
  local wanted="$1" words="$2" rc=0
  shift 2
  "$cmake" -S "$work/user" -B "$work/user/build" -G Ninja --fresh "-DCMAKE_CXX_COMPILER=$compiler" "-Dfulgur_DIR=$work/package" "$@" >"$work/log" 2>&1 || rc=$?
  [ "$rc" = "$wanted" ] || { cat "$work/log"; fail "exit code $rc instead of $wanted: $*"; }
  tr -s '\n ' ' ' <"$work/log" | grep -qF -e "$words" || { cat "$work/log"; fail "not said: $words"; }
  if grep -q "Call Stack" "$work/log"; then cat "$work/log"; fail "more than one level"; fi
}
other="$work/other/torch"
mkdir -p "$other/lib" "$other/include/ATen/core" "$other/include/torch/headeronly"
touch "$other/lib/libtorch_cpu.so" "$other/include/ATen/core/Tensor.h"
use 0 "root=$site/torch"
use 0 "root=$other" "-DTorch_DIR=$other/share/cmake/Torch"
Torch_DIR="$other/share/cmake/Torch" use 0 "root=$other"
Torch_DIR=/nope use 1 "The environment variable Torch_DIR is /nope, but"
Torch_DIR=/nope use 0 "root=$other" "-DTorch_DIR=$other/share/cmake/Torch"
printf '#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 10\n' >"$other/include/torch/headeronly/version.h"
use 1 "Fulgur needs LibTorch 2.11; $other is LibTorch 2.10" "-DTorch_DIR=$other/share/cmake/Torch"
mkdir -p "$site/torch/include/torch/headeronly"
printf '#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 10\n' >"$site/torch/include/torch/headeronly/version.h"
refuse "$site/torch/share/cmake/Torch" "is LibTorch 2.10"
printf '#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 11\n' >"$site/torch/include/torch/headeronly/version.h"
expect ON ON
if grep -q "is left out" "$work/log"; then fail "nothing is missing, yet something is reported"; fi
rm -rf "$work"
