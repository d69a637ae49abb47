"""C4: a loader of images in memory."""

from pathlib import Path

from checks import values_agree
from spec import Benchmark, Metric, Peer, Target

SAMPLES, COSTLY = 60000, 6400


def make_inputs(folder: Path, epochs: int):
    import numpy as np
    from safetensors.numpy import save_file

    random = np.random.default_rng(3)
    x = random.integers(0, 256, (SAMPLES, 28, 28), dtype=np.uint8)
    y = random.integers(0, 10, SAMPLES)
    order = np.stack([random.permutation(SAMPLES) for _ in range(epochs)])
    save_file({"x": x, "y": y, "order": order}, folder / "images.safetensors")


def benchmark(quick: bool) -> Benchmark:
    epochs = 1 if quick else 3
    memory = {f"in memory, batch {batch}": (batch, SAMPLES) for batch in (64, 256)}
    work = {"50 µs of CPU time a sample, batch 64": (64, COSTLY)}
    images = {case: samples for case, (_, samples) in (memory | work).items()}

    peers = []

    def row(name, title, program, mode, workers, cases, note=""):
        runs = ["{python}", "{peers}/" + program] if program.endswith(".py") else ["{bin}/" + program]
        for i, (case, (batch, samples)) in enumerate(cases.items()):
            command = [
                *runs,
                "--mode",
                mode,
                "--workers",
                str(workers),
                "--case",
                case,
                "--batch",
                str(batch),
                "--samples",
                str(samples),
                "--epochs",
                str(epochs),
                "--inputs",
                "{inputs}",
                "--report",
                "{report}",
            ]
            peers.append(Peer(f"{name}:{case}", title, command, note if i == 0 else "", row=name))

    for workers in (0, "auto", 1, 2):
        row(
            f"fulgur_{workers}",
            f"Fulgur, {workers} workers",
            "c4_fulgur",
            "tensors",
            workers,
            memory,
            "TensorDataset of uint8 and a transform of whole batches." if workers == 0 else "",
        )
    row(
        "libtorch_0",
        "torch::data, 0 workers",
        "c4_libtorch",
        "batch",
        0,
        memory,
        "Stack of uint8 samples, then normalised batch by batch: its fastest way.",
    )
    row("libtorch_2", "torch::data, 2 workers", "c4_libtorch", "batch", 2, memory)
    row(
        "libtorch_sample",
        "torch::data, by sample, 0 workers",
        "c4_libtorch",
        "sample",
        0,
        memory,
        "Normalised sample by sample, as its own Normalize does.",
    )
    row(
        "index",
        "Python, batched index",
        "c4_torch.py",
        "index",
        0,
        memory,
        "No DataLoader: one index_select for a batch.",
    )
    row(
        "torch_0",
        "Python DataLoader, 0 workers",
        "c4_torch.py",
        "batch",
        0,
        memory,
        "uint8 samples, default_collate, then normalised batch by batch: its fastest way with samples.",
    )
    row(
        "torch_2",
        "Python DataLoader, 2 workers",
        "c4_torch.py",
        "batch",
        2,
        memory,
        "persistent_workers; CPU time includes the workers'.",
    )
    row(
        "torch_sample",
        "Python DataLoader, by sample, 0 workers",
        "c4_torch.py",
        "sample",
        0,
        memory,
        "Normalised sample by sample, as with torchvision's transforms.",
    )
    for workers in (0, "auto", 1, 2):
        row(f"fulgur_{workers}", f"Fulgur, {workers} workers", "c4_fulgur", "work", workers, work)
    for workers in (0, 2):
        row(f"libtorch_{workers}", f"torch::data, {workers} workers", "c4_libtorch", "work", workers, work)
        row(f"torch_{workers}", f"Python DataLoader, {workers} workers", "c4_torch.py", "work", workers, work)

    def over(title, slow, fast, case, aim=None, key="cpu_s"):
        return Target.ratio(f"{case}: {title}", slow, fast, key, aim, case)

    targets = []
    for case in memory:
        targets += [
            over("Python DataLoader(0) over Fulgur(0)", "torch_0", "fulgur_0", case, 10.0),
            over("torch::data over Fulgur(0)", "libtorch_0", "fulgur_0", case, 5.0),
            over("Python DataLoader(0), by sample, over Fulgur(0)", "torch_sample", "fulgur_0", case),
            over("torch::data, by sample, over Fulgur(0)", "libtorch_sample", "fulgur_0", case),
            over("Python's batched index over Fulgur(0)", "index", "fulgur_0", case),
        ]
    for case in work:
        targets += [
            over("wall time, Fulgur(0) over Fulgur(2)", "fulgur_0", "fulgur_2", case, 1.0, "wall_s"),
            over("wall time, Fulgur(0) over Fulgur(auto)", "fulgur_0", "fulgur_auto", case, None, "wall_s"),
            over("wall time, Python DataLoader(2) over Fulgur(2)", "torch_2", "fulgur_2", case, None, "wall_s"),
            over("wall time, torch::data(2) over Fulgur(2)", "libtorch_2", "fulgur_2", case, None, "wall_s"),
        ]

    return Benchmark(
        name="C4",
        title="Loader of images in memory",
        about="60,000 uint8 images of 28 x 28 in a shuffled order, given out as normalised float32; an epoch from its start to its end. Then 6,400 "
        "of them with a transform that takes 50 µs of CPU time. First batch: from the start of an epoch. Gap: how long a consumer that computes "
        "for 1 ms waits for each batch.",
        peers=peers,
        metrics=[
            Metric("cpu_s", "images/s a core", of=lambda s, case: images[case] / s, digits=0),
            Metric("wall_s", "images/s, wall", of=lambda s, case: images[case] / s, digits=0),
            Metric("first_s", "first batch ms", of=lambda s, case: 1e3 * s, digits=2),
            Metric("gap_s", "gap µs", of=lambda s, case: 1e6 * s, digits=1),
        ],
        targets=targets,
        plotted={case: "images/s, wall" for case in work},
        rounds=2 if quick else 5,
        make_inputs=lambda folder: make_inputs(folder, epochs + 2),
        check=lambda results: values_agree(results, "torch_0", "contents", 1e-4),
    )
