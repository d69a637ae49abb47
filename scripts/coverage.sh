#!/usr/bin/env bash
# Measures which lines of the product the tests run: builds with gcov's counters, runs the tests, and prints the figure.
#
#   scripts/coverage.sh                     all tests
#   scripts/coverage.sh -R 'core:|cli:'     arguments go to ctest
#   scripts/coverage.sh --least 90          ends with 1 if less than 90 % of the lines are run
#   scripts/coverage.sh --only-report       of the last run
#
# Writes build/coverage/coverage.txt, with the lines that no test runs, by file. The build takes as long as that of preset
# dev. Processes that a test kills write no counts.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
case " $* " in *" -h "* | *" --help "*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
cd "$(repository_root)"

least=0
only_report=0
tests=()
while [ $# -gt 0 ]; do
  case "$1" in
    --least) least="${2:?--least needs a number}"; shift 2 ;;
    --only-report) only_report=1; shift ;;
    *) tests+=("$1"); shift ;;
  esac
done

status=0
if [ $only_report = 0 ]; then
  scripts/setup.sh
  # Optimization would remove lines; the counters of threads must not be lost. LibTorch's headers need its NDEBUG.
  cmake -S . -B build/coverage -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_UNITY_BUILD=ON \
    -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O0 -g1 -DNDEBUG --coverage -fprofile-update=atomic" \
    -DCMAKE_EXE_LINKER_FLAGS=--coverage -DCMAKE_SHARED_LINKER_FLAGS=--coverage -DCMAKE_MODULE_LINKER_FLAGS=--coverage
  cmake --build build/coverage --parallel "$(parallel_jobs)"
  find build/coverage -name '*.gcda' -delete
  # A test that kills a process while it writes its counts damages a file of counts, to which no process adds from then on.
  damaged="$PWD/build/coverage/damaged.txt"
  rm -f "$damaged"
  # No FULGUR_FAST_EXIT: counts are written when a process ends in order.
  env -u FULGUR_FAST_EXIT GCOV_ERROR_FILE="$damaged" OMP_NUM_THREADS=1 ctest --test-dir build/coverage --output-on-failure --no-tests=error \
    --parallel "$(($(cores) + 2))" ${tests[@]+"${tests[@]}"} || status=$?
  [ $status = 0 ] || say "some tests failed; the figure is that of what ran"
  if [ -s "$damaged" ]; then
    say "counts are missing, since tests have killed processes that wrote them: delete these files, run the tests of the part again, and --only-report"
    grep -o '/[^:]*[.]gcda' "$damaged" | sort -u
  fi
fi

py="$(python_for_wheel)" || py=python3
"$py" -B scripts/coverage.py --build build/coverage --root . --details build/coverage/coverage.txt --least "$least" || status=$?
exit "$status"
