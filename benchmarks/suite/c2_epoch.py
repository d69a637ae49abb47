"""C2: an epoch of a small network."""

from pathlib import Path

from checks import losses_agree
from spec import Benchmark, Metric, Peer, Target

SAMPLES, FEATURES, CLASSES = 60000, 784, 10


def make_inputs(folder: Path, epochs: int):
    import numpy as np
    import torch
    from safetensors.numpy import save_file

    random = np.random.default_rng(1)
    y = random.integers(0, CLASSES, SAMPLES)
    # Prototypes near enough to each other that the loss stays well above 0.
    x = 0.05 * random.standard_normal((CLASSES, FEATURES), dtype=np.float32)[y]
    x += random.standard_normal((SAMPLES, FEATURES), dtype=np.float32)
    order = np.stack([random.permutation(SAMPLES) for _ in range(epochs)])
    save_file({"x": x, "y": y, "order": order}, folder / "data.safetensors")
    torch.manual_seed(1)
    first, second = torch.nn.Linear(FEATURES, 128), torch.nn.Linear(128, CLASSES)
    weights = {
        "first.weight": first.weight,
        "first.bias": first.bias,
        "second.weight": second.weight,
        "second.bias": second.bias,
    }
    save_file({name: value.detach().numpy() for name, value in weights.items()}, folder / "weights.safetensors")


def benchmark(quick: bool) -> Benchmark:
    epochs = 2 if quick else 3
    common = ["--inputs", "{inputs}", "--scratch", "{scratch}", "--report", "{report}", "--epochs", str(epochs)]

    def peer(name, title, program, mode, note="", terminal=False):
        runs = ["{python}", "{peers}/" + program] if program.endswith(".py") else ["{bin}/" + program]
        return Peer(name, title, [*runs, "--mode", mode, *common], note, terminal)

    def over(title, slow, fast, aim=None):
        return Target.ratio(title, slow, fast, "cpu_s", aim)

    return Benchmark(
        name="C2",
        title="Epoch of a small network",
        about="60,000 samples of 784 float32, MLP 784-128-10, batch 64, 938 steps, AdamW; seconds of an epoch from start to start, "
        "checkpoint included where one is written.",
        peers=[
            peer(
                "fulgur_default",
                "Fulgur Trainer, default",
                "c2_fulgur",
                "default",
                terminal=True,
                note="CSV and JSONL log, ModelCheckpoint, progress bar on a terminal, summary, one value logged in each step.",
            ),
            peer(
                "fulgur_captured",
                "Fulgur Trainer, default with capture",
                "c2_fulgur",
                "captured",
                terminal=True,
                note="trainer.capture, and all that is there by default.",
            ),
            peer("fulgur_barebones", "Fulgur Trainer, barebones", "c2_fulgur", "barebones"),
            peer(
                "libtorch_fused",
                "LibTorch by hand, fused",
                "c2_libtorch_fused",
                "-",
                note="index_select for a batch, at::_fused_adamw_ and nothing around them: the floor, but for how a batch is gathered.",
            ),
            peer("libtorch_naive", "LibTorch, torch::data and torch::optim", "c2_libtorch_naive", "-"),
            peer(
                "torch_best",
                "PyTorch by hand, best",
                "c2_torch.py",
                "best",
                note="Eager: index_select for a batch, AdamW(fused=True), no DataLoader, no logging.",
            ),
            peer(
                "torch_indexed",
                "PyTorch by hand, x[rows]",
                "c2_torch.py",
                "indexed",
                note="As best, but a batch by indexing with a tensor, as most write it.",
            ),
            peer(
                "torch_default",
                "PyTorch by hand, DataLoader",
                "c2_torch.py",
                "default",
                note="DataLoader without workers (with them it is slower) over a TensorDataset, AdamW as it is by default.",
            ),
            peer(
                "fabric",
                "Lightning Fabric",
                "c2_fabric.py",
                "-",
                note="As PyTorch by hand with a DataLoader; loader, model and optimizer set up by Fabric.",
            ),
            peer(
                "lightning_default",
                "Lightning, default",
                "c2_lightning.py",
                "default",
                terminal=True,
                note="CSVLogger, ModelCheckpoint, progress bar on a terminal, summary, one value logged in each step; DataLoader without workers.",
            ),
            peer(
                "lightning_barebones",
                "Lightning, barebones",
                "c2_lightning.py",
                "barebones",
                note="Trainer(barebones=True); DataLoader without workers.",
            ),
            peer(
                "lightning_best",
                "Lightning, barebones and best",
                "c2_lightning.py",
                "best",
                note="Barebones, with the batches and the optimizer of PyTorch at its best: for those who write loader and optimizer for speed.",
            ),
        ],
        metrics=[Metric("cpu_s", "CPU s an epoch", digits=3), Metric("wall_s", "wall s an epoch", digits=3)],
        targets=[
            over("Lightning default over Fulgur default", "lightning_default", "fulgur_default", 4.2),
            over("Lightning barebones over Fulgur barebones", "lightning_barebones", "fulgur_barebones", 3.0),
            over("PyTorch at its best over Fulgur default", "torch_best", "fulgur_default", 1.6),
            over("PyTorch at its best over Fulgur with capture", "torch_best", "fulgur_captured", 2.0),
            over("PyTorch at its best over Fulgur barebones", "torch_best", "fulgur_barebones"),
            over("PyTorch with x[rows] over Fulgur default", "torch_indexed", "fulgur_default"),
            over("naive LibTorch over Fulgur default", "libtorch_naive", "fulgur_default", 1.35),
            over("naive LibTorch over Fulgur barebones", "libtorch_naive", "fulgur_barebones"),
            over("Lightning at its best over Fulgur barebones", "lightning_best", "fulgur_barebones"),
            over("Fulgur default over LibTorch by hand", "fulgur_default", "libtorch_fused"),
            over("Fulgur barebones over LibTorch by hand", "fulgur_barebones", "libtorch_fused"),
        ],
        rounds=2 if quick else 7,
        warmup_samples=1,
        make_inputs=lambda folder: make_inputs(folder, epochs),
        check=lambda results: losses_agree(results, "torch_default"),
    )
