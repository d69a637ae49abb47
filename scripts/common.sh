# Shared by the scripts of this folder; sourced, not run.
# shellcheck shell=bash disable=SC2034
TORCH_VERSION=2.11.0
CUDA_RUNTIME_VERSION=13.0.96
CUDA_CUPTI_VERSION=13.0.85
CUDA_CRT_VERSION=13.0.88
CUDA_CCCL_VERSION=13.0.85

say() { printf '[fulgur] %s\n' "$*"; }
die() { local code="$1"; shift; printf '%s\n' "$*" >&2; exit "$code"; }

repository_root() { (cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd); }

# Cores this process may use. nproc would obey OMP_NUM_THREADS, which is for the programs.
cores() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc 2>/dev/null || echo 1; }

# Jobs to run at once: the cores this process may use, and no more than memory holds (a compiler needs up to 2 GB).
parallel_jobs() {
  local cores memory_gb
  cores="$(cores)"
  memory_gb="$(awk '/^MemAvailable:/{print int($2 / 1048576)}' /proc/meminfo 2>/dev/null || true)"
  local by_memory=$((${memory_gb:-2} / 2))
  [ "$by_memory" -ge 1 ] || by_memory=1
  echo $((cores < by_memory ? cores : by_memory))
}

# A Python that the wheel supports and that can make environments.
python_for_wheel() {
  local py
  for py in /usr/bin/python3 python3 python3.13 python3.12 python3.11 python3.10; do
    py="$(command -v "$py")" || continue
    "$py" -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null || continue
    echo "$py"
    return 0
  done
  return 1
}

# cached_environment NAME REQUIREMENTS NO_INSTALL WHAT MISSING NO_PYTHON: sets `environment` to the folder of an environment in the cache
# with the Python packages of the file REQUIREMENTS, and makes it if it is not there. The folder has the name of the
# versions, and a mark if it is complete. If NO_INSTALL is not empty, a missing one ends the script with 4 and MISSING.
cached_environment() {
  local python
  environment="${XDG_CACHE_HOME:-$HOME/.cache}/fulgur/$1-$(sha256sum "$2" | cut -c1-12)"
  if [ -e "$environment/.complete" ]; then return; fi
  [ -z "$3" ] || die 4 "$5"
  python="$(python_for_wheel)" || die 2 "$6"
  say "installing $4 into $environment"
  rm -rf "$environment"
  "$python" -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check --no-input -r "$2" ||
    die 2 "$(basename "$0"): pip could not install $4; see its messages above"
  touch "$environment/.complete"
}

# True with an NVIDIA driver: the kernel's, one in a container, or Windows' under WSL2.
has_nvidia_driver() { [ -e /proc/driver/nvidia/version ] || [ -e /dev/nvidiactl ] || [ -e /usr/lib/wsl/lib/libcuda.so.1 ]; }

# cpu or cuda: as requested, else cuda if an NVIDIA driver is loaded.
libtorch_flavour() {
  case "${FULGUR_LIBTORCH:-auto}" in
    cpu | cuda) echo "$FULGUR_LIBTORCH" ;;
    auto) if has_nvidia_driver; then echo cuda; else echo cpu; fi ;;
    *) die 2 "FULGUR_LIBTORCH must be cpu, cuda or auto, got '$FULGUR_LIBTORCH'" ;;
  esac
}

libtorch_cache_dir() { echo "${XDG_CACHE_HOME:-$HOME/.cache}/fulgur/torch-$TORCH_VERSION-$1"; }

# The folder in the cache that serves part $1, or nothing. The cuda part serves as the cpu part too, and is preferred, as
# in cmake/FulgurLibTorch.cmake.
libtorch_cached_dir() {
  local part parts="cuda cpu"
  if [ "$1" = cuda ]; then parts=cuda
  elif [ "${FULGUR_LIBTORCH:-auto}" = cpu ]; then parts="cpu cuda"; fi
  for part in $parts; do
    if [ -e "$(libtorch_cache_dir "$part")/.complete" ]; then
      libtorch_cache_dir "$part"
      return 0
    fi
  done
  return 1
}

# True if the LibTorch in folder $1 of the cache has all headers that libfulgur_cuda.so is compiled with.
libtorch_has_cuda_headers() {
  local header
  for header in "$1"/lib/python3*/site-packages/nvidia/cu13/include/crt/host_config.h; do
    [ -e "$header" ] && [ -e "${header%/crt/*}/nv/target" ] && return 0
  done
  return 1
}

# The LibTorch that the user names, or nothing: the rule is that of cmake/FulgurLibTorch.cmake.
libtorch_given_dir() {
  local prefix dir IFS=':;'
  for prefix in ${Torch_DIR:+"$Torch_DIR/../../.."} ${CMAKE_PREFIX_PATH:-}; do
    for dir in "$prefix" "$prefix/torch"; do
      if [ -e "$dir/lib/libtorch_cpu.so" ] && [ -e "$dir/include/ATen/core/Tensor.h" ]; then
        echo "$dir"
        return 0
      fi
    done
  done
  return 1
}
