#!/usr/bin/env bash
# Trains a model, exports it, and runs examples/inference on the TorchScript file and on the checkpoint.
#   run_inference.sh TRAINER PROGRAM FOLDER
set -euo pipefail
trainer="$1" program="$2" folder="$3"
measure="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/examples/inference/measure.sh"

fail() { echo "FAILED: $*" >&2; exit 1; }

rm -rf "$folder"
mkdir -p "$folder"
cd "$folder"
"$trainer" fit --model MlpClassifier --model.in_features 6 --data SyntheticDataModule --data.shape '[6]' --optimizer SGD \
  --trainer.max_steps 3 --seed_everything 1 >fit.log 2>&1 || { cat fit.log; fail "fit"; }
last=fulgur_logs/version_0/checkpoints/last.ckpt
"$trainer" export "$last" --output net.ts
"$program" net.ts 6 | tee script.txt
"$program" "$last" 6 | tee checkpoint.txt
class() { sed -n 's/^class \([0-9]*\);.*/\1/p' "$1"; }
[ -n "$(class script.txt)" ] || fail "no class is printed"
[ "$(class script.txt)" = "$(class checkpoint.txt)" ] || fail "the TorchScript file and the checkpoint give different classes"
grep -q "us for each sample" script.txt || fail "no latency is printed"
code=0
"$program" >/dev/null || code=$?
[ $code = 2 ] || fail "a call without arguments must end with exit code 2; got $code"
for file in nothing.ckpt nothing.ts; do
  code=0
  "$program" $file 6 >/dev/null 2>error.txt || code=$?
  { [ $code != 0 ] && [ $code -lt 128 ]; } || fail "$file must end with an exit code and no signal; got $code"
  grep -q '^error: ' error.txt || fail "$file has no message"
done
[ "$(bash "$measure" "$program" net.ts 6 | grep -c 'the whole process')" = 5 ] || fail "measure.sh does not measure five processes"
