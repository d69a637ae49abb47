#!/usr/bin/env bash
# Installs what a build of Fulgur needs and is missing: Debian/Ubuntu packages (through apt) and LibTorch (through pip,
# into a cache folder that clones share). Safe to run again; it does nothing if nothing is missing.
#
#   scripts/setup.sh             packages + LibTorch
#   scripts/setup.sh --check     installs nothing; lists what is missing and exits 2, or exits 0
#
# FULGUR_LIBTORCH=cpu|cuda   which part of the torch wheel to take (default: cuda with an NVIDIA driver, else cpu)
# Torch_DIR, CMAKE_PREFIX_PATH   a LibTorch of your own: nothing is downloaded
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

check_only=0
case "${1:-}" in
  "") ;;
  --check) check_only=1 ;;
  *) die 2 "setup.sh: unknown argument '$1' (only --check is known)" ;;
esac

packages=(g++ cmake ninja-build ccache git ca-certificates python3 python3-venv
  libyaml-cpp-dev libspdlog-dev libfmt-dev libcli11-dev libgloo-dev nlohmann-json3-dev zlib1g-dev libzip-dev libarchive-dev libpng-dev libutf8proc-dev libjpeg-dev libwebp-dev libcurl4-openssl-dev libxxhash-dev
  libprotozero-dev libboost-dev openmpi-bin
  dataset-fashion-mnist)

package_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
catch2_is_v3() { package_installed catch2 && dpkg --compare-versions "$(dpkg-query -W -f '${Version}' catch2)" ge 3; }

missing=()
if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
  for p in "${packages[@]}"; do package_installed "$p" || missing+=("$p"); done
  catch2_is_v3 || missing+=("catch2 (>= 3)")
else
  for tool in g++ cmake ninja ccache git python3; do command -v "$tool" >/dev/null || missing+=("$tool"); done
  for h in yaml-cpp/yaml.h spdlog/spdlog.h CLI/CLI.hpp gloo/config.h nlohmann/json.hpp zlib.h zip.h archive.h png.h utf8proc.h jpeglib.h webp/decode.h curl/curl.h xxhash.h protozero/pbf_builder.hpp boost/crc.hpp \
    catch2/catch_all.hpp; do
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
have_headers=1
if ! libtorch_given_dir >/dev/null; then
  if cached="$(libtorch_cached_dir "$flavour")"; then libtorch_has_cuda_headers "$cached" || have_headers=0
  else have_torch=0; fi
fi

