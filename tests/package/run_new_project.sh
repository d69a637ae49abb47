#!/usr/bin/env bash
# Makes a project with `trainer new`, builds it against the installed package, runs its tests, and trains: at once, and with
# a kill and a resume, which must end with the same bytes.
#   run_new_project.sh CMAKE PREFIX SOURCE_DIR WORK_DIR [ARGUMENT OF CMAKE...]
set -euo pipefail
cmake="$1" ctest="$(dirname "$1")/ctest" prefix="$2" source="$3" work="$4"
shift 4

fail() { echo "FAILED: $*" >&2; exit 1; }

rm -rf "$work"
mkdir -p "$work"
cd "$work"
"$prefix/bin/trainer" new template_project >said || fail "new"
diff -r "$source/examples/template_project" template_project || fail "new does not make the files of examples/template_project"
"$prefix/bin/trainer" new rings >said || fail "new"
# The program knows its package, if it is not in a folder where CMake looks by itself.
grep -qF "cmake --preset default -Dfulgur_DIR=$(cd "$prefix" && pwd -P)/" said || { cat said; fail "the folder of the package is not said"; }
cd rings
# What it says, without optimization.
configure="$(sed -n 's/^  \(cmake --preset default.*\) && .*/\1/p' ../said)"
eval "\"$cmake\" ${configure#cmake } \"\$@\"" || fail "configure"
"$cmake" --build --preset default || fail "build"
grep -q PointClassifier build/config.schema.json || fail "the schema lacks the project's own module"
[ -s build/compile_commands.json ] || fail "no compile_commands.json"
"$ctest" --preset default | tee ../tests.log
grep -q "100% tests passed" ../tests.log || fail "the project's tests"

# Enough epochs that a process can be killed in between.
fit=(fit --config configs/train.yaml --trainer.max_epochs 200 --trainer.enable_progress_bar false)
build/rings "${fit[@]}" --trainer.default_root_dir whole >whole.log 2>&1 || { cat whole.log; fail "fit"; }
build/rings "${fit[@]}" --trainer.default_root_dir killed >killed.log 2>&1 &
pid=$!
last=killed/fulgur_logs/version_0/checkpoints/last.ckpt
for _ in $(seq 3000); do
  [ ! -e "$last" ] || break
  sleep 0.02
done
kill -KILL $pid || fail "the fit ended before it could be killed"
code=0
wait $pid || code=$?
[ $code = 137 ] || fail "the fit was not killed; it ended with $code"
build/rings "${fit[@]}" --trainer.default_root_dir killed --resume >resumed.log 2>&1 || { cat resumed.log; fail "resume"; }
for file in model.safetensors optimizer.safetensors; do
  cmp "whole/fulgur_logs/version_0/checkpoints/last.ckpt/$file" "$last/$file" || fail "the resumed run ends with another $file"
done
