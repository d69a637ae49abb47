#!/usr/bin/env bash
# Makes a project with `trainer new`, builds it against the installed package, runs its tests, and trains: at once, and with
# a kill and a resume, which must end with the same bytes.
#   run_new_project.sh CMAKE PREFIX SOURCE_DIR WORK_DIR [ARGUMENT OF CMAKE...]
set -euo pipefail
cmake="$1" ctest="$(dirname "$1")/ctest" prefix="$2" source="$3" work="$4"
shift 4
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

fail() { echo "FAILED: $*" >&2; exit 1; }

rm -rf "$work"
mkdir -p "$work"
cd "$work"
"$prefix/bin/trainer" new template_project >said || fail "new"
diff -r --exclude=CMakeUserPresets.json "$source/examples/template_project" template_project || fail "new does not make the files of examples/template_project"
"$prefix/bin/trainer" new rings >said || fail "new"
# The program knows its package and its LibTorch: its commands are complete.
grep -qF "fulgur_DIR  $(cd "$prefix" && pwd -P)/" said || { cat said; fail "the folder of the package is not said"; }
grep -q "^  Torch_DIR   /.*/share/cmake/Torch$" said || { cat said; fail "the folder of LibTorch is not said"; }
grep -qx "  cmake --preset local && cmake --build --preset local" said || { cat said; fail "the commands are not complete"; }
cd rings
# Without optimization. No folder but those of the preset may be found.
"$cmake" --preset local "$@" || fail "configure"
grep -q "^fulgur_DIR:.*=$(cd "$prefix" && pwd -P)/lib" build/CMakeCache.txt || fail "the preset names another package"
"$cmake" --build --preset local || fail "build"
"$cmake" --preset local-debug "$@" >debug.log || { cat debug.log; fail "the preset local-debug"; }
grep -q "^CMAKE_BUILD_TYPE:.*=Debug" build/debug/CMakeCache.txt || fail "local-debug is no debug build"
grep -q PointClassifier build/config.schema.json || fail "the schema lacks the project's own module"
[ -s build/compile_commands.json ] || fail "no compile_commands.json"
"$ctest" --preset local | tee ../tests.log
grep -q "100% tests passed" ../tests.log || fail "the project's tests"

# Enough epochs that a process can be killed in between.
fit=(fit --config configs/train.yaml --trainer.max_epochs 200 --trainer.enable_progress_bar false)
bash "$here/kill_and_resume.sh" build/rings "${fit[@]}"
