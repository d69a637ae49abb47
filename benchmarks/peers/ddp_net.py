"""C10 and C16: the network and the data that every peer trains with; cpp/ddp_net.h is the same in C++."""

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

WIDTH, LAYERS, BATCH, BATCHES, RATE = 1024, 8, 128, 4, 0.05
COMPARED_LOSSES = 12
ACCUMULATED = 4


class Net(nn.Module):
    """Linear layers with ReLU between them; with `norm`, BatchNorm in front of each ReLU."""

    def __init__(self, norm=False):
        super().__init__()
        self.linear = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.norm = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(LAYERS - 1)) if norm else None

    def forward(self, x):
        for i, linear in enumerate(self.linear):
            x = linear(x)
            if i + 1 < LAYERS:
                x = F.relu(self.norm[i](x) if self.norm else x)
        return x


class Inputs:
    """Batches by number and rank, and the weights to start with."""

    def __init__(self, folder):
        data = load_file(Path(folder) / "data.safetensors")
        self.x, self.y = data["x"], data["y"]
        self.weights = load_file(Path(folder) / "weights.safetensors")

    def batch(self, number, rank):
        return self.x[number % BATCHES, rank], self.y[number % BATCHES, rank]

    def load(self, net):
        with torch.no_grad():
            for i, linear in enumerate(net.linear):
                linear.weight.copy_(self.weights[f"linear.{i}.weight"])
                linear.bias.copy_(self.weights[f"linear.{i}.bias"])
            for norm in net.norm or []:
                norm.reset_parameters()
        for parameter in net.parameters():
            parameter.grad = None


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=["plain", "view", "bn", "parameters", "gradients"])
    parser.add_argument("--blocks", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--inputs", type=Path)
    parser.add_argument("--report")
    return parser.parse_args()
