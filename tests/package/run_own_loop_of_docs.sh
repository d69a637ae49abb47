#!/usr/bin/env bash
# Runs the example of docs/own_loop.md twice: the second run continues after the newest checkpoint.
#   run_own_loop_of_docs.sh PROGRAM FOLDER
set -euo pipefail
program="$1" folder="$2"

fail() { echo "FAILED: $*" >&2; exit 1; }

rm -rf "$folder"
mkdir -p "$folder"
cd "$folder"
"$program" | tee whole.txt
grep -q "epoch 3 is done" whole.txt || fail "the loop does not end"
[ -z "$("$program")" ] || fail "a loop that has ended trains again"
rm -r "my_loop/epoch=2.ckpt"
cp -r my_loop/epoch=1.ckpt before
[ "$("$program")" = "epoch 3 is done" ] || fail "the loop does not continue after its newest checkpoint"
cmp before/model.safetensors "my_loop/epoch=1.ckpt/model.safetensors" || fail "an older checkpoint has changed"
