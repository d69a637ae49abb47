#!/bin/sh
# Starts trainer with LibTorch @TORCH_VERSION@, which is no part of this package. These places are searched in this order:
#   FULGUR_TORCH                the folder of a LibTorch or of Python's package torch, which contains lib/libtorch_cpu.so
#   LD_LIBRARY_PATH             if one of its folders contains libtorch_cpu.so
#   PREFIX/torch                beside this package
#   VIRTUAL_ENV, CONDA_PREFIX   the active environment of Python
#   ~/.cache/fulgur             the folder of scripts/setup.sh (FULGUR_LIBTORCH=cpu|cuda chooses a part of it)
#   python3                     the Python in PATH
set -eu
prefix=$(dirname "$(dirname "$(readlink -f "$0")")")
program=$prefix/libexec/fulgur/trainer
wanted=@TORCH_VERSION@
torch=
others=

# Takes the LibTorch in folder $1 if it is one, and if its version is the right one.
try() {
  if [ -n "$torch" ] || [ ! -e "$1/lib/libtorch_cpu.so" ]; then return 0; fi
  version=
  if [ -r "$1/version.py" ]; then
    version=$(sed -n "s/^__version__ *= *['\"]\([0-9.]*\).*/\1/p" "$1/version.py")
  elif [ -r "$1/build-version" ]; then
    version=$(sed -n '1s/^\([0-9.]*\).*/\1/p' "$1/build-version")
  fi
  # A LibTorch that was built by hand may not say its version.
  case "${version:-$wanted}" in
    "${wanted%.*}".*) torch=$1 ;;
    *) others="$others
  $1 has LibTorch $version" ;;
  esac
}

if [ -n "${FULGUR_TORCH:-}" ]; then
  try "$FULGUR_TORCH"
  if [ -z "$torch" ]; then
    echo "trainer: FULGUR_TORCH must be the folder of a LibTorch ${wanted%.*}, which contains lib/libtorch_cpu.so; got '$FULGUR_TORCH'.$others" >&2
    exit 2
  fi
else
  IFS=:
  for folder in ${LD_LIBRARY_PATH:-}; do
    unset IFS
    # The program finds it by itself.
    if [ -n "$folder" ] && [ -e "$folder/libtorch_cpu.so" ]; then exec "$program" "$@"; fi
  done
  unset IFS
  try "$prefix/torch"
  for environment in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
    [ -z "$environment" ] || for folder in "$environment"/lib/python3*/site-packages/torch; do try "$folder"; done
  done
  parts="cuda cpu"
  if [ "${FULGUR_LIBTORCH:-}" = cpu ]; then parts="cpu cuda"; fi
  cache=${XDG_CACHE_HOME:-${HOME:-}/.cache}/fulgur
  for part in $parts; do
    if [ -e "$cache/torch-$wanted-$part/.complete" ]; then
      for folder in "$cache/torch-$wanted-$part"/lib/python3*/site-packages/torch; do try "$folder"; done
    fi
  done
  if [ -z "$torch" ]; then
    folder=$(python3 -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")' 2>/dev/null) || folder=
    [ -z "$folder" ] || try "$folder"
  fi
fi

if [ -z "$torch" ]; then
  cat >&2 <<MESSAGE
trainer: LibTorch ${wanted%.*} was not found; this package does not contain it. Do one of these:
  python3 -m venv ~/torch && ~/torch/bin/pip install torch==$wanted && export VIRTUAL_ENV=~/torch
  export FULGUR_TORCH=FOLDER      a LibTorch $wanted that you have: FOLDER contains lib/libtorch_cpu.so
  ln -s FOLDER $prefix/torch
Searched: LD_LIBRARY_PATH, $prefix/torch, VIRTUAL_ENV, CONDA_PREFIX, $cache/torch-$wanted-cuda and -cpu, python3.$others
MESSAGE
  exit 2
fi
LD_LIBRARY_PATH=$torch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
exec "$program" "$@"
