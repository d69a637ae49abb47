#!/usr/bin/env python3
"""Steps with 1 to 16 threads and with num_threads: auto, on one CPU and on all of them, quiet and beside other processes.

    benchmarks/threads.py TRAINER [--rounds 3] [--steps_divided_by 1]

Prints a Markdown table of wall times of a step, with the CPU time in brackets. A time is the difference between a process with many
steps and one with few, and the least of the rounds. CPUs are taken away by the affinity of the process, so the threads of a machine
with more CPUs, of which a container or other users leave some, behave as these do. Needs Linux.
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

FEW = 5
MLP = "model: {class_path: MlpClassifier, init_args: {in_features: 784, num_classes: 10, hidden: %s}}"
CNN = "model: {class_path: CnnClassifier, init_args: {num_classes: 10}}"
# Title: (model, shape of a sample, batch, steps).
CASES = {
    "MLP 784-128-10, batch 64": (MLP % "[128]", "[784]", 64, 4000),
    "MLP 784-1024-1024-10, batch 128": (MLP % "[1024, 1024]", "[784]", 128, 200),
    "CnnClassifier, 28 x 28, batch 128": (CNN, "[1, 28, 28]", 128, 60),
}
CONFIG = """
seed_everything: 1
trainer:
  accelerator: cpu
  num_threads: {threads}
  max_steps: {steps}
  max_epochs: -1
  limit_val_batches: 0
  enable_progress_bar: false
  enable_model_summary: false
  enable_checkpointing: false
  logger: false
{model}
data: {{class_path: SyntheticDataModule, init_args: {{num_train: 1280, num_classes: 10, shape: {shape}, batch_size: {batch}}}}}
optimizer: {{class_path: AdamW, init_args: {{lr: 1.0e-3}}}}
"""
THREADS = ["1", "2", "4", "8", "16", "auto"]


@contextmanager
def busy(count):
    """So many processes that compute all the time."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def run(arguments, case, threads, steps, cpus):
    """(wall seconds, CPU seconds, threads that it chose)."""
    model, shape, batch, _ = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(CONFIG.format(threads=threads, steps=steps, model=model, shape=shape, batch=batch))
        env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MKL_"))}
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(
            [arguments.trainer, "fit", "--config", config, "--trainer.default_root_dir", folder],
            capture_output=True, text=True, env=env, preexec_fn=lambda: os.sched_setaffinity(0, cpus), check=False,
        )  # fmt: skip
        wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, used, re.search(r"threads: (\d+)", done.stderr)[1]


def step_of(arguments, case, threads, cpus):
    """Milliseconds of a step, wall and CPU, and the number of threads."""
    steps = max(2 * FEW, CASES[case][3] // arguments.steps_divided_by)
    times = []
    for _ in range(arguments.rounds):
        few, many = (run(arguments, case, threads, count, cpus) for count in (FEW, steps))
        times.append([1e3 * (many[i] - few[i]) / (steps - FEW) for i in (0, 1)])
    return *min(times), many[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainer", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps_divided_by", type=int, default=1)
    arguments = parser.parse_args()
    arguments.trainer = arguments.trainer.resolve()
    everything = os.sched_getaffinity(0)
    conditions = {
        "1 CPU": ({min(everything)}, 0),
        f"{len(everything)} CPUs": (everything, 0),
        f"{len(everything)} CPUs, {len(everything)} busy processes": (everything, len(everything)),
        f"{len(everything)} CPUs, {4 * len(everything)} busy processes": (everything, 4 * len(everything)),
    }
    for case in CASES:
        print(f"\n| {case}: ms a step | {' | '.join(conditions)} |\n|{'---|' * (len(conditions) + 1)}", flush=True)
        for threads in THREADS:
            cells = []
            for cpus, others in conditions.values():
                with busy(others):
                    wall, used, chosen = step_of(arguments, case, threads, cpus)
                cells.append(f"{wall:.2f} ({used:.2f})" + (f", {chosen} threads" if threads == "auto" else ""))
            print(f"| {threads} | {' | '.join(cells)} |", flush=True)


main()
