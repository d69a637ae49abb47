"""C12: the network and the data that the Python peers train with; cpp/c12_fulgur.cpp is the same in C++."""

import argparse
import os
import time
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

BATCH, EVAL_BATCH, RATE, COMPARED_LOSSES = 128, 1000, 1e-3, 20


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv0 = nn.Conv2d(1, 32, 3, padding=1, bias=False)
        self.norm0 = nn.BatchNorm2d(32)
        self.conv1 = nn.Conv2d(32, 64, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(64)
        self.hidden = nn.Linear(64 * 7 * 7, 128)
        self.last = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(self.norm0(self.conv0(x)), 2).relu_()
        x = F.max_pool2d(self.norm1(self.conv1(x)), 2).relu_()
        return self.last(self.hidden(x.flatten(1)).relu_())


def channels_last(x):
    """With one channel both orders look alike to to(), which then keeps the strides."""
    return x.as_strided(x.shape, (x.shape[2] * x.shape[3], 1, x.shape[3], 1))


class Inputs:
    def __init__(self, args):
        data = load_file(Path(args.inputs) / "data.safetensors")
        start = load_file(Path(args.inputs) / f"start{args.seed}.safetensors")
        pixels = data["train_x"].float().div_(255)
        self.mean, self.std = pixels.mean(), pixels.std()
        self.x, self.y = pixels.sub_(self.mean).div_(self.std), data["train_y"]
        self.test_x, self.test_y = data["test_x"].float().div_(255).sub_(self.mean).div_(self.std), data["test_y"]
        self.order = start.pop("order")
        self.start = start

    def model(self):
        net = Net()
        net.load_state_dict(self.start, strict=False)  # of BatchNorm there is nothing to load
        return net.to(memory_format=torch.channels_last)


def arguments():
    parser = argparse.ArgumentParser()
    for name in ("inputs", "scratch", "report"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--goal", type=float, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--precision", choices=("32-true", "bf16-mixed"), required=True)
    return parser.parse_args()


def since_start():
    """Seconds since the start of the process."""
    return 1e-9 * (time.monotonic_ns() - int(os.environ["BENCH_START_NS"]))


def report_of(ends, accuracy, goal, first_losses):
    """`ends`: since_start() at the end of each epoch."""
    sample = {"wall_s": since_start(), "cpu_s": time.process_time(), "epochs": len(ends)}
    # The same work for all: how many epochs a seed needs depends on the last bits.
    later = [after - before for before, after in zip(ends, ends[1:])]
    sample["three_epochs_s"] = ends[0] + 2 * median(later or ends)
    return {"samples": [sample], "reached": accuracy >= goal, "accuracy": accuracy, "first_losses": first_losses}
