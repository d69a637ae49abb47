#!/usr/bin/env python3
"""configs/fashion_mnist_vae.yaml in plain PyTorch: the same network, optimizer and data, no logs.

    benchmarks/recipes/vae_torch.py [SEED [FOLDER]]

FOLDER has the four files of Fashion-MNIST; by default it is that of Debian's package. The loss is the negative evidence lower
bound of an image in nats (Kingma and Welling 2014), of the epoch with the best validation.
"""

import copy
import sys
import time

import torch
from fashion_data import FOLDER, images_of
from torch import nn
from torch.nn import functional as F

BATCH, RATE, EPOCHS, CODE = 128, 1e-3, 20, 20


def stack(*widths):
    layers = [layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def loss_of(net, x):
    mean, log_variance = net[0](x).chunk(2, 1)
    code = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
    reconstruction = F.binary_cross_entropy_with_logits(net[1](code), x, reduction="sum")
    return (reconstruction - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()) / len(x)


def mean_loss(net, x):
    with torch.no_grad():
        return sum(loss_of(net, part).item() * len(part) for part in x.split(BATCH)) / len(x)


def main():
    torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else 42)
    folder = sys.argv[2] if len(sys.argv) > 2 else FOLDER
    begin = time.process_time()
    x, test_x = (images_of(folder, part)[0].flatten(1) for part in ("train", "t10k"))
    order = torch.randperm(len(x))
    held, chosen = order[:5000], order[5000:]
    net = nn.Sequential(stack(784, 512, 256, 2 * CODE), stack(CODE, 256, 512, 784))
    optimizer = torch.optim.Adam(net.parameters(), RATE, fused=True)
    best, state = float("inf"), None
    for _ in range(EPOCHS):
        for rows in chosen[torch.randperm(len(chosen))].split(BATCH):
            loss_of(net, x.index_select(0, rows)).backward()
            optimizer.step()
            optimizer.zero_grad()
        if (value := mean_loss(net, x[held])) < best:
            best, state = value, copy.deepcopy(net.state_dict())
    net.load_state_dict(state)
    print(f"test loss {mean_loss(net, test_x):.2f}, {time.process_time() - begin:.1f} s of CPU time")


main()
