#!/usr/bin/env python3
"""configs/recipes/fashion_90.yaml and fashion_92.yaml in plain PyTorch: the same network, schedule and data, no logs.

    benchmarks/recipes/fashion_torch.py {90,92} [SEED [FOLDER]]

FOLDER has the four files of Fashion-MNIST; by default it is that of Debian's package.
"""

import sys
import time

import torch
from fashion_data import FOLDER, channels_last, images_of
from torch import nn
from torch.nn import functional as F

RECIPES = {
    "90": {"channels": (16, 32), "hidden": 64, "dropout": 0.0, "epochs": 2},
    "92": {"channels": (24, 48), "hidden": 128, "dropout": 0.2, "epochs": 5},
}
BATCH, RATE = 64, 0.01


class Net(nn.Module):
    def __init__(self, channels, hidden, dropout, **_):
        super().__init__()
        a, b = channels
        self.conv0, self.norm0 = nn.Conv2d(1, a, 3, padding=1, bias=False), nn.BatchNorm2d(a)
        self.conv1, self.norm1 = nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b)
        size = b * 7 * 7
        self.head = nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 10))

    def forward(self, x):
        x = F.max_pool2d(self.norm0(self.conv0(x)), 2).relu_()
        return self.head(F.max_pool2d(self.norm1(self.conv1(x)), 2).relu_().flatten(1))


def main():
    recipe = RECIPES[sys.argv[1]]
    torch.manual_seed(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    folder = sys.argv[3] if len(sys.argv) > 3 else FOLDER
    begin = time.process_time()
    (x, y), (test_x, test_y) = images_of(folder, "train"), images_of(folder, "t10k")
    mean, std = x.mean(), x.std()
    x, test_x = (x - mean) / std, (test_x - mean) / std
    chosen = torch.randperm(len(x))[5000:]  # as many as the config trains with
    x, y = x[chosen], y[chosen]
    net = Net(**recipe).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), RATE, weight_decay=0.01, fused=True)
    steps = recipe["epochs"] * -(-len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for _ in range(recipe["epochs"]):
        for rows in torch.randperm(len(x)).split(BATCH):
            loss = F.cross_entropy(net(channels_last(x.index_select(0, rows))), y.index_select(0, rows))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    net.eval()
    with torch.no_grad():
        right = sum((net(channels_last(a)).argmax(1) == b).sum().item() for a, b in zip(test_x.split(1000), test_y.split(1000)))
    print(f"test accuracy {100 * right / len(test_y):.2f} %, {time.process_time() - begin:.1f} s of CPU time")


main()
