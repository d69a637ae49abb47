"""C9: what the Python peers train; cpp/c9_fulgur.cpp is the same in C++."""

import argparse
from pathlib import Path

import torch
from gpt import Gpt
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

VOCABULARY, LENGTH, LAYERS, HEADS, WIDTH = 256, 256, 6, 6, 384
SIDE, CLASSES = 32, 10
LAYOUT = [(3, 64, 1), (64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 256, 1)]  # channels in and out, stride
BATCHES = {"gpt": 8, "conv": 64}
TITLES = {"gpt": "GPT", "conv": "conv net"}
PRECISIONS = {"32-true": "float32", "bf16-mixed": "bf16-mixed"}
RATE, WARMUPS = 3e-4, 1


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        for i, (a, b, stride) in enumerate(LAYOUT):
            self.add_module(f"conv{i}", nn.Conv2d(a, b, 3, stride=stride, padding=1, bias=False))
            self.add_module(f"norm{i}", nn.BatchNorm2d(b))
        self.last = nn.Linear(LAYOUT[-1][1], CLASSES)

    def forward(self, x):
        for i in range(len(LAYOUT)):
            x = getattr(self, f"norm{i}")(getattr(self, f"conv{i}")(x)).relu_()
        return self.last(x.mean((2, 3)))


def make_net(kind):
    return Gpt(VOCABULARY, LENGTH, LAYERS, HEADS, WIDTH) if kind == "gpt" else ConvNet()


def loss_of(net, x, y):
    return F.cross_entropy(net(x).flatten(0, -2), y.flatten())


class Inputs:
    def __init__(self, folder, kind):
        data = load_file(Path(folder) / f"{kind}_data.safetensors")
        self.batch = BATCHES[kind]
        self.x, self.y = data["x"], data["y"]
        self.weights = load_file(Path(folder) / f"{kind}_weights.safetensors")
        if kind == "conv":
            self.x = self.x.to(memory_format=torch.channels_last)
        self.kind = kind

    def net(self):
        net = make_net(self.kind)
        net.load_state_dict(self.weights, strict=False)  # a tied weight stands once; of BatchNorm's statistics there is nothing
        return net.to(memory_format=torch.channels_last) if self.kind == "conv" else net


def arguments():
    parser = argparse.ArgumentParser()
    for name in ("inputs", "scratch", "report"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--steps", type=int, required=True)
    return parser.parse_args()


def report_of(train, args):
    """`train(inputs, precision, steps, laps, losses)` for each case; a step is from the end of the one before to its own."""
    from common import Laps

    report = {"cases": {}, "losses": {}}
    for kind, title in TITLES.items():
        inputs = Inputs(args.inputs, kind)
        for precision, name in PRECISIONS.items():
            laps, losses = Laps(), []
            train(inputs, precision, WARMUPS + args.steps, laps, losses)
            report["cases"][f"{title}, {name}"] = laps.samples()[WARMUPS - 1 :]
            report["losses"][f"{title}, {name}"] = losses
    return report
