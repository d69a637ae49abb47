#!/usr/bin/env python3
"""What `trainer plan` predicts for the ranks of this machine's CPUs, beside what they take.

    benchmarks/plan_beside_ranks.py TRAINER [--repeats 3]

For 2 and 4 ranks, `trainer bench comm` measures a profile, and a small GPT trains with `ddp`, with `fsdp` (sharding: parameters), and
with meshes of one axis, `tensor` or `pipeline` (1f1b, a sample in a micro-batch), whose batch is that of one rank.
The profile with the fastest matrix products and the fastest steps of the repetitions are compared: other programs make them only slower.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CONFIG = """
seed_everything: 1
trainer: {accelerator: cpu, num_threads: 1, max_epochs: -1, limit_val_batches: 0}
model: {class_path: GPT, init_args: {vocab_size: 256, block_size: 128, n_layer: 4, n_head: 4, n_embd: 256}}
data: {class_path: TextDataModule, init_args: {path: text.txt, block_size: 128, batch_size: 8}}
optimizer: {class_path: AdamW, init_args: {lr: 3.0e-4}}
"""
STRATEGIES = {"ddp": "ddp", "parameters": "{class_path: fsdp, init_args: {sharding: parameters}}"}
AXES = ("tensor", "pipeline")
STRATEGIES |= {axis: f"{{class_path: mesh, init_args: {{mesh: {{{axis}: RANKS}}}}}}" for axis in AXES}


def run(trainer, folder, *arguments):
    done = subprocess.run([trainer, *map(str, arguments)], cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"plan_beside_ranks.py: {' '.join(map(str, arguments))} ends with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainer", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    trainer = options.trainer.resolve()
    print("| ranks | strategy | step, measured | predicted | error | exchange not hidden, measured | predicted |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "c.yaml").write_text(CONFIG)
        (folder / "text.txt").write_text("".join(f"line {number} of a text\n" for number in range(20000)))
        for ranks in (2, 4):
            devices = ["--trainer.accelerator", "cpu", "--trainer.num_threads", "1", "--trainer.devices", ranks]
            profiles, steps = [], {strategy: [] for strategy in STRATEGIES}
            for repeat in range(options.repeats):
                profile = folder / f"{ranks}-{repeat}.yaml"
                run(trainer, folder, "bench", "comm", *devices, "--output", profile)
                profiles.append((float(re.search(r"float32: ([\d.e+-]+)", profile.read_text())[1]), profile))
                for strategy, text in STRATEGIES.items():
                    text = text.replace("RANKS", str(ranks))
                    out = run(trainer, folder, "fit", "-c", "c.yaml", "--profile", 10, "--trainer.strategy", text, *devices)
                    step = float(re.search(r"profile of 10 training batches: ([\d.]+) ms", out)[1])
                    waits = re.search(r"exchange: [^\d]*([\d.]+)", out)
                    steps[strategy].append((step, float(waits[1]) if waits else 0.0))
            best = max(profiles)[1]
            command = ["plan", "-c", "c.yaml", "--json", "--profile", best, "--nodes", 1, "--devices", ranks, "--trainer.strategy"]
            for strategy, text in STRATEGIES.items():
                step, waits = min(steps[strategy])
                planned = json.loads(run(trainer, folder, *command, text.replace("RANKS", str(ranks))))
                if strategy in AXES:
                    one = planned["nodes"][0]["configured_mesh"]
                    # A profile does not see that a rank waits for another stage.
                    measured, exposed = "–", one["tensor_s"] + one["wait_s"] + one["data_s"]
                else:
                    one = next(one for one in planned["as_configured"] if one["sharding"] == strategy)
                    measured, exposed = f"{waits:.1f} ms", one["exposed_s"]
                predicted = one["step_s"] * 1e3
                error = f"{100 * (predicted / step - 1):+.0f} %"
                print(f"| {ranks} | {strategy} | {step:.0f} ms | {predicted:.0f} ms | {error} | {measured} | {exposed * 1e3:.1f} ms |", flush=True)


main()
