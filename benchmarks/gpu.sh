#!/usr/bin/env bash
# Compares Fulgur with PyTorch and Lightning on a GPU. Builds nothing, so that it runs where there is no compiler:
#     cmake --build build/release --target gpu_benchmarks
# What is measured: docs/performance.md. Results that lie in the folder, of the same machine, are kept.
#
#   benchmarks/gpu.sh                         all that fits into 9 minutes
#   benchmarks/gpu.sh G1 G3 --minutes 20      some
#   benchmarks/gpu.sh --out DIR               into that folder (default: build/benchmarks-gpu)
#   benchmarks/gpu.sh --device cpu --quick    shows that all runs; its figures mean nothing
#   benchmarks/gpu.sh --pack DIR              puts gpu_bench, stripped, the libraries it needs beside LibTorch, and these scripts into
#                                             DIR, to be carried to another machine; there: bash DIR/benchmarks/gpu.sh
#
# FULGUR_BENCHMARK_PYTHON=python   with torch 2.11 and Lightning 2.6 (default: python3); rows of what it lacks say "not measured"
# It ends with 0 where something was measured, on a GPU by Fulgur, and peers came to the same losses and parameters; else with 1.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${FULGUR_BENCHMARK_PYTHON:-python3}"

case " $* " in *" -h "* | *" --help "*)
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$here/gpu.sh"
  exec "$python" "$here/gpu/main.py" --help ;;
esac

# LibTorch and CUDA come from Python's torch there; the C and C++ libraries from the system.
pack() {
  local to="$1" build="$here/../build/release" file name ours
  [ -x "$build/bin/gpu_bench" ] || { echo "gpu.sh: cmake --build build/release --target gpu_benchmarks comes first" >&2; exit 2; }
  # Without it gpu_bench would find no GPU on the other machine, and only the peers would be measured.
  [ -e "$build/lib/libfulgur_cuda.so" ] || {
    echo "gpu.sh: this build has no lib/libfulgur_cuda.so, so there is nothing to carry to a GPU. Configure it with CUDA (docs/install.md, chapter CUDA) and build gpu_benchmarks" >&2
    exit 2
  }
  mkdir -p "$to"
  cp -f "$build/bin/gpu_bench" "$to/"
  # By the name that the program asks for, with the version.
  ours="$(ldd "$build/bin/gpu_bench" | awk '$1 ~ /^libfulgur/ {print $1}')"
  for name in $ours libfulgur_cuda.so libhost_waits.so; do
    file="$build/lib/$name"
    [ ! -e "$file" ] || cp -fL "$file" "$to/"
  done
  ldd "$build/bin/gpu_bench" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u | while read -r file; do
    case "${file##*/}" in
      libfulgur* | libtorch* | libc10* | libcu* | libnv* | libgomp* | libc.so* | libm.so* | libdl.so* | libpthread.so* | librt.so* | libutil.so* | libstdc++* | libgcc_s*) ;;
      *) cp -fL "$file" "$to/" ;;
    esac
  done
  strip --strip-unneeded "$to"/* 2>/dev/null || true
  rm -rf "$to/benchmarks"
  mkdir -p "$to/benchmarks/gpu/peers"
  cp "$here/gpu.sh" "$to/benchmarks/"
  cp "$here"/gpu/*.py "$to/benchmarks/gpu/"
  cp "$here"/gpu/peers/*.py "$to/benchmarks/gpu/peers/"
  # What was built, for the results: the repository may stay behind.
  if git -C "$here" rev-parse --short=12 HEAD >"$to/commit" 2>/dev/null; then
    [ -z "$(git -C "$here" status --porcelain --untracked-files=no)" ] || sed -i 's/$/-dirty/' "$to/commit"
  else
    rm -f "$to/commit"
  fi
  du -sh "$to"
}
case "${1:-}" in --pack)
  [ $# -eq 2 ] || { echo "gpu.sh: --pack needs a folder" >&2; exit 2; }
  pack "$2"
  exit 0 ;;
esac

exec "$python" "$here/gpu/main.py" "$@"
