#!/usr/bin/env python3
"""The resharding matrix: each strategy and number of ranks resumes what each other has begun.

    benchmarks/resharding.py TRAINER [--only TEXT]

Each form of a run (a row) trains 7 steps, and each form (a column) resumes a copy of it up to step 15, in the second epoch. The first column is
a run that was not interrupted: what each form computes beside one process. A step has 48 samples in all of them (global_batch_size). A cell has the largest difference of a weight from that of one process that was not interrupted; the script
ends with 1 if one is above 1e-5. Needs no GPU: ranks are processes on the CPU over Gloo. Takes a few seconds for each of 144 cells.
"""

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

CONFIG = """
seed_everything: 1
trainer: {accelerator: cpu, num_threads: 1, max_epochs: -1, global_batch_size: 48, enable_progress_bar: false, enable_model_summary: false, limit_val_batches: 0}
model: {class_path: MlpClassifier, init_args: {in_features: 16, num_classes: 4, hidden: [32, 24, 16]}}
data: {class_path: SyntheticDataModule, init_args: {num_train: 480, num_classes: 4, shape: [16], batch_size: 4}}
optimizer: {class_path: AdamW, init_args: {lr: 3.0e-3}}
"""


def fsdp(sharding, form="full", more=""):
    return f"{{class_path: fsdp, init_args: {{sharding: {sharding}, state_dict_type: {form}{more}}}}}"


def mesh(axes, more="micro_batches: 2"):
    return f"{{class_path: mesh, init_args: {{mesh: {axes}, {more}}}}}"


PLAN = '{"*0": column, "*1": row, "*2": column, "*3": row}'

FORMS = {
    "1 process": (1, None),
    "ddp, 2": (2, "ddp"),
    "ddp, 4": (4, "ddp"),
    "optimizer, 2": (2, fsdp("optimizer")),
    "gradients, 3": (3, fsdp("gradients")),
    "parameters, 2": (2, fsdp("parameters")),
    "parameters, 3, sharded": (3, fsdp("parameters", "sharded")),
    "hybrid, 4, sharded": (4, fsdp("hybrid", "sharded", ", shard_size: 2")),
    "pipeline, 2": (2, mesh("{pipeline: 2}")),
    "data 2 × pipeline 2": (4, mesh("{data: 2, pipeline: 2}")),
    "pipeline 2 × shard 2, sharded": (4, mesh("{shard: 2, pipeline: 2}", "micro_batches: 2, state_dict_type: sharded")),
    "tensor 2 × shard 2, sharded": (4, mesh("{tensor: 2, shard: 2}", f"tensor_plan: {PLAN}, state_dict_type: sharded")),
}
TOLERANCE = 1e-5


def fit(trainer, folder, form, steps, resumes):
    ranks, strategy = FORMS[form]
    command = [trainer, "fit", "--config", "c.yaml", "--trainer.max_steps", str(steps)]
    if strategy:
        command += ["--trainer.strategy", strategy, "--trainer.devices", str(ranks)]
    if resumes:
        command += ["--resume"]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode != 0:
        return f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1]}"
    return ""


def weights(trainer, folder):
    """The weights of the last checkpoint, by name: lists of numbers."""
    out = folder / "w.safetensors"
    checkpoint = next(folder.glob("fulgur_logs/*/checkpoints/last.ckpt"))
    subprocess.run([trainer, "export", checkpoint, "--output", out, "--force"], check=True, capture_output=True)
    data = out.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {name: entry for name, entry in json.loads(data[8 : 8 + size]).items() if name != "__metadata__"}
    if any(entry["dtype"] != "F32" for entry in tensors.values()):
        sys.exit("resharding.py: the weights are not float32")
    values = {}
    for name, entry in tensors.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        values[name] = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
    return values


def difference(a, b):
    if a.keys() != b.keys():
        return float("inf")
    return max(abs(x - y) for name in a for x, y in zip(a[name], b[name], strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainer", type=Path)
    parser.add_argument("--only", default="", help="only forms whose name has this text, and one process")
    options = parser.parse_args()
    trainer = options.trainer.resolve()
    chosen = [form for form in FORMS if options.only in form or form == "1 process"]
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)

        def begun(folder_name, form, steps):
            folder = root / folder_name
            folder.mkdir()
            (folder / "c.yaml").write_text(CONFIG)
            if failure := fit(trainer, folder, form, steps, resumes=False):
                sys.exit(f"resharding.py: {form}: {failure}")
            return folder

        expected = weights(trainer, begun("whole", "1 process", 15))
        if difference(expected, weights(trainer, begun("short", "1 process", 14))) < 100 * TOLERANCE:
            sys.exit("resharding.py: a step changes the weights too little for the comparison")
        print("| begun by, resumed by → | not interrupted | " + " | ".join(chosen) + " |")
        print("|---" * (len(chosen) + 2) + "|")
        for number, source in enumerate(chosen):
            folder, alone = begun(f"from_{number}", source, 7), difference(expected, weights(trainer, begun(f"alone_{number}", source, 15)))
            worst, cells = max(worst, alone), [f"{alone:.0e}"]
            for target in chosen:
                copy = root / "copy"
                shutil.copytree(folder, copy, symlinks=True)
                failure = fit(trainer, copy, target, 15, resumes=True)
                error = float("inf") if failure else difference(expected, weights(trainer, copy))
                worst = max(worst, error)
                cells.append(failure or f"{error:.0e}")
                shutil.rmtree(copy)
            print(f"| {source} | " + " | ".join(cells) + " |", flush=True)
    if worst > TOLERANCE:
        sys.exit(f"resharding.py: weights differ by up to {worst}")


main()
