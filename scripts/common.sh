# Shared by the scripts of this folder; sourced, not run.
TORCH_VERSION=2.11.0
CUDA_RUNTIME_VERSION=13.0.96
CUDA_CUPTI_VERSION=13.0.85

say() { printf '[fulgur] %s\n' "$*"; }
die() { local code="$1"; shift; printf '%s\n' "$*" >&2; exit "$code"; }

repository_root() { (cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd); }

# cpu or cuda: as asked, else cuda where an NVIDIA driver is loaded.
libtorch_flavour() {
  case "${FULGUR_LIBTORCH:-auto}" in
    cpu | cuda) echo "$FULGUR_LIBTORCH" ;;
    auto) if [ -e /proc/driver/nvidia/version ]; then echo cuda; else echo cpu; fi ;;
    *) die 2 "FULGUR_LIBTORCH must be cpu, cuda or auto, got '$FULGUR_LIBTORCH'" ;;
  esac
}

libtorch_cache_dir() { echo "${XDG_CACHE_HOME:-$HOME/.cache}/fulgur/torch-$TORCH_VERSION-$1"; }

# True where that part is in the cache. The cuda part serves as the cpu part too.
libtorch_cached() {
  [ -e "$(libtorch_cache_dir "$1")/.complete" ] || { [ "$1" = cpu ] && [ -e "$(libtorch_cache_dir cuda)/.complete" ]; }
}

# True where the user names a LibTorch of their own.
libtorch_given() {
  [ -n "${Torch_DIR:-}" ] && return 0
  local p; local IFS=':;'
  for p in ${CMAKE_PREFIX_PATH:-}; do [ -e "$p/share/cmake/Torch/TorchConfig.cmake" ] && return 0; done
  return 1
}
