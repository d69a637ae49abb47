#!/usr/bin/env bash
# Installs the build into a folder of its own and builds and runs examples/custom_module through find_package(fulgur):
# as a program of its own, and as a plug-in of the installed trainer.
#   run_package_test.sh CMAKE BUILD_DIR SOURCE_DIR WORK_DIR COMPILER FLAGS
set -euo pipefail
cmake="$1" build="$2" source="$3" work="$4" compiler="$5" flags="$6"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

fail() { echo "FAILED: $*" >&2; exit 1; }
# A variable of the environment must not decide what is found.
unset CMAKE_PREFIX_PATH Torch_DIR fulgur_DIR

rm -rf "$work"
mkdir -p "$work"
"$cmake" --install "$build" --prefix "$work/prefix" >"$work/install.log" || { cat "$work/install.log"; fail "install"; }

for file in bin/trainer include/fulgur/core/module.h include/fulgur/trainer/trainer.h share/fulgur/configs/fashion_mnist_cnn.yaml; do
  [ -e "$work/prefix/$file" ] || fail "$file is not installed"
done
if [ -e "$build/lib/libfulgur_cuda.so" ] && [ -z "$(find "$work/prefix" -name libfulgur_cuda.so)" ]; then fail "libfulgur_cuda.so is not installed"; fi
# The package may name LibTorch, and nothing else of the machine that built it.
if grep -rnF -e "$build" -e "$source" "$work/prefix" --include='*.cmake'; then fail "the package names the build or source tree"; fi

# The installed program starts without the build tree's libraries.
"$work/prefix/bin/trainer" --version | grep -q '^fulgur ' || fail "the installed trainer does not start"

# The example is copied: nothing in it may reach into the source tree.
cp -r "$source/examples/custom_module" "$work/example"
configure() {
  "$cmake" -S "$1" -B "$2" -G Ninja -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_COMPILER=$compiler" "-DCMAKE_CXX_FLAGS=$flags" \
    "-DCMAKE_PREFIX_PATH=$work/prefix" "-DEXAMPLE_DIR=$work/example"
}
configure "$work/example" "$work/build"
"$cmake" --build "$work/build"
bash "$here/run_example.sh" "$work/build/custom_module" "$work/example/config.yaml" "$work/program"

# The same classes in a shared library: they register into the one registry of libfulgur.so.
cp -r "$here/plugin" "$work/plugin"
configure "$work/plugin" "$work/plugin_build"
"$cmake" --build "$work/plugin_build"
plugin="$work/plugin_build/libmy_plugin.so"
"$work/prefix/bin/trainer" list model --plugin "$plugin" | grep -q SpiralClassifier || fail "the plug-in's module is not listed"
bash "$here/run_example.sh" "$work/prefix/bin/trainer" "$work/example/config.yaml" "$work/plugged" --plugin "$plugin"
# Without it the class is unknown: a usage error.
code=0
"$work/prefix/bin/trainer" config --config "$work/example/config.yaml" >/dev/null 2>"$work/stderr" || code=$?
[ $code = 2 ] || fail "an unknown class must end with exit code 2; got $code"
grep -q SpiralClassifier "$work/stderr" || fail "the message does not name the unknown class"

# The installed copy need not stay.
rm -rf "$work"
