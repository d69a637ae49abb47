"""C13: what metrics add to a validation."""

from pathlib import Path

from spec import Benchmark, Check, Metric, Peer, Results, Target

METRICS = ("accuracy", "f_beta", "auroc")
TOLERANCE = 1e-6


def make_inputs(folder: Path, samples: int):
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(1)
    layers = {
        "conv0": torch.nn.Conv2d(1, 32, 3, padding=1, bias=False),
        "conv1": torch.nn.Conv2d(32, 64, 3, padding=1, bias=False),
        "head.layer0": torch.nn.Linear(64 * 7 * 7, 128),
        "head.layer1": torch.nn.Linear(128, 10),
    }
    values = {f"{layer}.{name}": value.detach() for layer, module in layers.items() for name, value in module.named_parameters()}
    values["x"] = torch.randn(samples, 1, 28, 28)
    values["y"] = torch.randint(10, (samples,))
    save_file(values, folder / "c13.safetensors")


def check(results: Results):
    ours, theirs = (results.reports[name][0]["values"] for name in ("fulgur", "torchmetrics"))
    worst = max(abs(ours[name] - theirs[name]) for name in METRICS)
    return [Check("values of Fulgur", worst <= TOLERANCE, f"they differ from those of torchmetrics by {worst:.1e} at most (limit {TOLERANCE:g})")]


def benchmark(quick: bool) -> Benchmark:
    samples = 2_000 if quick else 10_000
    arguments = ["--inputs", "{inputs}", "--rounds", "3" if quick else "9", "--report", "{report}"]

    def share(title, row, aim=None):
        return Target(
            title,
            lambda results, statistic: 100 * (results.ratio(f"{row}_metrics", f"{row}_plain", "cpu_s", statistic) - 1),
            aim,
            at_least=False,
            unit="%",
            judged="median",
        )

    return Benchmark(
        name="C13",
        title="Metrics in a validation",
        about=f"Validation of the quickstart's CNN on {samples:,} images in batches of 128, with loss and accuracy alone, and with accuracy, F1 "
        "and AUROC (200 thresholds) added; the two in turn in one process.",
        peers=[
            Peer("fulgur", "Fulgur", ["{bin}/c13_fulgur", *arguments], "Trainer::validate; further metrics are the `metrics` of CnnClassifier."),
            Peer("torchmetrics", "PyTorch and torchmetrics", ["{python}", "{peers}/c13_torchmetrics.py", *arguments], "A loop by hand; loss and accuracy by hand, update() for each batch, compute() at the end."),
        ],
        rows={
            "fulgur_plain": "Fulgur, loss and accuracy",
            "fulgur_metrics": "Fulgur, with the metrics",
            "torchmetrics_plain": "PyTorch by hand, loss and accuracy",
            "torchmetrics_metrics": "PyTorch by hand, with torchmetrics",
        },
        metrics=[Metric("cpu_s", "CPU s", digits=3), Metric("wall_s", "wall s", digits=3)],
        targets=[
            share("Fulgur's metrics add to a validation", "fulgur", 3.0),
            share("torchmetrics adds to a validation", "torchmetrics"),
            Target.ratio("a validation with metrics, PyTorch over Fulgur", "torchmetrics_metrics", "fulgur_metrics", "cpu_s"),
        ],
        rounds=1 if quick else 3,
        make_inputs=lambda folder: make_inputs(folder, samples),
        check=check,
    )
