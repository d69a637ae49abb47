"""C6: from the start of a process to its first optimizer step."""

from spec import Benchmark, Metric, Peer, Target


def benchmark(quick: bool) -> Benchmark:
    trainer = [
        "{bin}/trainer",
        "fit",
        "--plugin",
        "{lib}/libc6_first_step.so",
        "--config",
        "{suite}/c6_start.yaml",
        "--trainer.default_root_dir",
        "{scratch}",
    ]

    def over(title, slow, aim=None):
        return Target.ratio(title, slow, "fulgur", "wall_s", aim)

    return Benchmark(
        name="C6",
        title="Time to the first step",
        about="From the start of the process to the end of the first optimizer step, wall time, files in the page cache. MLP 784-128-10, "
        "1,024 made samples, AdamW.",
        peers=[
            Peer(
                "fulgur",
                "Fulgur, trainer fit",
                trainer,
                "The program on a YAML file, with sanity validation, CSV and JSONL logs, checkpoint, summary and "
                "progress bar.",
                terminal=True,
            ),
            Peer(
                "torch",
                "Python and torch",
                ["{python}", "{peers}/c6_torch.py"],
                "A loop by hand, fused AdamW, no validation, no logs.",
            ),
            Peer(
                "lightning",
                "Python and Lightning",
                ["{python}", "{peers}/c6_lightning.py", "{scratch}"],
                "Trainer as it is by default, with sanity validation, CSVLogger, checkpoint, summary and progress bar; compiled .pyc files are there.",
                terminal=True,
            ),
        ],
        metrics=[Metric("wall_s", "wall s", digits=3), Metric("cpu_s", "CPU s", digits=3)],
        targets=[over("Lightning over Fulgur", "lightning", 6.0), over("Python and torch over Fulgur", "torch")],
        rounds=3 if quick else 9,
        warmup_rounds=1,
    )
