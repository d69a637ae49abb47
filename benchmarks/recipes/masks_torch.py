#!/usr/bin/env python3
"""configs/recipes/segmentation.yaml in plain PyTorch: the same network, schedule and data, no logs.

    benchmarks/recipes/masks_torch.py FOLDER [SEED]

FOLDER is one of benchmarks/recipes/make_masks.py. The result is of the epoch with the best validation.
"""

import copy
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

sys.path.append(str(Path(__file__).resolve().parent.parent / "parity"))
from twins.unet import UNet  # noqa: E402

BATCH, RATE, EPOCHS, CLASSES = 16, 3e-3, 16, 3


def network():
    """That of benchmarks/parity, with the first weights of the config's model."""
    net = UNet(channels=1, classes=CLASSES, width=8, depth=3)
    for module in net.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net.to(memory_format=torch.channels_last)


def iou_of(net, x, y):
    """The mean over the classes of TP / (TP + FP + FN), counted over all pixels."""
    net.eval()
    counts = torch.zeros(CLASSES, CLASSES, dtype=torch.long)
    with torch.no_grad():
        for a, b in zip(x.split(100), y.split(100)):
            counts += torch.bincount((b * CLASSES + net(a).argmax(1)).flatten(), minlength=CLASSES**2).view(CLASSES, CLASSES)
    net.train()
    hits = counts.diagonal()
    return (hits / (counts.sum(0) + counts.sum(1) - hits)).mean().item()


def main():
    folder = Path(sys.argv[1])
    torch.manual_seed(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    begin = time.process_time()
    x, y, test_x, test_y = (
        torch.from_numpy(np.load(folder / f"{part}_{kind}.npy")) for part in ("train", "test") for kind in ("images", "masks")
    )
    x, test_x = (pixels.float().div(255).contiguous(memory_format=torch.channels_last) for pixels in (x, test_x))
    order = torch.randperm(len(x))
    held, chosen = order[: len(x) // 10], order[len(x) // 10 :]
    net = network()
    optimizer = torch.optim.AdamW(net.parameters(), RATE, weight_decay=0.01, fused=True)
    steps = EPOCHS * -(-len(chosen) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    best, state = -1.0, None
    for _ in range(EPOCHS):
        for rows in chosen[torch.randperm(len(chosen))].split(BATCH):
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        if (value := iou_of(net, x[held], y[held])) > best:
            best, state = value, copy.deepcopy(net.state_dict())
    net.load_state_dict(state)
    print(f"test IoU {iou_of(net, test_x, test_y):.3f}, {time.process_time() - begin:.1f} s of CPU time")


main()
