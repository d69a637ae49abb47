"""Twins of the models of fully connected layers, and of the small convolutional network."""

import torch
from case import Case, slow_and_fast
from data import bounded_images, labelled_images
from torch import nn
from torch.nn import functional as F


class Dense(nn.Module):
    def __init__(self, widths):
        super().__init__()
        for i, (a, b) in enumerate(zip(widths, widths[1:])):
            self.add_module(f"layer{i}", nn.Linear(a, b))

    def forward(self, x):
        *hidden, last = self.children()
        for layer in hidden:
            x = F.relu(layer(x))
        return last(x)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = Dense([64, 48, 32, 5])

    def forward(self, x):
        return self.layers(x.flatten(1))


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv0, self.norm0 = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv1, self.norm1 = nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.head = Dense([16 * 3 * 3, 24, 5])

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.norm0(self.conv0(x)), 2))
        return self.head(F.relu(F.max_pool2d(self.norm1(self.conv1(x)), 2)).flatten(1))


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Dense([64, 32, 6]), Dense([6, 32, 64])

    def forward(self, x):
        return self.decoder(self.encoder(x.flatten(1)))


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Dense([64, 32, 12]), Dense([6, 32, 64])


def classified(model, batch):
    return F.cross_entropy(model(batch["input"]), batch["target"])


def reconstructed(model, batch):
    return F.mse_loss(model(batch["input"]), batch["input"].flatten(1))


def evidence_bound(model, batch):
    """Kingma and Welling 2014, with the sums over codes and pixels in float32 under autocast."""
    x = batch["input"].flatten(1)
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    mean, log_variance = (part.to(kind) for part in model.encoder(x).chunk(2, 1))
    code = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
    output = model.decoder(code).to(kind)
    reconstruction = F.binary_cross_entropy_with_logits(output, x, reduction="sum") / len(x)
    return reconstruction - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum() / len(x)


CASES = [
    Case(
        name="mlp",
        title="`MlpClassifier`",
        twin_title="own module",
        model={"class_path": "MlpClassifier", "init_args": {"in_features": 64, "hidden": [48, 32], "num_classes": 5}},
        twin=Mlp,
        loss_of=classified,
        arrays=lambda rows: labelled_images(rows, 1, 8),
    ),
    *slow_and_fast(
        "cnn",
        title="`CnnClassifier`",
        twin_title="own module",
        model={
            "class_path": "CnnClassifier",
            "init_args": {"height": 12, "width": 12, "num_classes": 5, "channels": [8, 16], "hidden": 24, "dropout": 0},
        },
        twin=Cnn,
        loss_of=classified,
        arrays=lambda rows: labelled_images(rows, 1, 12),
    ),
    Case(
        name="autoencoder",
        title="`Autoencoder`",
        twin_title="own module",
        model={"class_path": "Autoencoder", "init_args": {"in_features": 64, "hidden": [32], "code_size": 6}},
        twin=Autoencoder,
        loss_of=reconstructed,
        arrays=lambda rows: bounded_images(rows, 8),
        entries=["input"],
    ),
    Case(
        name="vae",
        title="`VariationalAutoencoder`",
        twin_title="own module",
        model={
            "class_path": "VariationalAutoencoder",
            "init_args": {"in_features": 64, "hidden": [32], "latent_size": 6, "likelihood": "bernoulli"},
        },
        twin=Vae,
        loss_of=evidence_bound,
        arrays=lambda rows: bounded_images(rows, 8),
        entries=["input"],
    ),
]
