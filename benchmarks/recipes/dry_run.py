#!/usr/bin/env python3
"""Dry runs of the recipes for 8 GPUs on one simulated GPU (docs/simulated_gpu.md): what a step needs of a device.

    benchmarks/recipes/dry_run.py TRAINER [gpt2_124m] [llama_1b]

Only the host code runs and no numbers are computed, so a step takes seconds. The program runs three and five steps; the
difference is two steps. FLOPs are those of the matrix products: 6 for a parameter and a token, and 12 for each layer, its width,
and a pair of tokens (Narayanan et al. 2021, appendix; without what checkpointing repeats). Needs 8 GB of memory.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECIPES = {"gpt2_124m": (12, 768, 1024), "llama_1b": (22, 2048, 2048)}  # layers, width, tokens of a sample
STEPS = (3, 5)


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
    options = {"devices": 1, "strategy": "single_device", "accelerator": "cuda", "max_steps": steps, "limit_val_batches": 0}
    options |= {"callbacks": "[]", "enable_progress_bar": "false", "enable_checkpointing": "false", "default_root_dir": folder}
    command = [ROOT / "scripts/simulated_gpu.sh", trainer, "fit", "--config", ROOT / f"configs/recipes/{recipe}.yaml"]
    command += ["--report", report] + [word for key, value in options.items() for word in (f"--trainer.{key}", str(value))]
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"dry_run.py: {recipe} ends with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(report.read_text()), done.stderr


def count(said, what):
    return int(re.search(rf"{what} (\d+)", said)[1])


def main():
    trainer, *chosen = sys.argv[1:]
    print("| recipe | parameters | peak memory of the device | launches per step | waits of the host per step | FLOPs per step |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "text.txt").write_text("".join(f"line {number} of a text\n" for number in range(200000)))
        made = [trainer, "tokenize", "--input", folder / "text.txt", "--output", folder / "tokens", "--train", "bpe", "--vocab_size", "300"]
        subprocess.run([*map(str, made), "--val_fraction", "0.1", "--quiet"], check=True, stdout=subprocess.DEVNULL)
        for recipe in chosen or RECIPES:
            (_, less), (report, more) = (run(trainer, recipe, steps, folder) for steps in STEPS)
            between = STEPS[1] - STEPS[0]
            launches, waits = ((count(more, what) - count(less, what)) / between for what in ("launches", "waits of the host: stream"))
            parameters = int(re.search(r"([\d,]+) Bytes of params in float32", more)[1].replace(",", "")) // 4
            memory = max(each["bytes"] for each in report["peak_memory"] if each["device"].startswith("cuda"))
            layers, width, length = RECIPES[recipe]
            config = (Path(report["run_dir"]) / "config.yaml").read_text()
            tokens = length
            for key in ("batch_size", "accumulate_grad_batches"):
                tokens *= int(re.search(rf"^ +{key}: (\d+)", config, re.MULTILINE)[1])
            flops = tokens * (6 * parameters + 12 * layers * width * length)
            print(f"| {recipe} | {parameters:,} | {memory / 2**30:.1f} GiB | {launches:,.0f} | {waits:.0f} | {flops:.2e} for {tokens:,} tokens |", flush=True)


main()
