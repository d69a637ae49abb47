#!/usr/bin/env bash
# Installs what a build of Fulgur needs and is missing: Debian/Ubuntu packages (through apt) and LibTorch (through pip,
# into a cache folder that clones share). Safe to run again; it does nothing where nothing is missing.
#
#   scripts/setup.sh             packages + LibTorch
#   scripts/setup.sh --check     installs nothing; lists what is missing and exits 2, or exits 0
#
# FULGUR_LIBTORCH=cpu|cuda   which part of the torch wheel to take (default: cuda where an NVIDIA driver is, else cpu)
# Torch_DIR, CMAKE_PREFIX_PATH   a LibTorch of your own: nothing is downloaded
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

check_only=0
case "${1:-}" in
  "") ;;
  --check) check_only=1 ;;
  *) die 2 "setup.sh: unknown argument '$1' (only --check is known)" ;;
esac

packages=(g++ cmake ninja-build ccache git ca-certificates python3 python3-venv
  libyaml-cpp-dev libspdlog-dev libfmt-dev libcli11-dev libgloo-dev nlohmann-json3-dev zlib1g-dev libxxhash-dev
  dataset-fashion-mnist)

package_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
catch2_is_v3() { package_installed catch2 && dpkg --compare-versions "$(dpkg-query -W -f '${Version}' catch2)" ge 3; }

missing=()
if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
  for p in "${packages[@]}"; do package_installed "$p" || missing+=("$p"); done
  catch2_is_v3 || missing+=("catch2 (>= 3)")
else
  for tool in g++ cmake ninja ccache git python3; do command -v "$tool" >/dev/null || missing+=("$tool"); done
  for h in yaml-cpp/yaml.h spdlog/spdlog.h CLI/CLI.hpp gloo/config.h nlohmann/json.hpp zlib.h xxhash.h catch2/catch_all.hpp; do
    found=0
    for d in /usr/include /usr/local/include; do [ -e "$d/$h" ] && found=1; done
    [ $found = 1 ] || missing+=("header <$h>")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    { echo "setup.sh: this system has no apt, so nothing was installed. Missing:"
      printf '  %s\n' "${missing[@]}"
      echo "docs/install.md names the packages of other distributions."; } >&2
    exit 2
  fi
fi

flavour="$(libtorch_flavour)"
have_torch=1
libtorch_given || libtorch_cached "$flavour" || have_torch=0

if [ $check_only = 1 ]; then
  [ ${#missing[@]} -eq 0 ] || printf 'missing package: %s\n' "${missing[@]}"
  [ $have_torch = 1 ] || echo "missing: LibTorch $TORCH_VERSION ($flavour)"
  [ ${#missing[@]} -eq 0 ] && [ $have_torch = 1 ] && exit 0
  exit 2
fi

as_root=()
if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || die 2 "setup.sh: packages are missing (${missing[*]}) and neither root nor sudo is at hand"
  as_root=(sudo)
fi
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@"; }

# Debian 12 has Catch2 v3 only in backports. apt reads a list of sources of our own with a state folder of our own, so
# that the machine's sources and package lists stay as they are.
install_catch2_from_backports() {
  local dir codename mirror
  codename="$(. /etc/os-release && echo "${VERSION_CODENAME:-}")"
  [ "$codename" = bookworm ] || die 2 "setup.sh: catch2 of this system is older than 3 and no backport is known for '$codename'"
  mirror="$(awk '/^URIs:/{print $2; exit} /^deb /{for(i=2;i<=NF;i++) if($i ~ /^[a-z]+:\/\//){print $i; exit}}' \
    /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null || true)"
  [ -n "$mirror" ] || die 2 "setup.sh: no Debian mirror found in the apt sources"
  dir="$(mktemp -d)"
  chmod 755 "$dir"; mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
  printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s bookworm-backports main\n' "$mirror" >"$dir/sources.list"
  local opts=(-o Dir::Etc::SourceList="$dir/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o Dir::State::Lists="$dir/lists" -o Dir::Cache="$dir/cache")
  apt "${opts[@]}" update && apt "${opts[@]}" install -y --no-install-recommends catch2 || {
    rm -rf "$dir"; die 2 "setup.sh: could not install catch2 from bookworm-backports"; }
  "${as_root[@]}" rm -rf "$dir"
}

if [ ${#missing[@]} -gt 0 ]; then
  say "installing: ${missing[*]}"
  apt update
  names=(); for p in "${packages[@]}"; do package_installed "$p" || names+=("$p"); done
  [ ${#names[@]} -eq 0 ] || apt install -y --no-install-recommends "${names[@]}"
  if ! catch2_is_v3; then
    candidate="$(apt-cache policy catch2 | awk '/Candidate:/{print $2}')"
    if dpkg --compare-versions "${candidate:-0}" ge 3; then apt install -y --no-install-recommends catch2
    else install_catch2_from_backports; fi
  fi
fi

install_libtorch() {
  local dir; dir="$(libtorch_cache_dir "$flavour")"
  mkdir -p "$(dirname "$dir")"
  # One set-up at a time: two clones may start together, and a half-made folder must never look complete.
  exec 9>"$dir.lock"
  command -v flock >/dev/null && flock 9
  libtorch_cached "$flavour" && return 0
  say "LibTorch $TORCH_VERSION ($flavour) into $dir"
  rm -rf "$dir"
  local py=/usr/bin/python3
  [ -x $py ] || py="$(command -v python3)"
  "$py" -m venv "$dir"
  local pip=("$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir)
  if [ "$flavour" = cuda ]; then
    "${pip[@]}" "torch==$TORCH_VERSION"
  else
    # libtorch_cpu.so needs these two at load time; the other nvidia wheels (3.5 GB) serve only the CUDA library.
    "${pip[@]}" --no-deps "torch==$TORCH_VERSION" "nvidia-cuda-runtime==$CUDA_RUNTIME_VERSION" "nvidia-cuda-cupti==$CUDA_CUPTI_VERSION"
  fi
  touch "$dir/.complete"
}

if [ $have_torch = 0 ]; then install_libtorch; fi
say "ready: LibTorch $(libtorch_given && echo 'as named by Torch_DIR/CMAKE_PREFIX_PATH' || libtorch_cache_dir "$flavour")"
