#!/usr/bin/env bash
# Makes a package of the build, installs it in a clean folder or environment, and trains with it.
#   package_test.sh tarball|deb|wheel BUILD_DIR WORK_DIR CMAKE COMPILER
# Exits with 4 (skipped) if what is needed is missing; with FULGUR_REQUIRE_PACKAGES=1 patchelf is installed, and all must work.
set -euo pipefail
kind="$1" build="$2" work="$3" cmake="$4" compiler="$5"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
fail() { echo "FAILED: $*" >&2; exit 1; }
skip() {
  echo "skipped: $*"
  [ -z "${FULGUR_REQUIRE_PACKAGES:-}" ] || fail "FULGUR_REQUIRE_PACKAGES is set"
  exit 4
}

[ -n "${FULGUR_REQUIRE_PACKAGES:-}" ] || export FULGUR_PACKAGE_NO_INSTALL=1
torch="$(sed -n 's/^FULGUR_TORCH_ROOT:[A-Z]*=//p' "$build/CMakeCache.txt")"
rm -rf "$work"
mkdir -p "$work/empty"
PATH="$(dirname "$cmake"):$PATH" "$root/scripts/package.sh" "$kind" --build "$build" --output "$work/out" || {
  code=$?
  [ $code != 4 ] || skip "a tool of scripts/package.sh is missing (see above)"
  exit $code
}

# A machine without a LibTorch: neither in the home folder nor in the environment.
clean() { env -i HOME="$work/empty" PATH="${clean_path:-/usr/bin:/bin}" OMP_NUM_THREADS=1 FULGUR_FAST_EXIT=1 "$@"; }
# The LibTorch of the build must not be found through a path that was left in a file.
no_paths_of_this_machine() {
  local file
  while IFS= read -r -d '' file; do
    [ "$(head -c 4 "$file" | tail -c 3)" = ELF ] || continue
    if readelf -d "$file" | grep -E 'R(UN)?PATH' | grep -E '\[/|:/' >&2; then fail "$file names a folder of this machine"; fi
  done < <(find "$1" -type f -print0)
  if grep -rlF -e "$torch" -e "$build" "$1" --include='*.cmake' --include='*.py' >&2; then fail "a file names a folder of this machine"; fi
}
# A short training, on one rank and on two, with the command in "$@".
trains() {
  local run="$work/run"
  rm -rf "$run"
  local fit=(fit --model MlpClassifier --model.in_features 4 --model.num_classes 3 --data SyntheticDataModule --data.num_classes 3 --data.shape '[4]'
    --optimizer SGD --seed_everything 1 --trainer.max_steps 20 --trainer.accelerator cpu --trainer.default_root_dir "$run")
  "$@" "${fit[@]}" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "the training failed: $*"; }
  [ -e "$run/fulgur_logs/version_0/checkpoints/last.ckpt/model.safetensors" ] || fail "there is no checkpoint: $*"
  "$@" "${fit[@]}" --resume --trainer.max_steps 30 >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "the resumed training failed: $*"; }
  # Ranks are started by the program itself, without its launcher.
  "$@" "${fit[@]}" --trainer.strategy ddp --trainer.devices 2 --data.batch_size 4 >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "two ranks failed: $*"; }
}
# A program that links the library of the package.
builds() { # NAME CMAKE_ARGUMENTS…
  mkdir -p "$work/program"
  cat >"$work/program/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(my LANGUAGES CXX)
find_package(fulgur REQUIRED)
file(WRITE ${CMAKE_BINARY_DIR}/my.cpp "")
add_executable(my ${CMAKE_BINARY_DIR}/my.cpp)
target_link_libraries(my PRIVATE fulgur::main)
CMAKE
  clean "$cmake" -S "$work/program" -B "$work/program/build" -G Ninja "-DCMAKE_CXX_COMPILER=$compiler" "$@" >"$work/log" 2>&1 &&
    clean "$cmake" --build "$work/program/build" >>"$work/log" 2>&1 || { cat "$work/log" >&2; fail "a program does not link the library of the package"; }
  clean "$work/program/build/my" list model | grep -q MlpClassifier || fail "the program does not run"
}
# Without LibTorch, the command ends with 2 and says what to do.
says_what_is_missing() {
  local code=0
  "$@" --version >"$work/log" 2>&1 || code=$?
  { [ $code = 2 ] && grep -q "pip install" "$work/log"; } || { cat "$work/log" >&2; fail "without LibTorch, the program ends with $code: $*"; }
}

