#!/usr/bin/env bash
# Installs the build into a folder of its own and builds and runs the examples through find_package(fulgur): custom_module as a
# separate program and as a plug-in of the installed trainer, a project of `trainer new`, gpu_test on simulated GPUs.
#   run_package_test.sh CMAKE BUILD_DIR SOURCE_DIR WORK_DIR COMPILER FLAGS
set -euo pipefail
cmake="$1" ctest="$(dirname "$1")/ctest" build="$2" source="$3" work="$4" compiler="$5" flags="$6"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

fail() { echo "FAILED: $*" >&2; exit 1; }
# A variable of the environment must not decide what is found.
unset CMAKE_PREFIX_PATH Torch_DIR fulgur_DIR

rm -rf "$work"
mkdir -p "$work"
"$cmake" --install "$build" --prefix "$work/prefix" >"$work/install.log" || { cat "$work/install.log"; fail "install"; }

for file in bin/trainer include/fulgur/core/contracts/module.h include/fulgur/trainer/trainer.h share/fulgur/configs/fashion_mnist_cnn.yaml share/fulgur/benchmarks/recipes/make_masks.py share/fulgur/benchmarks/recipes/make_texts.py; do
  [ -e "$work/prefix/$file" ] || fail "$file is not installed"
done
if [ -e "$build/lib/libfulgur_cuda.so" ] && [ -z "$(find "$work/prefix" -name libfulgur_cuda.so)" ]; then fail "libfulgur_cuda.so is not installed"; fi
# The package may name LibTorch, and nothing else of the machine that built it.
if grep -rnF -e "$build" -e "$source" "$work/prefix" --include='*.cmake'; then fail "the package names the build or source tree"; fi

if readelf -d "$work"/prefix/bin/trainer $(find "$work/prefix" -name '*.so*') | grep -E 'RPATH|RUNPATH' | grep -F -e "$build" -e "$source"; then
  fail "an installed file looks for libraries in the build or source tree"
fi

# The installed program starts without the build tree's libraries.
"$work/prefix/bin/trainer" --version | grep -q '^fulgur ' || fail "the installed trainer does not start"

# The example is copied: nothing in it may reach into the source tree.
cp -r "$source/examples/custom_module" "$work/example"
configure() {
  # Without optimization it compiles in half the time.
  "$cmake" -S "$1" -B "$2" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O0 "-DCMAKE_CXX_COMPILER=$compiler" "-DCMAKE_CXX_FLAGS=$flags" \
    "-DCMAKE_PREFIX_PATH=$work/prefix" "-DEXAMPLE_DIR=$work/example" "${@:3}"
}
configure "$work/example" "$work/build"
"$cmake" --build "$work/build"
bash "$here/run_example.sh" "$work/build/custom_module" "$work/example/config.yaml" "$work/program"

# A project of `trainer new`.
bash "$here/run_new_project.sh" "$cmake" "$work/prefix" "$source" "$work/new" -DCMAKE_CXX_FLAGS_RELEASE=-O0 "-DCMAKE_CXX_COMPILER=$compiler" \
  "-DCMAKE_CXX_FLAGS=$flags"

# A program that only uses a trained model.
cp -r "$source/examples/inference" "$work/inference_example"
configure "$work/inference_example" "$work/inference_build"
"$cmake" --build "$work/inference_build"
bash "$here/run_inference.sh" "$work/prefix/bin/trainer" "$work/inference_build/inference" "$work/inference"

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

# GPUs that are simulated. `refused DEFINITION WORDS`: what a project is told that has to have them.
cp -r "$here/simulated_gpu" "$work/simulated_gpu"
refused() {
  rm -rf "$work/refused_build"
  if configure "$work/simulated_gpu" "$work/refused_build" "$1" >"$work/refused" 2>&1; then fail "a test on simulated GPUs is not refused: $2"; fi
  tr -s '\n ' ' ' <"$work/refused" | grep -qF -e "$2" || { cat "$work/refused"; fail "not said: $2"; }
}
cp -r "$source/examples/gpu_test" "$work/gpu_test"
if [ -e "$build/simulated_cuda/libsimulated_cuda_operators.so" ]; then
  [ -e "$work/prefix/include/fulgur/simulated_cuda/simulated_cuda.h" ] || fail "simulated_cuda.h is not installed"
  configure "$work/gpu_test" "$work/gpu_build"
  "$cmake" --build "$work/gpu_build"
  "$ctest" --test-dir "$work/gpu_build" -L simulated-gpu --output-on-failure | tee "$work/gpu_log"
  grep -q "100% tests passed, 0 tests failed out of 4" "$work/gpu_log" || fail "gpu_test does not pass in four schedules"
  # It would fail if the host forgot to wait. The script is found by a link to it too.
  ln -s "$work/prefix/bin/fulgur-simulated-gpu" "$work/link"
  code=0
  (cd "$work" && SIMULATED_CUDA_SCHEDULE=late SIMULATED_CUDA_BREAK=sync "$work/link" "$work/gpu_build/gpu_test") >"$work/broken" 2>&1 || code=$?
  { [ $code = 1 ] && grep -q "of the GPU is not the CPU's" "$work/broken"; } || { cat "$work/broken"; fail "gpu_test passes on a broken GPU"; }
  configure "$work/simulated_gpu" "$work/simulated_build"
  "$cmake" --build "$work/simulated_build"
  "$ctest" --test-dir "$work/simulated_build" --output-on-failure
  refused -DWRONG=SCHEDULE "got: SCHEDULE;NAME;two_devices"
  refused -DLAST=SCHEDULE "'SCHEDULE' is not a keyword; the keywords are SCHEDULES"
  refused -DSCHEDULE=sometimes "a schedule must be immediate, late or a number from 2 on; got 'sometimes'"
  refused -DDEVICES=two "DEVICES must be a number from 1 on; got 'two'"
  # Installed from a build in which it was not built, or not all of it.
  rm "$(find "$work/prefix" -name libsimulated_cuda_operators.so)"
  refused -DWRONG= "fulgur_add_simulated_gpu_test(NAME two_devices): simulated CUDA is not in"
  code=0
  "$work/link" true 2>"$work/stderr" || code=$?
  { [ $code = 2 ] && grep -q "no simulated CUDA in" "$work/stderr"; } || fail "a simulator that is not whole is used"
else
  refused -DWRONG= "this Fulgur is built without simulated CUDA"
fi
# A project that asks first can be built without it.
configure "$work/gpu_test" "$work/gpu_build"

# The installed copy need not stay.
rm -rf "$work"
