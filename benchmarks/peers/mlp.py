"""C2: the network and the data that every peer trains with; cpp/mlp.h is the same in C++."""

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Sampler, TensorDataset

BATCH = 64
RATE = 1e-3
COMPARED_LOSSES = 100


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(784, 128)
        self.second = nn.Linear(128, 10)

    def forward(self, x):
        return self.second(F.relu(self.first(x)))

    def loss(self, x, y):
        return F.cross_entropy(self(x), y)


class Inputs:
    """Samples, and the order of them in each epoch."""

    def __init__(self, folder):
        data = load_file(Path(folder) / "data.safetensors")
        self.x, self.y, self.order = data["x"], data["y"], data["order"]
        self.weights = load_file(Path(folder) / "weights.safetensors")

    def model(self):
        net = Mlp()
        net.load_state_dict(self.weights)
        return net

    def loader(self):
        return DataLoader(TensorDataset(self.x, self.y), batch_size=BATCH, sampler=GivenOrder(self.order))


class GivenOrder(Sampler):
    """The order that all peers have; as RandomSampler but for where it comes from."""

    def __init__(self, order):
        self.order = order
        self.epoch = -1

    def __len__(self):
        return self.order.shape[1]

    def __iter__(self):
        self.epoch += 1
        return iter(self.order[self.epoch].tolist())


class IndexedBatches:
    """Batches by one index_select each, the fastest way that eager PyTorch has for data in memory, or by `x[rows]`."""

    def __init__(self, inputs, selects=True):
        self.inputs = inputs
        self.selects = selects
        self.epoch = -1

    def __len__(self):
        return -(-len(self.inputs.x) // BATCH)

    def __iter__(self):
        self.epoch += 1
        x, y = self.inputs.x, self.inputs.y
        for rows in self.inputs.order[self.epoch].split(BATCH):
            if self.selects:
                yield x.index_select(0, rows), y.index_select(0, rows)
            else:
                yield x[rows], y[rows]


class Losses:
    """The first losses one by one, and the mean over 10,000 samples at the end."""

    def __init__(self):
        self.first = []

    def add(self, loss):
        if len(self.first) < COMPARED_LOSSES:
            self.first.append(loss.item())

    @torch.no_grad()
    def report(self, net, inputs):
        return {"first": self.first, "final": net.loss(inputs.x[:10000], inputs.y[:10000]).item()}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", required=True)
    for name in ("inputs", "scratch", "report"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--epochs", type=int, required=True)
    return parser.parse_args()
