#!/usr/bin/env bash
# Measures whether commit B is slower than commit A: builds both, and runs Fulgur's programs of the benchmarks C1 to C4
# and C7 in turn.
#
#   scripts/compare.sh main HEAD
#   scripts/compare.sh v0.1.0 . C1 C2 --rounds 15     `.`: the working tree
#   scripts/compare.sh main HEAD --quick              shows that all runs; its figures mean nothing
#
# Prints each number of both, the ratio B/A and the interval of its noise. It ends with 1 if a number of B is slower by
# more than the noise and --tolerance (0.02). Use a machine on which nothing else runs.
#
# FULGUR_BENCHMARK_PYTHON=python   an environment of your own with what benchmarks/requirements.txt names; else one is made
#                                  in the cache folder (5 GB)
# The builds stay in build/compare for the next comparison.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=benchmarks/head.sh
. "$(dirname "${BASH_SOURCE[0]}")/../benchmarks/head.sh"
case " $* " in *" -h "* | *" --help "*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
[ $# -ge 2 ] || die 2 "compare.sh: needs two commits; see scripts/compare.sh --help"
cd "$(repository_root)"

# The commit of a name; `.` stays.
resolved() {
  if [ "$1" = . ]; then echo .; return; fi
  git rev-parse --verify --quiet "$1^{commit}" || die 2 "compare.sh: there is no commit '$1'"
}
# Two assignments: the status of one with two substitutions is that of the last.
a="$(resolved "$1")"
b="$(resolved "$2")"
[ "$a" != "$b" ] || die 2 "compare.sh: '$1' and '$2' are the same commit"
shift 2

# Builds a commit in a separate folder; the path of the build goes to `built`.
build() {
  local commit="$1" tree
  if [ "$commit" = . ]; then
    tree="$PWD"
  else
    tree="$PWD/build/compare/$commit"
    [ -e "$tree/CMakeLists.txt" ] || { git worktree prune && git worktree add --quiet --detach "$tree" "$commit"; }
  fi
  say "building the benchmarks of ${commit:0:12}"
  (cd "$tree" && cmake --preset release >/dev/null && cmake --build build/release --target benchmarks --parallel "$(parallel_jobs)")
  built="$tree/build/release"
}

scripts/setup.sh
find_python_for_peers
build "$a"
built_a="$built"
build "$b"
exec "$python" benchmarks/harness/compare.py --a "$built_a" --b "$built" "$@"
