#!/usr/bin/env bash
# Runs examples/own_loop: what is continued equals what was not interrupted, and two ranks equal one within rounding.
#   run_own_loop.sh PROGRAM FOLDER
set -euo pipefail
program="$1" folder="$2"

fail() { echo "FAILED: $*" >&2; exit 1; }

rm -rf "$folder"
mkdir -p "$folder"
cd "$folder"
"$program" 4 1 whole | tee whole.txt
"$program" 2 1 parts >/dev/null
"$program" 4 1 parts | tee parts.txt
[ "$(wc -l <parts.txt)" = 2 ] || fail "the second call does not continue"
for file in model.safetensors optimizer.safetensors; do
  cmp "whole/epoch=3.ckpt/$file" "parts/epoch=3.ckpt/$file" || fail "the continued loop ends with another $file"
done
"$program" 4 2 ranks | tee ranks.txt
right() { sed -n 's/^epoch 4: \([0-9]*\) of 512.*/\1/p' "$1"; }
[ "$(right whole.txt)" -gt 460 ] || fail "the loop does not learn"
difference=$(($(right whole.txt) - $(right ranks.txt)))
[ "${difference#-}" -le 1 ] || fail "two ranks do not end as one does"
code=0
"$program" 4 2 ranks 2>stderr || code=$?
[ $code = 0 ] || { cat stderr; fail "a loop that has ended is an error"; }
code=0
"$program" 5 1 ranks 2>stderr || code=$?
{ [ $code = 4 ] && grep -q "was saved by 2 ranks" stderr; } || { cat stderr; fail "another number of ranks is not refused"; }
