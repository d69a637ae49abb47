"""C12: from the start of a process to 90 % test accuracy."""

import gzip
from pathlib import Path

from machine import cpus, has_instructions
from spec import Benchmark, Check, Metric, Peer, Results, Target

DATA = Path("/usr/share/datasets/fashion-mnist")
# Batch norm in float32 adds up 100,000 values: PyTorch's losses of 20 steps are up to 0.02 from those in float64.
MAX_EPOCHS, LOSS_TOLERANCE, BF16_TOLERANCE = 12, 0.03, 0.1
# A time of 0.6 ×.
AIM = 1 / 0.6


def read_idx(name, header):
    import numpy as np

    with gzip.open(DATA / name) as file:
        return np.frombuffer(file.read(), dtype=np.uint8, offset=header)


def make_inputs(folder: Path, seeds: int, samples: int):
    import numpy as np
    import torch
    from safetensors.numpy import save_file

    if not DATA.is_dir():
        raise SystemExit(f"C12 needs Fashion-MNIST in {DATA}: apt-get install dataset-fashion-mnist")
    sets = {}
    for name, prefix in (("train", "train"), ("test", "t10k")):
        sets[f"{name}_x"] = read_idx(f"{prefix}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)[:samples]
        sets[f"{name}_y"] = read_idx(f"{prefix}-labels-idx1-ubyte.gz", 8).astype(np.int64)[:samples]
    save_file(sets, folder / "data.safetensors")
    for seed in range(seeds):
        torch.manual_seed(seed)
        layers = {
            "conv0": torch.nn.Conv2d(1, 32, 3, padding=1, bias=False),
            "conv1": torch.nn.Conv2d(32, 64, 3, padding=1, bias=False),
            "hidden": torch.nn.Linear(64 * 7 * 7, 128),
            "last": torch.nn.Linear(128, 10),
        }
        start = {f"{layer}.{n}": v.detach().numpy() for layer, m in layers.items() for n, v in m.named_parameters()}
        random = np.random.default_rng(seed)
        start["order"] = np.stack([random.permutation(len(sets["train_x"])) for _ in range(MAX_EPOCHS)])
        save_file(start, folder / f"start{seed}.safetensors")


def same_work(results: Results, rows: list[str], seeds: int) -> list[Check]:
    checks = []
    for row in rows:
        half = row.endswith("_bf16")
        worst, limit = 0.0, BF16_TOLERANCE if half else LOSS_TOLERANCE
        for seed in range(seeds):
            own, exact = results.reports[f"{row}_{seed}"][0]["first_losses"], results.reports[f"torch_{seed}"][0]["exact_losses"]
            worst = max([worst, *(abs(a - b) for a, b in zip(own, exact, strict=True))])
        detail = f"the first losses differ from those of PyTorch in float64 by {worst:.1e} at most (limit {limit:g})"
        checks.append(Check(f"losses of {row}", worst <= limit and (worst > 1e-3 or not half), detail))
        reached = all(r["reached"] for seed in range(seeds) for r in results.reports[f"{row}_{seed}"])
        checks.append(Check(f"accuracy of {row}", reached, "reached with every seed" if reached else "not reached"))
    return checks


def benchmark(quick: bool) -> Benchmark:
    seeds, samples, goal = (1, 6000, 0.7) if quick else (5, 60000, 0.9)
    common = ["--inputs", "{inputs}", "--scratch", "{scratch}", "--report", "{report}", "--goal", str(goal)]
    common += ["--epochs", str(MAX_EPOCHS)]
    threads = min(2, cpus())
    precisions = {"": "32-true"}
    if has_instructions("avx512_bf16") or has_instructions("amx_bf16"):  # slow without them
        precisions["_bf16"] = "bf16-mixed"
    kinds = {
        "fulgur": (
            ["{bin}/c12_fulgur"],
            "Fulgur Trainer, captured",
            "EarlyStopping at the goal; CSV and JSONL log, ModelCheckpoint, progress bar on a terminal, summary; "
            "memory_format: channels_last, capture: true.",
        ),
        "torch": (
            ["{python}", "{peers}/c12_torch.py"],
            "PyTorch by hand, best",
            "Eager: index_select for a batch, AdamW(fused=True), channels last, no logs, no checkpoint.",
        ),
        "lightning": (
            ["{python}", "{peers}/c12_lightning.py"],
            "Lightning, default",
            "EarlyStopping at the goal; CSVLogger, ModelCheckpoint, progress bar on a terminal, summary; DataLoader without "
            "workers; channels last.",
        ),
    }
    peers = [
        Peer(
            f"{row}{suffix}_{seed}",
            title if precision == "32-true" else f"{title}, {precision}",
            [*program, *common, "--seed", str(seed), "--precision", precision],
            note if precision == "32-true" else "",
            terminal=row != "torch",
            row=row + suffix,
            threads=threads,
        )
        for seed in range(seeds)
        for suffix, precision in precisions.items()
        for row, (program, title, note) in kinds.items()
    ]

    def over(slow, suffix):
        title = {"lightning": "Lightning", "torch": "PyTorch at its best"}[slow]
        fastest = suffix == list(precisions)[-1]
        aim = AIM if fastest else 1.0 if slow == "lightning" else None
        target = Target.ratio(
            f"{title} over Fulgur, {precisions[suffix]}, wall time of three epochs", slow + suffix, "fulgur" + suffix, "three_epochs_s", aim
        )
        target.judged = "median"
        return target

    return Benchmark(
        name="C12",
        title="Time to accuracy",
        about=f"Fashion-MNIST, {samples} samples, two convolutions with BatchNorm and a hidden layer of 128, batch 128, AdamW, threads: {threads}; "
        f"from the start of the process to the end of the first epoch with {100 * goal:g} % of the test images right. Seeds: {seeds}, "
        "each with weights and orders that all peers have. How many epochs a seed needs depends on the last bits; the ratios are of "
        "the time for three, the median number: that of the first, with the start, and twice the median of the later ones.",
        peers=peers,
        metrics=[
            Metric("wall_s", "wall s", digits=1),
            Metric("three_epochs_s", "wall s, three epochs", digits=1),
            Metric("cpu_s", "CPU s", digits=1),
            Metric("epochs", "epochs", digits=0),
        ],
        targets=[over(slow, suffix) for suffix in precisions for slow in ("lightning", "torch")],
        rounds=1,
        make_inputs=lambda folder: make_inputs(folder, seeds, samples),
        check=lambda results: same_work(results, [row + suffix for suffix in precisions for row in kinds], seeds),
    )
