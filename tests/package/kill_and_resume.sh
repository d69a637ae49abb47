#!/usr/bin/env bash
# Trains twice in the current folder: without an interruption, and with a SIGKILL after the first checkpoint and a resume. Both must end with
# the same weights and the same state of the optimizer, bit for bit. The fit must be long enough to be killed.
#   kill_and_resume.sh PROGRAM fit ARGUMENT...
set -euo pipefail
fail() { echo "FAILED: $*" >&2; exit 1; }

rm -rf whole killed
"$@" --trainer.default_root_dir whole >whole.log 2>&1 || { cat whole.log; fail "fit"; }
"$@" --trainer.default_root_dir killed >killed.log 2>&1 &
pid=$!
last=killed/fulgur_logs/version_0/checkpoints/last.ckpt
for _ in $(seq 3000); do
  [ ! -e "$last" ] || break
  sleep 0.02
done
[ -e "$last" ] || { cat killed.log; fail "there is no checkpoint"; }
kill -KILL $pid || fail "the fit ended before it could be killed"
code=0
wait $pid || code=$?
[ $code = 137 ] || fail "the fit was not killed; it ended with $code"
"$@" --trainer.default_root_dir killed --resume >resumed.log 2>&1 || { cat resumed.log; fail "resume"; }
for file in model.safetensors optimizer.safetensors; do
  cmp "whole/fulgur_logs/version_0/checkpoints/last.ckpt/$file" "$last/$file" || fail "the resumed run ends with another $file"
done
echo "killed, resumed, and equal to the uninterrupted run"
