#!/usr/bin/env python3
"""A soak: do memory, threads and descriptors stay as they are, over many steps, saves and restarts?

    benchmarks/soak.py TRAINER [--steps 10000] [--save_every 50] [--restarts 100]

First one process trains all steps. Then a launcher trains as many with two ranks, of which one is killed again and again: the launcher
starts both again (max_restarts), and they resume from the newest checkpoint. Prints a table, and ends with 1 if something grows, if a
checkpoint or a temporary folder is left over, or if the steps are not all made. Needs Linux (/proc) and no GPU.
"""

import argparse
import collections
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = """
seed_everything: 1
trainer:
  accelerator: cpu
  num_threads: 1
  max_epochs: -1
  max_steps: {steps}
  limit_val_batches: 0
  enable_progress_bar: false
  enable_model_summary: false
  log_every_n_steps: 50
  callbacks: [{{class_path: ModelCheckpoint, init_args: {{every_n_train_steps: {save_every}}}}}]
model: {{class_path: MlpClassifier, init_args: {{in_features: 64, num_classes: 10, hidden: [256, 256]}}}}
data: {{class_path: SyntheticDataModule, init_args: {{num_train: 6400, num_classes: 10, shape: [64], batch_size: 32}}}}
optimizer: {{class_path: AdamW, init_args: {{lr: 1.0e-3}}}}
"""
# What a process may take more in the end: malloc's arenas and the counts of rows settle late.
GROWTH_KIB = 4096
# How many samples, 10 ms apart, a restart keeps of each process: a save holds a file open for a few of them.
RECENT = 8


def usage(pid):
    """(KiB of resident memory, threads, descriptors) of a process; None once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]), int(re.search(r"Threads:\s+(\d+)", status)[1]), descriptors
    except (OSError, TypeError):
        return None


def children(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def newest_step(folder):
    names = [path.name for path in folder.glob("fulgur_logs/*/checkpoints/epoch=*-step=*.ckpt")]
    return max((int(re.search(r"step=(\d+)", name)[1]) for name in names), default=0)


def start(trainer, folder, options, more=()):
    (folder / "c.yaml").write_text(CONFIG.format(steps=options.steps, save_every=options.save_every))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(folder / "out.txt", "w") as out:
        return subprocess.Popen([trainer, "fit", "--config", "c.yaml", *more], cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT)


def table_row(name, samples):
    """A row of the table, and whether nothing has grown between the first and the last quarter of the samples."""
    quarter = max(len(samples) // 4, 1)
    first, last = samples[quarter : 2 * quarter] or samples[:1], samples[-quarter:]
    # A save has one thread and one descriptor more for as long as it takes: what stays is the least of them.
    stays = [statistics.median, min, min]
    middle = [[stays[i](sample[i] for sample in part) for part in (first, last)] for i in range(3)]
    peak = [max(sample[i] for sample in samples) for i in range(3)]
    cells = [f"{a / 1024:.1f} → {b / 1024:.1f}" if i == 0 else f"{a:.0f} → {b:.0f}" for i, (a, b) in enumerate(middle)]
    print(f"| {name} | {len(samples)} | {cells[0]} | {cells[1]} | {cells[2]} | {peak[0] / 1024:.1f}, {peak[1]}, {peak[2]} |", flush=True)
    (rss, threads, descriptors) = (last - first for first, last in middle)
    return rss <= GROWTH_KIB and threads <= 0 and descriptors <= 0


def check_end(process, folder, options):
    text = (folder / "out.txt").read_text()
    if process.returncode != 0 or f"{options.steps} steps" not in text:
        sys.exit(f"soak.py: the fit ends with {process.returncode}, and not after {options.steps} steps:\n{text[-3000:]}")
    runs = list(folder.glob("fulgur_logs/*"))
    found = [path.name for path in runs[0].glob("checkpoints/*") if not path.is_symlink()] + [path.name for path in runs[0].glob("checkpoints/.*")]
    if len(runs) != 1 or any("step" not in name or name.startswith(".") for name in found) or len(found) > 2:
        sys.exit(f"soak.py: left over in {len(runs)} run folders: {sorted(found)}")


def soak_one(trainer, options):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process, samples = start(trainer, folder, options), []
        while process.poll() is None:
            # The program starts until the first save, and ends after the last.
            if 0 < newest_step(folder) < options.steps and (sample := usage(process.pid)):
                samples.append(sample)
            time.sleep(0.005)
        check_end(process, folder, options)
        return table_row("one process", samples)


def soak_restarts(trainer, options):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        strategy = f"{{class_path: ddp, init_args: {{max_restarts: {options.restarts + 5}}}}}"
        process = start(trainer, folder, options, ["--trainer.strategy", strategy, "--trainer.devices", "2"])
        launcher, ranks, kills, recent = [], [[], []], 0, {}
        while process.poll() is None:
            time.sleep(0.01)
            due = (kills + 1) * options.steps // (options.restarts + 1)
            pids = children(process.pid)
            samples = {pid: usage(pid) for pid in (process.pid, *pids)}
            if len(pids) != 2 or None in samples.values():
                continue
            recent = {pid: recent.get(pid, collections.deque(maxlen=RECENT)) for pid in samples}
            for pid, sample in samples.items():
                recent[pid].append(sample)
            if kills >= options.restarts or newest_step(folder) < due:
                continue
            for of_process, pid in zip((launcher, *ranks), recent):
                of_process.append(tuple(min(values) for values in zip(*recent[pid])))
            os.kill(pids[kills % 2], signal.SIGKILL)
            kills += 1
            while process.poll() is None and set(children(process.pid)) & set(pids):
                time.sleep(0.01)
        check_end(process, folder, options)
        if kills != options.restarts:
            sys.exit(f"soak.py: the steps were over after {kills} of {options.restarts} restarts; use more steps")
        rows = [table_row(f"launcher, at each of {kills} kills", launcher)]
        return all(rows + [table_row(f"rank {rank}, at each kill", samples) for rank, samples in enumerate(ranks)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainer", type=Path)
    for option, default in (("--steps", 10000), ("--save_every", 50), ("--restarts", 100)):
        parser.add_argument(option, type=int, default=default)
    options = parser.parse_args()
    trainer = options.trainer.resolve()
    print(f"{options.steps:,} steps with a save every {options.save_every}: medians (memory) and minima of the second and the last quarter of the samples")
    print("| | samples | MiB | threads | descriptors | most |\n|---|---|---|---|---|---|")
    flat = [soak_one(trainer, options), soak_restarts(trainer, options)]
    if not all(flat):
        sys.exit("soak.py: something grows")


main()
