"""C8: what it costs to go on from a checkpoint."""

from spec import Benchmark, Check, Metric, Peer, Target


def check(results):
    return [Check("Fulgur's resumed weights", all(r["equal"] for r in results.reports["fulgur"]), "equal to the bit to those of a run that was not stopped")]


def benchmark(quick: bool) -> Benchmark:
    samples = 100_000 if quick else 1_000_000
    arguments = ["--samples", str(samples), "--rounds", "2" if quick else "5", "--scratch", "{scratch}", "--report", "{report}"]

    def over(title, slow, fast, aim=None, at_least=True):
        return Target.ratio(title, slow, fast, "wall_s", aim, at_least=at_least)

    return Benchmark(
        name="C8",
        title="Going on from a checkpoint",
        about=f"From fit() with a checkpoint to the first training step: at step 1 and at 90 % of an epoch of {samples:,} shuffled samples in batches "
        "of 100. Linear(16, 4), AdamW, no workers.",
        peers=[
            Peer("fulgur", "Fulgur", ["{bin}/c8_fulgur", *arguments]),
            Peer("lightning", "Lightning", ["{python}", "{peers}/c8_lightning.py", *arguments], "Its fit continues with batches of another order: it saves neither the position in the data nor generators."),
        ],
        rows={
            "fulgur_start": "Fulgur, at step 1",
            "fulgur_late": "Fulgur, at 90 % of the epoch",
            "lightning_start": "Lightning, at step 1",
            "lightning_late": "Lightning, at 90 % of the epoch",
        },
        metrics=[Metric("wall_s", "wall s", digits=4)],
        targets=[
            over("Fulgur at 90 % over at step 1", "fulgur_late", "fulgur_start", 1.1, at_least=False),
            over("Lightning at 90 % over at step 1", "lightning_late", "lightning_start"),
            over("Lightning over Fulgur at 90 %", "lightning_late", "fulgur_late"),
        ],
        rounds=1 if quick else 2,
        check=check,
    )
