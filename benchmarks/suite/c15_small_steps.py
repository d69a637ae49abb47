"""C15: steps of small networks, captured and not.

FULGUR_BENCHMARK_JAX=python names an environment with jax (`pip install jax`, 100 MB); without it JAX is left out."""

import os
import sys
from pathlib import Path

from spec import Benchmark, Check, Metric, Peer, Results, Target

sys.path.append(str(Path(__file__).resolve().parent.parent / "peers"))
from c15_nets import CASES, PREDICTIONS  # noqa: E402

NAMES = [f"{title}, batch {samples}" for title, (_, _, sizes, _) in (CASES | PREDICTIONS).items() for samples in sizes]
PREDICT = "predict through MLP 32-16-10, batch 1"
# Of LibTorch by hand over Fulgur with captured steps.
AIMS = {"MLP 32-16-10, batch 8": 4, "LSTM cells, 2 layers of width 32, 12 steps, batch 8": 3, "GPT of 2 blocks of width 32, 16 tokens, batch 4": 1.8}
# Of the losses of the first 20 steps, in float32 with other kernels.
TOLERANCE = 2e-3


def check(results: Results) -> list[Check]:
    checks = []
    for row, reports in results.reports.items():
        worst = 0
        for name in NAMES:
            expected = results.reports["by_hand"][0]["losses"][name]
            for report in reports:
                worst = max(worst, *(abs(a - b) / (1e-3 + abs(b)) for a, b in zip(report["losses"][name], expected, strict=True)))
        checks.append(Check(f"losses of {row}", worst <= TOLERANCE, f"those by hand to {worst:.1e} (limit {TOLERANCE:g})"))
    captured, eager = (results.reports[row][0]["losses"] for row in ("fulgur_captured", "fulgur"))
    checks.append(Check("losses of captured steps", captured == eager, "those of eager ones, bit for bit"))
    return checks


def benchmark(quick: bool) -> Benchmark:
    common = ["--scratch", "{scratch}", "--report", "{report}", "--divide", "20" if quick else "1"]
    jax = os.environ.get("FULGUR_BENCHMARK_JAX")
    ours = ["{bin}/c15_fulgur", *common, "--mode"]
    torch = ["{python}", "{peers}/c15_torch.py", *common, "--mode"]
    peers = [
        Peer("fulgur_captured", "Fulgur Trainer, capture", [*ours, "captured"], "trainer.capture; no logs, no checkpoint."),
        Peer("fulgur", "Fulgur Trainer", [*ours, "eager"], "No logs, no checkpoint."),
        Peer("by_hand", "LibTorch by hand", [*ours, "by_hand"], "at::_fused_adamw_ and nothing around the step."),
        Peer("torch", "PyTorch by hand", [*torch, "eager"], "AdamW(fused=True)."),
        Peer("compiled", "PyTorch, torch.compile", [*torch, "compiled"], "The network and its loss are compiled; AdamW(fused=True)."),
        Peer("lightning", "Lightning Trainer", ["{python}", "{peers}/c15_lightning.py", *common], "No logs, no checkpoint, no progress bar."),
    ]
    if jax:
        peers.append(Peer("jax", "JAX, jit", [jax, "{peers}/c15_jax.py", *common], "One jitted function with AdamW, donated buffers, one thread."))

    def over(title, slow, name, aim=None):
        return Target.ratio(f"{name}: {title} over Fulgur, capture", slow, "fulgur_captured", "cpu_s", aim, case=name)

    def microseconds(results, statistic):
        return 1e6 * results.statistic("fulgur_captured", "cpu_s", statistic, PREDICT)

    targets = [over("LibTorch by hand", "by_hand", name, AIMS.get(name)) for name in NAMES]
    for row, title, aim in (("torch", "PyTorch", 10), ("compiled", "torch.compile", 10), *([("jax", "JAX", 2)] if jax else [])):
        targets.append(over(title, row, "MLP 32-16-10, batch 8", aim))
    targets.append(Target(f"{PREDICT}: Fulgur, capture", microseconds, 3, at_least=False, unit="µs"))
    targets += [over(title, row, PREDICT) for row, title in (("torch", "PyTorch"), ("lightning", "Lightning"), *([("jax", "JAX")] if jax else []))]
    return Benchmark(
        name="C15",
        title="Steps of small networks",
        about="A training step with AdamW on batches that are there already, 16 in turn; the same weights and losses on all sides. The last case predicts.",
        peers=peers,
        metrics=[
            Metric("cpu_s", "CPU µs a step", of=lambda seconds, name: 1e6 * seconds, digits=1),
            Metric("wall_s", "wall µs a step", of=lambda seconds, name: 1e6 * seconds, digits=1),
        ],
        targets=targets,
        rounds=1 if quick else 3,
        check=check,
    )