if [ $check_only = 1 ]; then
  [ ${#missing[@]} -eq 0 ] || printf 'missing package: %s\n' "${missing[@]}"
  [ $have_torch = 1 ] || echo "missing: LibTorch $TORCH_VERSION ($flavour)"
  [ $have_headers = 1 ] || echo "missing: CUDA's headers in $cached (wheels nvidia-cuda-crt $CUDA_CRT_VERSION, nvidia-cuda-cccl $CUDA_CCCL_VERSION)"
  [ ${#missing[@]} -eq 0 ] && [ $have_torch = 1 ] && [ $have_headers = 1 ] && exit 0
  exit 2
fi

as_root=()
if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || die 2 "setup.sh: packages are missing (${missing[*]}) and installing them needs root or sudo"
  as_root=(sudo)
fi

# sudo clears the environment, including proxies. The lock timeout waits for another apt (automatic updates).
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive ${http_proxy:+"http_proxy=$http_proxy"} ${https_proxy:+"https_proxy=$https_proxy"} \
    apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=600 "$@" </dev/null
}

# `update` has no lock timeout, so it is retried.
apt_update() {
  local try
  for try in 1 2 3 4 5 6; do
    apt "$@" update && return 0
    [ "$try" = 6 ] || { say "apt-get update failed; trying again in 10 s"; sleep 10; }
  done
  return 1
}

# URI of the archive that this machine takes its packages from.
debian_mirror() {
  local file uris
  for file in /etc/apt/sources.list.d/*.sources /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [ -r "$file" ] || continue
    uris="$(awk '/^URIs:/{for (i = 2; i <= NF; i++) print $i}
      /^deb[ \t]/{for (i = 2; i <= NF; i++) if ($i ~ /^[a-z+]+:\//) {print $i; break}}' "$file")"
    # The security archive has no backports.
    uris="$(printf '%s\n' "$uris" | grep -v security | grep -i debian || true)"
    [ -z "$uris" ] || { printf '%s\n' "${uris%%$'\n'*}"; return 0; }
  done
  return 1
}

# Debian 12 has Catch2 v3 only in backports. apt reads a list of sources of our own with a state folder of our own, so
# that the machine's sources and package lists stay as they are.
install_catch2_from_backports() {
  local dir codename mirror good=1
  # shellcheck source=/dev/null
  codename="$(. /etc/os-release && echo "${VERSION_CODENAME:-}")"
  [ "$codename" = bookworm ] || die 2 "setup.sh: catch2 of this system is older than 3, and no backport is known for '$codename'"
  mirror="$(debian_mirror)" || die 2 "setup.sh: no Debian mirror found in the apt sources, and catch2 3 is in bookworm-backports"
  dir="$(mktemp -d)"
  chmod 755 "$dir"
  mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
  printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s bookworm-backports main\n' "$mirror" >"$dir/sources.list"
  local opts=(-o "Dir::Etc::SourceList=$dir/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$dir/lists" -o "Dir::Cache=$dir/cache")
  if ! { apt_update "${opts[@]}" && apt "${opts[@]}" install -y --no-install-recommends catch2; }; then good=0; fi
  "${as_root[@]}" rm -rf "$dir"
  [ $good = 1 ] || die 2 "setup.sh: could not install catch2 from bookworm-backports"
}

install_libtorch() {
  local dir py
  dir="$(libtorch_cache_dir "$flavour")"
  mkdir -p "$(dirname "$dir")"
  # One set-up at a time: two clones may start together, and an incomplete folder must never look complete.
  exec 9>"$dir.lock"
  if command -v flock >/dev/null; then flock 9; fi
  libtorch_cached_dir "$flavour" >/dev/null && return 0
  py="$(python_for_wheel)" || die 2 "setup.sh: the torch $TORCH_VERSION wheel needs Python 3.10 to 3.14 with venv, and none was found. Install one, or name a LibTorch with Torch_DIR."
  say "installing LibTorch $TORCH_VERSION ($flavour) into $dir"
  rm -rf "$dir"
  "$py" -m venv "$dir"
  local pip=("$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-cache-dir --no-compile --retries 10)
  local wheels=("torch==$TORCH_VERSION")
  # libtorch_cpu.so needs these two at load time; the other nvidia wheels (3.5 GB) serve only the CUDA library.
  [ "$flavour" = cuda ] ||
    wheels=(--no-deps "torch==$TORCH_VERSION" "nvidia-cuda-runtime==$CUDA_RUNTIME_VERSION" "nvidia-cuda-cupti==$CUDA_CUPTI_VERSION")
  "${pip[@]}" "${wheels[@]}" || { rm -rf "$dir"; die 2 "setup.sh: pip could not install torch $TORCH_VERSION; see its messages above"; }
  touch "$dir/.complete"
}

if [ ${#missing[@]} -gt 0 ]; then
  say "installing: ${missing[*]}"
  apt_update || die 2 "setup.sh: apt-get update failed; see its messages above"
  names=()
  for p in "${packages[@]}"; do package_installed "$p" || names+=("$p"); done
  if [ ${#names[@]} -gt 0 ]; then
    apt install -y --no-install-recommends "${names[@]}" ||
      die 2 "setup.sh: apt-get could not install: ${names[*]}. On Ubuntu, 'universe' must be enabled."
  fi
  if ! catch2_is_v3; then
    candidate="$(LC_ALL=C apt-cache policy catch2 | awk '/Candidate:/{print $2}')"
    if dpkg --compare-versions "${candidate:-0}" ge 3; then apt install -y --no-install-recommends catch2
    else install_catch2_from_backports; fi
  fi
fi

# None of the wheels that torch requires contains these headers (a few MB). Folders of earlier set-ups get them too.
install_cuda_headers() {
  local dir
  dir="$(libtorch_cached_dir "$flavour")"
  exec 9>"$dir.lock"
  if command -v flock >/dev/null; then flock 9; fi
  if libtorch_has_cuda_headers "$dir"; then return 0; fi
  say "installing CUDA's headers into $dir"
  "$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-cache-dir --retries 10 --no-deps \
    "nvidia-cuda-crt==$CUDA_CRT_VERSION" "nvidia-cuda-cccl==$CUDA_CCCL_VERSION" ||
    die 2 "setup.sh: pip could not install nvidia-cuda-crt $CUDA_CRT_VERSION and nvidia-cuda-cccl $CUDA_CCCL_VERSION; see its messages above"
}

if [ $have_torch = 0 ]; then install_libtorch; fi
if ! libtorch_given_dir >/dev/null; then install_cuda_headers; fi
if given="$(libtorch_given_dir)"; then say "ready: your LibTorch, $given"
else say "ready: LibTorch in $(libtorch_cached_dir "$flavour")"; fi
