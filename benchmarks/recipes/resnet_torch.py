#!/usr/bin/env python3
"""configs/recipes/fashion_94.yaml and configs/fashion_mnist_resnet.yaml in plain PyTorch: the same network, schedule, mixing of
images and averaged weights, no logs; needs torchvision for CutMix.

    benchmarks/recipes/resnet_torch.py {94,resnet} [SEED [FOLDER]]

FOLDER has the four files of Fashion-MNIST; by default it is that of Debian's package.
"""

import sys
import time
from pathlib import Path

import torch
from fashion_data import FOLDER, channels_last, images_of
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from torchvision.transforms.v2 import CutMix

sys.path.append(str(Path(__file__).resolve().parent.parent / "parity"))
from twins.images import CifarBlock  # noqa: E402

RECIPES = {
    "94": {"width": 24, "rate": 0.2, "epochs": 12, "smoothing": 0.05, "cutmix": True, "validation": 1000, "average": True},
    "resnet": {"width": 16, "rate": 0.1, "epochs": 20, "smoothing": 0.0, "cutmix": False, "validation": 5000, "average": False},
}
BATCH = 128


def network(width):
    """CIFAR's residual network of 20 layers (He et al. 2016, section 4.2) for one channel."""
    layers, channels = [nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()], width
    for stage in range(3):
        for i in range(3):
            layers.append(CifarBlock(channels, width << stage, 2 if stage > 0 and i == 0 else 1))
            channels = width << stage
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    for value in net.parameters():
        if value.dim() == 4:
            nn.init.kaiming_normal_(value, mode="fan_out", nonlinearity="relu")
    return net.to(memory_format=torch.channels_last)


def main():
    recipe = RECIPES[sys.argv[1]]
    torch.manual_seed(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    folder = sys.argv[3] if len(sys.argv) > 3 else FOLDER
    begin = time.process_time()
    (x, y), (test_x, test_y) = images_of(folder, "train"), images_of(folder, "t10k")
    mean, std = x.mean(), x.std()
    x, test_x = (x - mean) / std, (test_x - mean) / std
    chosen = torch.randperm(len(x))[recipe["validation"] :]  # as many as the config trains with
    x, y = x[chosen], y[chosen]
    net = network(recipe["width"])
    optimizer = torch.optim.SGD(net.parameters(), recipe["rate"], momentum=0.9, nesterov=True, weight_decay=5e-4)
    per_epoch = -(-len(x) // BATCH)
    steps = recipe["epochs"] * per_epoch
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe["rate"], total_steps=steps)
    decay = 0.5 ** (1 / (0.5 * per_epoch))  # half after half an epoch
    average = AveragedModel(net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay), use_buffers=True)
    mix = CutMix(alpha=0.5, num_classes=10)
    step = 0
    for _ in range(recipe["epochs"]):
        for rows in torch.randperm(len(x)).split(BATCH):
            images, labels = channels_last(x.index_select(0, rows)), y.index_select(0, rows)
            if recipe["cutmix"]:
                images, labels = mix(images, labels)
            loss = F.cross_entropy(net(images), labels, label_smoothing=recipe["smoothing"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            step += 1
            if recipe["average"] and step > steps // 2:
                average.update_parameters(net)
    result = (average if recipe["average"] else net).eval()
    with torch.no_grad():
        right = sum((result(channels_last(a)).argmax(1) == b).sum().item() for a, b in zip(test_x.split(1000), test_y.split(1000)))
    print(f"test accuracy {100 * right / len(test_y):.2f} %, {time.process_time() - begin:.1f} s of CPU time")


main()
