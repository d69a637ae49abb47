#!/usr/bin/env bash
# Runs a program that has the classes of examples/custom_module on a few batches, and looks at what it leaves.
#   run_example.sh PROGRAM CONFIG FOLDER [ARGUMENT...]
set -euo pipefail
program="$1" config="$2" folder="$3"
shift 3

fail() { echo "FAILED: $*" >&2; exit 1; }

rm -rf "$folder"
mkdir -p "$folder"
"$program" fit --config "$config" "$@" --trainer.max_epochs 2 --trainer.limit_train_batches 3 --trainer.limit_val_batches 2 \
  --trainer.log_every_n_steps 1 --trainer.default_root_dir "$folder" --report "$folder/fit.json" | tee "$folder/stdout"

run="$folder/fulgur_logs/version_0"
for file in config.yaml metrics.csv metrics.jsonl; do
  [ -s "$run/$file" ] || fail "$run/$file is missing or empty"
done
[ -s "$run/checkpoints/last.ckpt/model.safetensors" ] || fail "no last checkpoint in $run"
[ -s "$run/checkpoints/best.ckpt/model.safetensors" ] || fail "no best checkpoint in $run"
# The module logged, the callback logged, and the report says how far the run came.
head -n 1 "$run/metrics.csv" | grep -q grad_norm || fail "the callback's metric is not in metrics.csv"
grep -q val_acc "$folder/stdout" || fail "the module's metric is not in the table on stdout"
grep -q '"global_step": 6' "$folder/fit.json" || fail "the report does not say 6 steps"
# What was resolved reproduces the run: it names the classes and passes the program's own check.
grep -q SpiralClassifier "$run/config.yaml" || fail "the resolved config does not name the module"
"$program" config --config "$run/config.yaml" "$@" >/dev/null || fail "the resolved config is refused"
"$program" validate --config "$run/config.yaml" "$@" --ckpt_path best --trainer.logger false >/dev/null || fail "validate of the best checkpoint"
