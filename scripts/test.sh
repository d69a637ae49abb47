#!/usr/bin/env bash
# Sets the machine up, builds everything in the release preset and runs all tests. Safe to run again. Arguments go to
# ctest:
#
#   scripts/test.sh
#   scripts/test.sh -R 'trainer:' --verbose
#
# Tests that need Python's torch use an environment beside the full LibTorch (FULGUR_LIBTORCH=cuda). With the CPU part,
# from which Python cannot import torch, they are skipped and say so.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$(repository_root)"

scripts/setup.sh

# Installs tests/requirements.txt into the Python of $1, once per version of that file.
make_test_python() {
  local venv="$1" stamp
  stamp="$venv/.test-requirements"
  exec 8>"$venv.test.lock"
  if command -v flock >/dev/null; then flock 8; fi
  if ! cmp -s tests/requirements.txt "$stamp"; then
    say "installing the Python packages of the tests into $venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-cache-dir --retries 10 -r tests/requirements.txt ||
      die 2 "test.sh: pip could not install tests/requirements.txt; see its messages above"
    cp tests/requirements.txt "$stamp"
  fi
  exec 8>&-
}

if [ -n "${FULGUR_TEST_PYTHON:-}" ]; then
  say "tests use your Python, $FULGUR_TEST_PYTHON"
elif [ "${FULGUR_LIBTORCH:-auto}" != cpu ] && ! libtorch_given_dir >/dev/null && venv="$(libtorch_cached_dir cuda)"; then
  make_test_python "$venv"
  export FULGUR_TEST_PYTHON="$venv/bin/python"
else
  say "no Python that can import torch: tests that need one will be skipped (FULGUR_LIBTORCH=cuda installs one)"
fi

jobs="$(parallel_jobs)"
say "building the release preset with $jobs jobs"
cmake --preset release
cmake --build build/release --parallel "$jobs"

# Simulated CUDA needs headers of CUDA and LibTorch's CUDA library.
if [ ! -e build/release/simulated_cuda/libcudart.so.13 ]; then
  [ -z "${FULGUR_REQUIRE_SIMULATED_GPU:-}" ] || die 1 "test.sh: simulated CUDA was not built, and FULGUR_REQUIRE_SIMULATED_GPU is set; see cmake's message above"
  say "simulated CUDA was not built (see cmake's message above): tests for GPUs will be skipped"
fi

# Tests write many checkpoints, each of which waits for the disk several times. In a file system in memory they take a
# sixth of the time.
memory_folder() {
  local free folder
  free="$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)" || return 1
  [ "${free:-0}" -ge $((4 * 1024 * 1024)) ] || return 1
  folder="$(mktemp -d /dev/shm/fulgur-tests-XXXXXX)" || return 1
  # A test gives up root's rights, and must still reach its folder.
  chmod 755 "$folder" && echo "$folder"
}
if [ -z "${TMPDIR:-}" ] && in_memory="$(memory_folder)"; then
  export TMPDIR="$in_memory"
  say "temporary files of the tests are in memory, in $in_memory"
fi

# One thread each: tests run side by side, and OpenMP threads that spin against each other are many times slower.
export OMP_NUM_THREADS=1
# The destructors of LibTorch take a third of a short process, and the tests start thousands.
export FULGUR_FAST_EXIT=1
log="$(mktemp)"
trap 'rm -rf "$log" ${in_memory:+"$in_memory"}' EXIT
status=0
# Two more than there are cores: tests of several processes mostly wait.
ctest --test-dir build/release --output-on-failure --no-tests=error --parallel "$(($(cores) + 2))" "$@" 2>&1 | tee "$log" || status=$?

# What the tests that failed said first, for readers who have the end of the output alone.
awk '/^ *[0-9]+\/[0-9]+ Test +#/ { failed = /\*\*\*(Failed|Timeout|Exception)/; lines = 0; if (failed) print substr($0, 1, 200) }
  failed && /FAILED:/ && !lines { lines = 14 }
  lines > 0 { print "    " substr($0, 1, 200); if (--lines == 0) failed = 0 }' "$log"

# Counts the tests of each launcher, then repeats ctest's own summary, so that it comes last.
count() { grep -E "^ *[0-9]+/[0-9]+ Test +#" "$log" | grep -E "$1" | grep -cE "$2" || true; }
for launcher in "trainer itself=distributed: (launch:|F[0-9]+, launched|F21|two nodes)" "torchrun=distributed: torchrun" "mpirun=distributed: mpirun" "srun=distributed: srun"; do
  say "launcher ${launcher%%=*}: $(count "${launcher#*=}" ' Passed ') tests passed, $(count "${launcher#*=}" 'Skipped') skipped, $(count "${launcher#*=}" 'Failed|Timeout|Exception') failed"
done
say "simulated GPUs: $(count '\(simulated GPU, |simulated_cuda: ' ' Passed ') tests passed, $(count '\(simulated GPU, |simulated_cuda: ' 'Skipped') skipped, $(count '\(simulated GPU, |simulated_cuda: ' 'Failed|Timeout|Exception') failed"
sed -n '/^[0-9]*% tests passed/,$p' "$log"
exit "$status"
