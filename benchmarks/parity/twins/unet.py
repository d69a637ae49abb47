"""The twin of UNet."""

import torch
from case import Case
from data import segmented_images
from torch import nn
from torch.nn import functional as F


class DoubleConvolution(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b)

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class UNet(nn.Module):
    def __init__(self, channels, classes, width, depth):
        super().__init__()
        widths = [width << i for i in range(depth + 1)]
        back = widths[::-1]
        self.down = nn.ModuleList(DoubleConvolution(a, b) for a, b in zip([channels, *widths], widths[:-1]))
        self.middle = DoubleConvolution(widths[-2], widths[-1])
        self.upsample = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in zip(back, back[1:]))
        self.up = nn.ModuleList(DoubleConvolution(a, b) for a, b in zip(back, back[1:]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        beside = []
        for block in self.down:
            beside.append(block(x))
            x = F.max_pool2d(beside[-1], 2)
        x = self.middle(x)
        for upsample, block in zip(self.upsample, self.up):
            x = block(torch.cat([beside.pop(), upsample(x)], 1))
        return self.head(x)


CASES = [
    Case(
        name="unet",
        title="`UNet`",
        twin_title="own module",
        model={"class_path": "UNet", "init_args": {"in_channels": 3, "num_classes": 3, "width": 4, "depth": 2}},
        twin=lambda: UNet(3, 3, 4, 2),
        loss_of=lambda model, batch: F.cross_entropy(model(batch["input"]), batch["target"]),
        arrays=lambda rows: segmented_images(rows, 3, 12),
    )
]
