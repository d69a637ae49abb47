"""C9: what bfloat16 by autocast gains on a CPU that has instructions for it."""

import sys
from pathlib import Path

from machine import has_instructions
from spec import Benchmark, Check, Metric, Peer, Results, Target

KINDS = {"gpt": "GPT", "conv": "conv net"}
PRECISIONS = {"32-true": "float32", "bf16-mixed": "bf16-mixed"}
AIMS = {"gpt": 1.6, "conv": 1.8}
WARMUPS = 1
# Of the same precision on all sides, and of bfloat16 against float32: its 8 bits make 0.4 % of a value.
TOLERANCES = {"32-true": 1e-4, "bf16-mixed": 5e-3}
AGAINST_FLOAT32 = 2e-2


def case(kind, precision):
    return f"{KINDS[kind]}, {PRECISIONS[precision]}"


def make_inputs(folder: Path, steps: int):
    import torch
    from safetensors.torch import save_file

    sys.path.append(str(Path(__file__).resolve().parent.parent / "peers"))
    from c9_nets import BATCHES, CLASSES, LENGTH, SIDE, VOCABULARY, make_net

    torch.manual_seed(1)
    count = WARMUPS + steps
    tokens = torch.randint(VOCABULARY, (count * BATCHES["gpt"], LENGTH + 1))
    data = {
        "gpt": {"x": tokens[:, :-1].contiguous(), "y": tokens[:, 1:].contiguous()},
        "conv": {
            "x": torch.randn(count * BATCHES["conv"], 3, SIDE, SIDE),
            "y": torch.randint(CLASSES, (count * BATCHES["conv"],)),
        },
    }
    for kind, tensors in data.items():
        save_file(tensors, folder / f"{kind}_data.safetensors")
        parameters = {name: value.detach().clone() for name, value in make_net(kind).named_parameters()}  # a tied one once
        if kind == "gpt":
            for name, value in parameters.items():
                if value.dim() == 2:
                    value.normal_(0, 0.02)
        save_file(parameters, folder / f"{kind}_weights.safetensors")


def check(results: Results) -> list[Check]:
    checks = []
    for row in results.reports:
        for kind in KINDS:
            for precision, limit in TOLERANCES.items():
                expected = results.reports["torch"][0]["losses"][case(kind, precision)]
                found = [report["losses"][case(kind, precision)] for report in results.reports[row]]
                worst = max(abs(a / b - 1) for losses in found for a, b in zip(losses, expected, strict=True))
                checks.append(
                    Check(f"losses of {row}, {case(kind, precision)}", worst <= limit, f"those of PyTorch to {worst:.1e} (limit {limit:g})")
                )
            exact, half = (results.reports[row][0]["losses"][case(kind, precision)] for precision in PRECISIONS)
            worst = max(abs(a / b - 1) for a, b in zip(half, exact, strict=True))
            checks.append(
                Check(
                    f"losses of {row}, {KINDS[kind]} in bfloat16",
                    0 < worst <= AGAINST_FLOAT32,
                    f"those in float32 to {worst:.1e} (more than 0, limit {AGAINST_FLOAT32:g})",
                )
            )
    return checks


def cpu_features():
    names = {"AVX512_BF16": "avx512_bf16", "AMX": "amx_bf16"}
    return ", ".join(f"{'has' if has_instructions(flag) else 'has no'} {name}" for name, flag in names.items())


def benchmark(quick: bool) -> Benchmark:
    steps = 1 if quick else 3
    common = ["--inputs", "{inputs}", "--scratch", "{scratch}", "--report", "{report}", "--steps", str(steps)]
    rows = {"fulgur": "Fulgur", "torch": "PyTorch", "lightning": "Lightning"}

    def gain(row, kind, aim=None):
        def value(results, statistic):
            slow, fast = (results.statistic(row, "cpu_s", statistic, case(kind, precision)) for precision in PRECISIONS)
            return slow / fast

        return Target(f"{KINDS[kind]}: float32 over bf16-mixed, {rows[row]}", value, aim)

    def over(row, kind, precision):
        name = case(kind, precision)
        return Target.ratio(f"{name}: {rows[row]} over Fulgur", row, "fulgur", "cpu_s", case=name)

    return Benchmark(
        name="C9",
        title="Mixed precision on the CPU",
        about="A training step with AdamW: a GPT of 6 blocks of width 384 on 8 x 256 tokens, and five 3x3 convolutions with BatchNorm (64 to 256 channels, "
        f"channels last) on 64 images of 32 x 32. This CPU {cpu_features()}.",
        peers=[
            Peer("fulgur", "Fulgur Trainer", ["{bin}/c9_fulgur", *common], "trainer.precision; no logs, no checkpoint."),
            Peer("torch", "PyTorch by hand", ["{python}", "{peers}/c9_torch.py", *common], "Eager: torch.autocast, AdamW(fused=True)."),
            Peer("lightning", "Lightning Trainer", ["{python}", "{peers}/c9_lightning.py", *common], "precision; AdamW(fused=True); no logs, no checkpoint, no progress bar."),
        ],
        metrics=[
            Metric("cpu_s", "CPU ms a step", of=lambda seconds, name: 1e3 * seconds, digits=1),
            Metric("wall_s", "wall ms a step", of=lambda seconds, name: 1e3 * seconds, digits=1),
        ],
        targets=[
            *(gain(row, kind, AIMS[kind] if row == "fulgur" else None) for kind in KINDS for row in rows),
            *(over(row, kind, precision) for kind in KINDS for precision in PRECISIONS for row in ("torch", "lightning")),
        ],
        rounds=1 if quick else 3,
        make_inputs=lambda folder: make_inputs(folder, steps),
        check=check,
    )
