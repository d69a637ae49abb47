"""C1: what a trainer adds to a step."""

from checks import values_agree
from spec import Benchmark, Metric, Peer, Target

STEPS = 5000


def benchmark(quick: bool) -> Benchmark:
    def microseconds(seconds, _=None):
        return 1e6 * seconds / STEPS

    def python(mode, title, note=""):
        return Peer(
            mode,
            title,
            ["{python}", "{peers}/c1_loops.py", "--mode", mode, "--scratch", "{scratch}", "--report", "{report}"],
            note,
            terminal=mode == "default",
        )

    def added(title, row, base="raw"):
        return Target(
            f"{title} adds",
            lambda r, s: microseconds(r.statistic(row, "cpu_s", s) - r.statistic(base, "cpu_s", s)),
            unit="µs a step",
        )

    def ours(title, row):
        # The least of differences would flatter: the middle of the processes is what counts.
        return Target(
            title,
            lambda r, s: microseconds(r.statistic(row, "added_s", s)),
            2.0,
            at_least=False,
            unit="µs a step",
            judged="median",
        )

    return Benchmark(
        name="C1",
        title="What a trainer adds to a step",
        about=f"Linear(32, 2), batch 8, SGD, {STEPS:,} batches made before; 10 callbacks that override two hooks of each step and one logged value "
        "per step where there are callbacks and logs. Added is the difference to the loop by hand of the same language.",
        peers=[
            Peer(
                "fulgur",
                "Fulgur",
                ["{bin}/step_overhead", "--report", "{report}"],
                "One process runs two loops by hand and the Trainer (no progress bar, no checkpoint) in turn, 7 times; added is the difference of "
                "the least in one process.",
            ),
            python("raw", "PyTorch by hand"),
            python("fabric", "Lightning Fabric", "No callbacks, no logs."),
            python("barebones", "Lightning, barebones", "10 callbacks, no logs."),
            python(
                "off",
                "Lightning, all off but log",
                "10 callbacks, self.log; no logger, checkpoint, progress bar, summary: what Fulgur's Trainer does here.",
            ),
            python(
                "default",
                "Lightning, default",
                "10 callbacks, self.log, CSVLogger, checkpoint, progress bar on a terminal, summary.",
            ),
        ],
        rows={
            "by_hand": "LibTorch by hand, batches as they are",
            "by_hand_loader": "LibTorch by hand, the Trainer's loader",
            "trainer": "Fulgur Trainer",
            "captured": "Fulgur Trainer, capture",
            "added": "Fulgur Trainer adds to batches as they are",
            "added_loader": "Fulgur Trainer adds to the same loader",
        },
        metrics=[
            Metric("cpu_s", "CPU µs a step", of=microseconds),
            Metric("added_s", "added µs a step", of=microseconds),
        ],
        targets=[
            ours("Fulgur adds to a loop over the same loader", "added_loader"),
            ours("Fulgur adds to a loop over the batches where they lie", "added"),
            Target.ratio("LibTorch by hand over Fulgur's whole step, capture", "by_hand_loader", "captured", "cpu_s", 2.5),
            added("Fabric", "fabric"),
            added("Lightning barebones", "barebones"),
            added("Lightning, all off but log", "off"),
            added("Lightning default", "default"),
        ],
        rounds=2 if quick else 5,
        warmup_samples=1,
        check=lambda results: values_agree(results, "raw", "weights", 1e-4),
    )
