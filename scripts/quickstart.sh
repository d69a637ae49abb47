#!/usr/bin/env bash
# From a fresh clone to a trained network: sets the machine up, builds, trains a small convolutional network on all of
# Fashion-MNIST and tests its best checkpoint. Safe to run again. Arguments go to `trainer fit` and `trainer test`:
#
#   scripts/quickstart.sh
#   scripts/quickstart.sh --trainer.max_epochs 2
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$(repository_root)"

scripts/setup.sh
jobs="$(parallel_jobs)"
say "building the release preset with $jobs jobs"
cmake --preset release
cmake --build build/release --target trainer --parallel "$jobs"

trainer=build/release/bin/trainer
config=configs/fashion_mnist_cnn.yaml
reports="$(mktemp -d)"
trap 'rm -rf "$reports"' EXIT

say "trainer fit --config $config $*"
"$trainer" fit --config "$config" "$@" --report "$reports/fit.json"
say "trainer test --config $config --ckpt_path best $*"
"$trainer" test --config "$config" "$@" --ckpt_path best --report "$reports/test.json"

python3 - "$reports" <<'PYTHON'
import json, os, sys

def load(name):
    with open(os.path.join(sys.argv[1], name), encoding="utf-8") as file:
        return json.load(file)

fit, test = load("fit.json"), load("test.json")
accuracy = test["metrics"].get("test_acc")
run = fit.get("run_dir")

def in_run(name):
    return os.path.abspath(os.path.join(run, name)) if run else "none (no run folder)"

best = fit.get("best_checkpoint") or fit.get("last_checkpoint")
print()
print("test accuracy    ", "not logged" if accuracy is None else f"{100 * float(accuracy):.2f} % ({accuracy!r})")
print("training seconds ", f"{float(fit['train_seconds']):.1f}")
print("best checkpoint  ", os.path.abspath(best) if best else "none")
print("metrics          ", in_run("metrics.csv"))
print("resolved config  ", in_run("config.yaml"))
PYTHON
