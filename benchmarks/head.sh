# Shared by the scripts of this folder; sourced behind scripts/common.sh, not run.
# shellcheck shell=bash disable=SC2034

# --help prints the comment at the script's begin; --out DIR becomes `out`, meant from where the script was called; the rest
# becomes `arguments`. Goes to the repository's root.
read_arguments() {
  local script="$1" started_in="$PWD"
  shift
  cd "$(repository_root)" || exit 2
  case " $* " in *" -h "* | *" --help "*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "benchmarks/$script"; exit 0 ;; esac
  arguments=() out="$PWD/build/benchmarks"
  while [ $# -gt 0 ]; do
    case "$1" in
      --out) [ $# -gt 1 ] || die 2 "$script: --out needs a folder"; out="$2"; shift 2 ;;
      --out=*) out="${1#--out=}"; shift ;;
      *) arguments+=("$1"); shift ;;
    esac
  done
  case "$out" in /*) ;; *) out="$started_in/$out" ;; esac
}

build_release() {
  local jobs
  jobs="$(parallel_jobs)"
  say "building the release preset with $jobs jobs"
  cmake --preset release
  cmake --build build/release --target "$@" --parallel "$jobs"
}
