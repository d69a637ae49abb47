"""Twins of the models of images: torchvision's, and CIFAR's residual network (He et al. 2016, section 4.2)."""

import torchvision
from case import Case, slow_and_fast
from data import labelled_images
from torch import nn
from torch.nn import functional as F
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.resnet import BasicBlock
from torchvision.models.vision_transformer import VisionTransformer
from twins.dense import classified


class CifarBlock(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.stride, self.more = stride, width - channels

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        x = x[:, :, :: self.stride, :: self.stride]
        return F.relu(F.pad(x, (0, 0, 0, 0, self.more // 2, self.more - self.more // 2)) + y)


class CifarResNet(nn.Module):
    def __init__(self, depth, width, classes):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        channels = width
        for stage in range(3):
            blocks = []
            for i in range((depth - 2) // 6):
                blocks.append(CifarBlock(channels, width << stage, 2 if stage > 0 and i == 0 else 1))
                channels = width << stage
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


class NarrowResNet18(torchvision.models.ResNet):
    """torchvision's network with 8 channels in its first stage instead of 64."""

    def __init__(self, width, classes):
        super().__init__(BasicBlock, [2, 2, 2, 2], num_classes=classes)
        self.inplanes = width
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        for stage in range(4):
            layer = self._make_layer(BasicBlock, width << stage, 2, stride=2 if stage else 1)
            setattr(self, f"layer{stage + 1}", layer)
        self.fc = nn.Linear(width << 3, classes)


VIT = {"image_size": 12, "patch_size": 4, "num_layers": 2, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 64}
DEPTHS, WIDTHS = [1, 1, 2, 1], [8, 12, 16, 20]


def convnext():
    blocks = [CNBlockConfig(w, n, d) for w, n, d in zip(WIDTHS, [*WIDTHS[1:], None], DEPTHS)]
    return ConvNeXt(blocks, num_classes=5)


def resnets(name, title, twin_title, options, twin, size):
    return slow_and_fast(
        name,
        title=title,
        twin_title=twin_title,
        model={"class_path": "ResNet", "init_args": {**options, "num_classes": 5}},
        twin=twin,
        loss_of=classified,
        arrays=lambda rows: labelled_images(rows, 3, size),
    )


CASES = [
    *resnets("resnet20", "`ResNet`, CIFAR's 20 layers", "own module", {"depth": 20, "width": 6}, lambda: CifarResNet(20, 6, 5), 12),
    *resnets("resnet18", "`ResNet`, ImageNet's 18 layers", "torchvision", {"depth": 18, "width": 8}, lambda: NarrowResNet18(8, 5), 32),
    Case(
        name="vit",
        title="`VisionTransformer`",
        twin_title="torchvision",
        model={"class_path": "VisionTransformer", "init_args": {**VIT, "num_classes": 5}},
        twin=lambda: VisionTransformer(**VIT, num_classes=5),
        loss_of=classified,
        arrays=lambda rows: labelled_images(rows, 3, 12),
        key_map="torchvision_resnet",
    ),
    Case(
        name="convnext",
        title="`ConvNeXt`",
        twin_title="torchvision",
        model={
            "class_path": "ConvNeXt",
            "init_args": {"depths": DEPTHS, "widths": WIDTHS, "num_classes": 5, "stochastic_depth": 0},
        },
        twin=convnext,
        loss_of=classified,
        arrays=lambda rows: labelled_images(rows, 3, 32),
        key_map="torchvision_resnet",
    ),
]
