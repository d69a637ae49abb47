"""C14: what a run costs with everything on."""

from spec import Benchmark, Check, Metric, Peer, Results, Target


def check(results: Results):
    reports = results.reports["fits"]
    received = min(report["received"] for report in reports)
    return [
        Check("the server of MLflow's interface", received > 0, f"received {received} values or more in each fit"),
        Check("losses", all(report["equal"] for report in reports), "the last training loss is the same in all fits"),
    ]


def benchmark(quick: bool) -> Benchmark:
    batches, rounds = (20, 1) if quick else (400, 3)
    arguments = ["--trainer", "{bin}/trainer", "--suite", "{suite}", "--scratch", "{scratch}", "--report", "{report}"]
    return Benchmark(
        name="C14",
        title="Everything on",
        about=f"`trainer fit` of the quickstart's CNN, one epoch of {batches} batches of 128 and a validation of 5,000 images, as processes in turn: "
        "without callbacks and loggers, and with accuracy, F1, AUROC and a confusion matrix, weight averaging, monitors of gradients and spikes, and "
        "the loggers CSV, JSONL, TensorBoard and MLflow, whose server is a stand-in.",
        peers=[Peer("fits", "trainer fit", ["{python}", "{peers}/c14_fits.py", *arguments, "--batches", str(batches), "--rounds", str(rounds)])],
        rows={"bare": "bare", "everything": "everything on"},
        metrics=[Metric("cpu_s", "CPU s", digits=2), Metric("wall_s", "wall s", digits=2)],
        targets=[
            Target(
                "everything adds to a run",
                lambda results, statistic: 100 * (results.ratio("everything", "bare", "cpu_s", statistic) - 1),
                3.0,
                at_least=False,
                unit="%",
                judged="median",
            )
        ],
        rounds=1 if quick else 2,
        check=check,
    )
