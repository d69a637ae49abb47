"""The twin of Gan: the networks of PyTorch's DCGAN example."""

import torch
from case import Case
from data import bounded_images
from torch import nn
from torch.nn import functional as F

LATENT = 8


def up(a, b):
    return nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False)


def down(a, b):
    return nn.Conv2d(a, b, 4, 2, 1, bias=False)


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        first = nn.ConvTranspose2d(LATENT, 16, 3, 1, 0, bias=False)
        generator = nn.Sequential(first, nn.BatchNorm2d(16), nn.ReLU(), up(16, 8), nn.BatchNorm2d(8), nn.ReLU(), up(8, 1), nn.Tanh())
        last = nn.Conv2d(16, 1, 3, 1, 0, bias=False)
        layers = [down(1, 8), nn.LeakyReLU(0.2), down(8, 16), nn.BatchNorm2d(16), nn.LeakyReLU(0.2), last]
        self.generator = nn.ModuleDict({"main": generator})
        self.discriminator = nn.ModuleDict({"main": nn.Sequential(*layers)})
        for value in self.parameters():
            if value.dim() == 4:
                nn.init.normal_(value, 0, 0.02)
        for name, value in self.named_parameters():
            if value.dim() == 1 and name.endswith("weight"):
                nn.init.normal_(value, 1, 0.02)

    def make(self, count):
        codes = torch.randn(count, LATENT, dtype=next(self.parameters()).dtype)
        return self.generator["main"](codes[:, :, None, None])

    def judge(self, images):
        return self.discriminator["main"](images).flatten()

    def optimizers(self, lr):
        """Of the generator and of the discriminator."""
        parts = (self.generator, self.discriminator)
        return [torch.optim.Adam(part.parameters(), lr, betas=(0.5, 0.999)) for part in parts]


def loss_as(logits, real):
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))


def adversarial_step(model, batch, optimizers, autocast):
    """The losses of the discriminator and of the generator, after a step of each."""
    for_generator, for_discriminator = optimizers
    with autocast():
        real = model.judge(batch["input"])
        images = model.make(len(batch["input"]))
        d_loss = loss_as(real, True) + loss_as(model.judge(images.detach()), False)
    for_discriminator.zero_grad()
    d_loss.backward()
    for_discriminator.step()
    with autocast():
        g_loss = loss_as(model.judge(images), True)
    for_generator.zero_grad()
    g_loss.backward(inputs=list(model.generator.parameters()))
    for_generator.step()
    return d_loss.item(), g_loss.item()


def case(name, lr, precisions, note=""):
    rate = {"class_path": "Adam", "init_args": {"lr": lr, "betas": [0.5, 0.999]}}
    return Case(
        name=name,
        title="`Gan`",
        twin_title="PyTorch's DCGAN example",
        model={
            "class_path": "Gan",
            "init_args": {
                "height": 12,
                "width": 12,
                "latent_size": LATENT,
                "channels": 8,
                "sample_pictures": 0,
                "generator_optimizer": rate,
                "discriminator_optimizer": rate,
            },
        },
        twin=Gan,
        loss_of=adversarial_step,
        arrays=lambda rows: bounded_images(rows, 12, low=-1.0),
        entries=["input"],
        adversarial=True,
        lr=lr,
        precisions=precisions,
        note=note,
    )


CASES = [
    case("gan", 1e-5, ("32-true", "64-true", "bf16-mixed"), "two Adam optimizers; a Gan has neither accumulation nor clipping; as slow as `ResNet`"),
    case("gan-fast", 2e-4, ("64-true",)),
]