check_launcher() { # PREFIX
  local trainer="$1/bin/trainer" other="$work/torch_of_another_version"
  if python3 -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null; then
    echo "python3 has torch: not tried without LibTorch"
  else
    says_what_is_missing clean "$trainer"
  fi
  mkdir -p "$other/lib"
  touch "$other/lib/libtorch_cpu.so"
  echo "2.9.1+cpu" >"$other/build-version"
  if clean FULGUR_TORCH="$other" "$trainer" --version 2>"$work/log"; then fail "a LibTorch of another version is used"; fi
  grep -q "$other has LibTorch 2.9.1" "$work/log" || { cat "$work/log" >&2; fail "the version that was found is not said"; }
  clean FULGUR_TORCH="$torch" "$trainer" --version | grep -q '^fulgur [0-9]' || fail "FULGUR_TORCH is not used"
  clean LD_LIBRARY_PATH="$torch/lib" "$trainer" --version | grep -q '^fulgur [0-9]' || fail "LD_LIBRARY_PATH is not used"
  mkdir -p "$work/venv/lib/python3.11/site-packages"
  ln -sfn "$torch" "$work/venv/lib/python3.11/site-packages/torch"
  clean VIRTUAL_ENV="$work/venv" "$trainer" --version | grep -q '^fulgur [0-9]' || fail "VIRTUAL_ENV is not used"
  local cached="$work/home/.cache/fulgur/torch-2.11.0-cpu"
  mkdir -p "$cached/lib/python3.11/site-packages"
  ln -sfn "$torch" "$cached/lib/python3.11/site-packages/torch"
  touch "$cached/.complete"
  clean HOME="$work/home" "$trainer" --version | grep -q '^fulgur [0-9]' || fail "the cache folder of setup.sh is not used"
  ln -sfn "$torch" "$1/torch"
  trains clean "$trainer"
}

check_tarball() {
  local archive=("$work"/out/fulgur-*-linux-*.tar.gz) prefix="$work/moved elsewhere/fulgur"
  mkdir -p "$(dirname "$prefix")"
  tar -xzf "${archive[0]}" -C "$work"
  mv "$work/$(basename "${archive[0]}" .tar.gz)" "$prefix"
  no_paths_of_this_machine "$prefix"
  LD_LIBRARY_PATH="$torch/lib" ldd "$prefix/lib/libfulgur.so" >"$work/log"
  for library in yaml-cpp spdlog fmt zip archive png16 jpeg webp utf8proc; do
    grep -qE "lib$library\.so\S* => $prefix/lib/fulgur/libs/" "$work/log" || fail "lib$library is not taken from the package: $(grep "lib$library" "$work/log")"
  done
  [ -n "$(ls "$prefix/share/fulgur/licenses")" ] || ! command -v dpkg-query >/dev/null || fail "the licences of the libraries are missing"
  check_launcher "$prefix"
  builds -DCMAKE_PREFIX_PATH="$prefix"
}

