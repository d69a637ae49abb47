# Shared by the scripts of this folder; sourced after scripts/common.sh, not run.
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

# Once per content of requirements.txt; a half-made environment has no stamp.
make_environment() {
  local dir="$1" py
  mkdir -p "$(dirname "$dir")"
  exec 9>"$dir.lock"
  if command -v flock >/dev/null; then flock 9; fi
  if ! cmp -s benchmarks/requirements.txt "$dir/.requirements"; then
    say "Python packages of the peers into $dir"
    rm -rf "$dir"
    if command -v uv >/dev/null; then
      uv venv --quiet --python '>=3.10,<3.15' "$dir" && uv pip install --quiet --python "$dir/bin/python" -r benchmarks/requirements.txt
    else
      py="$(python_for_wheel)" || die 2 "Python 3.10 to 3.14 with venv is needed for the peers, and none was found"
      "$py" -m venv "$dir" &&
        "$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-cache-dir --retries 10 -r benchmarks/requirements.txt
    fi || die 2 "benchmarks/requirements.txt could not be installed; see the messages above"
    cp benchmarks/requirements.txt "$dir/.requirements"
  fi
  exec 9>&-
}

# The Python of the peers becomes `python`: the one that FULGUR_BENCHMARK_PYTHON names, or that of an environment in the cache folder.
find_python_for_peers() {
  python="${FULGUR_BENCHMARK_PYTHON:-}"
  [ -z "$python" ] || return 0
  local environment="${XDG_CACHE_HOME:-$HOME/.cache}/fulgur/benchmarks-python"
  make_environment "$environment"
  python="$environment/bin/python"
}
