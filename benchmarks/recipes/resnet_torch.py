#!/usr/bin/env python3
"""configs/recipes/fashion_94.yaml, configs/fashion_mnist_resnet.yaml and configs/recipes/cifar10_airbench.yaml in plain PyTorch:
the same network, schedule, transforms and averaged weights, no logs; needs torchvision for CutMix.

    benchmarks/recipes/resnet_torch.py {94,resnet,cifar} [SEED [FOLDER]] [--bf16]

FOLDER has the four files of Fashion-MNIST, by default those of Debian's package, or the binary files of CIFAR-10. It runs on a
GPU if there is one; --bf16 computes under autocast.
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch
from fashion_data import FOLDER, channels_last, images_of
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from torchvision.transforms.v2 import CutMix

sys.path.append(str(Path(__file__).resolve().parent.parent / "parity"))
from twins.images import CifarBlock  # noqa: E402

FASHION = {"batch": 128, "momentum": 0.9, "warm": 0.3, "shape": "cos", "cycle": True, "projection": False}
RECIPES = {
    "94": FASHION | {"width": 24, "rate": 0.2, "epochs": 12, "smoothing": 0.05, "cutmix": True, "validation": 1000, "averaged_from": 0.5},
    "resnet": FASHION | {"width": 16, "rate": 0.1, "epochs": 20, "smoothing": 0.0, "cutmix": False, "validation": 5000, "averaged_from": None},
    "cifar": {
        "batch": 512, "momentum": 0.85, "warm": 0.2, "shape": "linear", "cycle": False, "projection": True, "width": 64, "rate": 0.4,
        "epochs": 10, "smoothing": 0.2, "cutmix": False, "validation": 1000, "averaged_from": 0,
    },
}  # fmt: skip
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)


class Projecting(CifarBlock):
    """A block whose shortcut is a convolution with 1x1 and a norm if the shape changes (option B)."""

    def __init__(self, channels, width, stride):
        super().__init__(channels, width, stride)
        changes = stride > 1 or channels != width
        self.downsample = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width)) if changes else nn.Identity()

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(self.downsample(x) + y)


def network(width, channels=1, projection=False):
    """CIFAR's residual network of 20 layers (He et al. 2016, section 4.2)."""
    block = Projecting if projection else CifarBlock
    layers, before = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()], width
    for stage in range(3):
        for i in range(3):
            layers.append(block(before, width << stage, 2 if stage > 0 and i == 0 else 1))
            before = width << stage
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))
    for value in net.parameters():
        if value.dim() == 4:
            nn.init.kaiming_normal_(value, mode="fan_out", nonlinearity="relu")
    return net.to(DEVICE, memory_format=torch.channels_last)


def fashion(folder):
    (x, y), (test_x, test_y) = images_of(folder, "train"), images_of(folder, "t10k")
    mean, std = x.mean(), x.std()
    return (x - mean) / std, y, (test_x - mean) / std, test_y


def cifar(folder):
    def read(names):
        rows = torch.from_numpy(np.concatenate([np.fromfile(Path(folder) / name, np.uint8) for name in names]).reshape(-1, 3073))
        return rows[:, 1:].reshape(-1, 3, 32, 32).float() / 255, rows[:, 0].long()

    (x, y), (test_x, test_y) = read([f"data_batch_{i}.bin" for i in range(1, 6)]), read(["test_batch.bin"])
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    return (x - mean) / std, y, (test_x - mean) / std, test_y


def moved(x):
    """Shifted by up to two pixels with reflected borders, mirrored or not, and with a hidden square of 8 x 8; each image differently.

    Hidden pixels are black, so their values are those of 0 after normalising.
    """
    n, _, size, _ = x.shape
    padded = F.pad(x, (2, 2, 2, 2), mode="reflect")
    along = torch.arange(size, device=x.device)
    rows = along + torch.randint(5, (n, 1), device=x.device)
    columns = along + torch.randint(5, (n, 1), device=x.device)
    columns = torch.where(torch.rand(n, 1, device=x.device) < 0.5, columns.flip(1), columns)
    x = padded[torch.arange(n, device=x.device)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    centre = torch.randint(size, (n, 2, 1), device=x.device)
    hidden = (along >= centre - 4) & (along < centre + 4)
    black = -torch.tensor(MEAN, device=x.device) / torch.tensor(STD, device=x.device)
    return torch.where((hidden[:, 0, :, None] & hidden[:, 1, None, :])[:, None], black.view(3, 1, 1), x)


def main():
    arguments = [each for each in sys.argv[1:] if each != "--bf16"]
    name, half = arguments[0], "--bf16" in sys.argv
    recipe = RECIPES[name]
    torch.manual_seed(int(arguments[1]) if len(arguments) > 1 else 1)
    folder = arguments[2] if len(arguments) > 2 else FOLDER
    begin, begin_wall = time.process_time(), time.time()
    x, y, test_x, test_y = (each.to(DEVICE) for each in (cifar if name == "cifar" else fashion)(folder))
    chosen = torch.randperm(len(x))[recipe["validation"] :].to(DEVICE)  # as many as the config trains with
    x, y = x[chosen], y[chosen]
    net = network(recipe["width"], x.shape[1], recipe["projection"])
    optimizer = torch.optim.SGD(net.parameters(), recipe["rate"], momentum=recipe["momentum"], nesterov=True, weight_decay=5e-4)
    per_epoch = -(-len(x) // recipe["batch"])
    steps = recipe["epochs"] * per_epoch
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe["rate"], total_steps=steps, pct_start=recipe["warm"], anneal_strategy=recipe["shape"], cycle_momentum=recipe["cycle"]
    )
    decay = 0.5 ** (1 / (0.5 * per_epoch))  # half after half an epoch
    average = AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay), use_buffers=True)
    averaged_from = recipe["averaged_from"]
    mix = CutMix(alpha=0.5, num_classes=10)
    step = 0
    for _ in range(recipe["epochs"]):
        for rows in torch.randperm(len(x)).to(DEVICE).split(recipe["batch"]):
            images, labels = x.index_select(0, rows), y.index_select(0, rows)
            images = channels_last(moved(images) if name == "cifar" else images)
            if recipe["cutmix"]:
                images, labels = mix(images, labels)
            with torch.autocast(DEVICE, torch.bfloat16, enabled=half):
                loss = F.cross_entropy(net(images), labels, label_smoothing=recipe["smoothing"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            step += 1
            if averaged_from is not None and step > steps * averaged_from:
                average.update_parameters(net)
    result = (net if averaged_from is None else average).eval()
    with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, enabled=half):
        right = sum((result(channels_last(a)).argmax(1) == b).sum().item() for a, b in zip(test_x.split(1000), test_y.split(1000)))
    print(f"test accuracy {100 * right / len(test_y):.2f} %, {time.process_time() - begin:.1f} s of CPU time, {time.time() - begin_wall:.1f} s")


main()
