"""What the techniques are tried on: a few seconds each, one thread, no checkpoints, no progress bar."""

import random
from pathlib import Path

from technique import Work

COMMON = [
    "--trainer.num_threads", "1",
    "--trainer.callbacks", "[]",
    "--trainer.enable_checkpointing", "false",
    "--trainer.enable_progress_bar", "false",
    "--trainer.enable_model_summary", "false",
    "--trainer.num_sanity_val_steps", "0",
    "--trainer.default_root_dir", "{scratch}",
]  # fmt: skip
FEW = ["--trainer.max_epochs", "1", "--trainer.limit_train_batches", "4", "--trainer.limit_val_batches", "1"]


def batches(epochs, train, val):
    return ["--trainer.max_epochs", str(epochs), "--trainer.limit_train_batches", str(train), "--trainer.limit_val_batches", str(val)]


MLP = Work(
    "MLP 784-128-10, batch 64, 4 epochs of 600 batches",
    ["--config", "{configs}/fashion_mnist_mlp.yaml", *COMMON, *batches(4, 600, "1.0")],
    FEW,
)
CNN = Work(
    "CNN, 2 convolutions, batch 128, 50 batches",
    ["--config", "{configs}/fashion_mnist_cnn.yaml", *COMMON, *batches(1, 50, 8)],
    FEW,
)
_NET = ["--plugin", "{plugin}", "--config", "{configs}/fashion_mnist_cnn.yaml", *COMMON, "--model", "TechniqueNet"]
NET = Work("a network of the plug-in, 2 convolutions with BatchNorm, batch 128, 30 batches", [*_NET, *batches(1, 30, 8)], FEW)
SMALL_NET = Work(
    "a network of the plug-in, 784-32-10, batch 32, 8 epochs of 1,500 batches",
    [*_NET, "--model.channels", "[]", "--model.hidden", "32", "--data.batch_size", "32", *batches(8, 1500, 16)],
    FEW,
)
VALIDATION = Work(
    "5 batches of 128, then validation on 5,000 images by 1,000; a network of the plug-in with 2 convolutions",
    [*_NET, *batches(1, 5, "1.0"), "--data.eval_batch_size", "1000"],
    FEW,
)
AUTOENCODER = Work(
    "autoencoder 784-2048-1024-2048-784, batch 1,024, 16 batches",
    ["--config", "{configs}/autoencoder.yaml", *COMMON, "--model.hidden", "[2048]", "--model.code_size", "1024", "--data.batch_size", "1024", *batches(1, 16, 2)],
    FEW,
)
COSTLY_SAMPLES = Work(
    "40 batches of 128 samples that cost 60 µs or so each; a network of the plug-in, 784-512-10",
    [*_NET, "--model.channels", "[]", "--model.hidden", "512", "--data", "CostlySamples", *batches(2, 40, 0)],
    FEW,
)
OWN_BUFFER = Work(
    "400 batches of 128 of an array of 314 MB; a network of the plug-in, 784-32-10",
    [*_NET, "--model.channels", "[]", "--model.hidden", "32", "--data", "OwnBuffer", *batches(1, 400, 0)],
    FEW,
)
GPT = Work(
    "GPT, 6 blocks of width 192, 256 tokens, batch 8, 6 batches",
    [
        "--config", "{configs}/gpt_shakespeare.yaml", *COMMON, *batches(1, 6, 2),
        "--model.n_layer", "6", "--model.n_embd", "192", "--data.block_size", "256", "--data.batch_size", "8", "--data.samples_per_epoch", "48",
        "--lr_scheduler", "null",
    ],
    FEW,
    text=True,
)  # fmt: skip


def write_text(path: Path):
    """400,000 characters of made words, the same each time: some follow others more often, so there is something to learn."""
    draw = random.Random(1)
    words = ["".join(draw.choice("aeiou" if i % 2 else "bcdfghlmnprst") for i in range(draw.randint(2, 7))) for _ in range(300)]
    after = {word: draw.sample(words, 8) for word in words}
    text, word, length = [], words[0], 0
    while length < 400_000:
        word = draw.choice(after[word])
        text.append(word)
        length += len(word) + 1
    path.write_text(" ".join(text), encoding="utf-8")
