#!/usr/bin/env python3
"""Dry runs of the recipes for many GPUs on simulated GPUs (docs/simulated_gpu.md): what a step needs of a device.

    benchmarks/recipes/dry_run.py TRAINER [gpt2_124m] [llama_1b] [llama_8b] [llama_70b]

Only the host code runs and no numbers are computed, so a step takes seconds. The program runs three and five steps; the
difference is two steps. FLOPs are those of the matrix products: 6 for a parameter and a token, and 12 for each layer, its width,
and a pair of tokens (Narayanan et al. 2021, appendix; without what checkpointing repeats). `plan` is what `trainer plan` predicts for
the same config and devices. gpt2_124m and llama_1b run whole, on one device. Simulated devices have the memory of this machine, so
llama_8b and llama_70b run on two ranks with few layers and a small vocabulary, and the latter also with a quarter of the MLP and of
the length: all else is that of the recipe. Needs 8 GB of memory, and 16 GB for llama_8b.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Layers, width, tokens of a sample, ranks, and options that make it smaller.
RECIPES = {
    "gpt2_124m": (12, 768, 1024, 1, {}),
    "llama_1b": (22, 2048, 2048, 1, {}),
    "llama_8b": (2, 4096, 8192, 2, {"model.n_layer": 2, "model.vocab_size": 4096, "trainer.global_batch_size": 4}),
    "llama_70b": (1, 8192, 2048, 2, {"model.n_layer": 1, "model.vocab_size": 4096, "trainer.global_batch_size": 4}),
}
RECIPES["llama_70b"][4].update({"model.mlp_hidden": 7168, "model.block_size": 2048, "data.block_size": 2048})
STEPS = (3, 5)


def words(options):
    return [word for key, value in options.items() for word in (f"--{key}", str(value))]


def planned(trainer, recipe, folder):
    """The bytes that `trainer plan` predicts for a rank."""
    length, ranks, smaller = RECIPES[recipe][2:]
    command = [trainer, "plan", "--config", ROOT / f"configs/recipes/{recipe}.yaml", "--json", "--nodes", 1, "--devices", ranks]
    command += ["--input", f"{length}:int64", "--input", f"{length}:int64"] + words(smaller)
    environment = {**os.environ, "FULGUR_TOKENS": str(folder / "tokens")}
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"dry_run.py: the plan of {recipe} ends with {done.returncode}:\n{done.stderr[-2000:]}")
    sharding = "ddp" if ranks == 1 else "parameters"
    return next(one["memory"]["total"] for one in json.loads(done.stdout)["as_configured"] if one["sharding"] == sharding)


def run(trainer, recipe, steps, folder):
    """What the report and the simulator say of a fit of so many steps."""
    report = folder / "report.json"
    environment = {
        **os.environ,
        "FULGUR_TOKENS": str(folder / "tokens"),
        "OMP_NUM_THREADS": "1",
        "SIMULATED_CUDA_OPERATORS": "0",
        "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",  # flash attention: nothing stands in for cuDNN's without operators
        "SIMULATED_CUDA_POISON": "-1",
        "SIMULATED_CUDA_COUNTS": "1",
        "FULGUR_FAST_EXIT": "0",  # the counts are printed by a destructor
        "SIMULATED_CUDA_MEMORY": str(80 << 30),
    }
    ranks, smaller = RECIPES[recipe][3:]
    environment["SIMULATED_CUDA_DEVICES"] = str(ranks)
    options = {"devices": ranks, "num_nodes": 1, "accelerator": "cuda", "max_steps": steps, "limit_val_batches": 0}
    options |= {"callbacks": "[]", "enable_progress_bar": "false", "enable_checkpointing": "false", "default_root_dir": folder}
    if ranks == 1:
        options["strategy"] = "single_device"
    command = [ROOT / "scripts/simulated_gpu.sh", trainer, "fit", "--config", ROOT / f"configs/recipes/{recipe}.yaml"]
    command += ["--report", report] + words({f"trainer.{key}": value for key, value in options.items()} | smaller)
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"dry_run.py: {recipe} ends with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(report.read_text()), done.stderr


def count(said, what):
    return int(re.search(rf"{what} (\d+)", said)[1])


def option(config, key):
    found = re.search(rf"^ +{key}: (\d+)", config, re.MULTILINE)
    return int(found[1]) if found else 0


def main():
    trainer, *chosen = sys.argv[1:]
    print("| recipe | parameters | peak memory of a device | launches per step | waits of the host per step | FLOPs per step | plan |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text("".join(f"line {number} of a text\n" for number in range(200000)))
        made = [trainer, "tokenize", "--input", folder / "text.txt", "--output", folder / "tokens", "--train", "bpe", "--vocab_size", "300"]
        subprocess.run([*map(str, made), "--val_fraction", "0.1", "--quiet"], check=True, stdout=subprocess.DEVNULL)
        for recipe in chosen or RECIPES:
            (_, less), (report, more) = (run(trainer, recipe, steps, folder) for steps in STEPS)
            between = STEPS[1] - STEPS[0]
            launches, waits = ((count(more, what) - count(less, what)) / between for what in ("launches", "waits of the host: stream"))
            size, dtype = re.search(r"([\d,]+) Bytes of params in (float32|bfloat16)", more).groups()
            parameters = int(size.replace(",", "")) // (4 if dtype == "float32" else 2)
            memory = max(each["bytes"] for each in report["peak_memory"] if each["device"].startswith("cuda"))
            layers, width, length, ranks, _ = RECIPES[recipe]
            config = (Path(report["run_dir"]) / "config.yaml").read_text()
            samples = option(config, "global_batch_size") // ranks
            samples = samples or option(config, "batch_size") * option(config, "accumulate_grad_batches")
            tokens = length * samples
            flops = tokens * (6 * parameters + 12 * layers * width * length)
            predicted = planned(trainer, recipe, folder)
            print(
                f"| {recipe} | {parameters:,} | {memory / 2**30:.1f} GiB | {launches:,.0f} | {waits:.0f} | {flops:.2e} for {tokens:,} tokens"
                f" | {predicted / 2**30:.1f} GiB, {100 * (predicted / memory - 1):+.1f} % |",
                flush=True,
            )


main()