check_deb() {
  command -v dpkg-deb >/dev/null || skip "dpkg-deb is missing"
  local package name prefix="$work/system/usr"
  for name in libfulgur libfulgur-dev fulgur-tools; do
    package=("$work/out/${name}_"*.deb)
    [ -e "${package[0]}" ] || fail "there is no package $name"
    dpkg-deb -x "${package[0]}" "$work/system"
    [ -n "$(dpkg-deb -f "${package[0]}" Description)" ] || fail "$name has no description"
    # A package that exists on the system of the build; those of this version are checked below.
    dpkg-deb -f "${package[0]}" Depends | tr ',|' '\n\n' | sed 's/(.*//; s/ //g' | while read -r needed; do
      [ -z "$needed" ] || [ "$needed" = libfulgur ] || dpkg-query -W "$needed" >/dev/null 2>&1 || fail "$name depends on $needed, which this system does not have"
    done
  done
  dpkg-deb -f "$work"/out/libfulgur_*.deb Depends | grep -q 'libyaml-cpp' || fail "libfulgur does not depend on libyaml-cpp"
  dpkg-deb -f "$work"/out/libfulgur-dev_*.deb Depends | grep -qE '^libfulgur \(= [0-9.]+\)' || fail "libfulgur-dev does not depend on libfulgur of its version"
  no_paths_of_this_machine "$work/system"
  check_launcher "$prefix"
  builds -DCMAKE_PREFIX_PATH="$prefix" -DTorch_DIR="$torch/share/cmake/Torch"
  # With root's rights and on a machine that may be changed, apt itself installs them.
  if [ -n "${FULGUR_INSTALL_DEBS:-}" ]; then
    apt-get install -y "$work"/out/*.deb
    trains clean FULGUR_TORCH="$torch" /usr/bin/trainer
  fi
}

check_wheel() {
  local wheel=("$work"/out/fulgur-*.whl) python="" candidate site
  site="$(dirname "$torch")"
  # The Python of the build's LibTorch: its packages are those of one version.
  for candidate in "$site"/../../../bin/python python3; do
    if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then python="$candidate"; break; fi
  done
  [ -n "$python" ] || skip "there is no Python with venv"
  [ -n "$(ls -d "$site"/torch-2.11*.dist-info 2>/dev/null)" ] || skip "the LibTorch of the build is no wheel of Python"
  "$python" -m venv "$work/with" && "$python" -m venv "$work/without"
  echo "$site" >"$("$work/with/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch_of_the_build.pth"
  # The dependency on torch is that of the wheel: pip finds it installed, or fails.
  if "$work/with/bin/pip" install --quiet --disable-pip-version-check --no-index "${wheel[0]}" >"$work/log" 2>&1; then :; else
    cat "$work/log" >&2
    # The cpu part lacks wheels that torch requires.
    [ ! -e "$site/nvidia/cublas" ] && [ ! -e "$site/nvidia/cu13/lib/libcublas.so.13" ] || fail "pip does not install the wheel"
    "$work/with/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps "${wheel[0]}"
  fi
  if "$work/without/bin/pip" install --quiet --disable-pip-version-check --no-index "${wheel[0]}" 2>"$work/log"; then fail "the wheel does not need torch"; fi
  "$work/without/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps "${wheel[0]}"
  says_what_is_missing clean "$work/without/bin/trainer"
  clean "$work/with/bin/trainer" --version | grep -q '^fulgur [0-9]' || fail "trainer does not start"
  clean "$work/with/bin/python" -m fulgur --version | grep -q '^fulgur [0-9]' || fail "python -m fulgur does not start"
  no_paths_of_this_machine "$("$work/with/bin/python" -c 'import fulgur; print(fulgur.prefix)')"
  trains clean "$work/with/bin/trainer"
  builds "-Dfulgur_DIR=$("$work/with/bin/python" -c 'import fulgur; print(fulgur.cmake_dir)')" "-DTorch_DIR=$("$work/with/bin/python" -c 'import fulgur; print(fulgur.torch_dir())')"
  # Nothing of it stays.
  "$work/with/bin/pip" uninstall --quiet --yes fulgur
  [ ! -e "$work/with/bin/trainer" ] || fail "trainer is still there"
  [ -z "$(find "$work/with" -path '*site-packages/fulgur/*' -type f ! -name '*.pyc')" ] || fail "files of the wheel are still there"
}

"check_$kind"
rm -rf "$work"
