#!/usr/bin/env python3
"""Writes baselines/vision.json with torch 2.11.0, torchvision 0.26.0 and transformers 5.24.0; run by hand:

    <a Python with them> tests/models/make_vision_baseline.py

torchvision's models, and twins of the others written with torch's modules, in double. Weights and inputs come from a
formula that tests/models/formula.h has too, so that no weights are stored: parameter k in the order of names has
s · (2 u / 10007 - 1) at place i with u = (31 i² + 7919 i + 104729 k) mod 10007. The factor s is 1 / √(values per row) for
parameters with several dimensions; vectors have 0.1, and those named weight one more.
"""

import json
import math
from pathlib import Path

import torch
import torchvision
from torch import nn
from torch.nn import functional as F
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.vision_transformer import VisionTransformer

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)


def formula(shape, k):
    i = torch.arange(math.prod(shape))
    return (2 * ((31 * i * i + 7919 * i + 104729 * k) % 10007) / 10007 - 1).view(shape)


def fill(model):
    with torch.no_grad():
        for k, (name, p) in enumerate(sorted(model.named_parameters())):
            if p.dim() > 1:
                p.copy_(formula(p.shape, k) / math.sqrt(p.numel() / p.shape[0]))
            else:
                p.copy_(0.1 * formula(p.shape, k) + (1 if name.endswith("weight") else 0))


class CifarBlock(nn.Module):
    def __init__(self, channels, width, stride, shortcut):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.stride, self.more = stride, width - channels
        self.downsample = None
        if shortcut == "B" and (stride != 1 or self.more):
            self.downsample = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.downsample:
            x = self.downsample(x)
        else:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more // 2, self.more - self.more // 2))
        return F.relu(x + y)


class CifarResNet(nn.Module):
    """He et al. 2016, section 4.2."""

    def __init__(self, depth, width, classes, shortcut):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        channels = width
        for stage in range(3):
            blocks = []
            for i in range((depth - 2) // 6):
                blocks.append(CifarBlock(channels, width, 2 if stage > 0 and i == 0 else 1, shortcut))
                channels = width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
            width *= 2
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


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
        widths = [width * 2**i for i in range(depth + 1)]
        self.down = nn.ModuleList(DoubleConvolution(a, b) for a, b in zip([channels] + widths, widths[:-1]))
        self.middle = DoubleConvolution(widths[-2], widths[-1])
        back = widths[::-1]
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
            x, skipped = upsample(x), beside.pop()
            x = F.pad(x, (0, skipped.shape[3] - x.shape[3], 0, skipped.shape[2] - x.shape[2]))
            x = block(torch.cat([skipped, x], 1))
        return self.head(x)


def case(model, class_path, options, image, labels, lr=0.01):
    """Logits in eval mode, the loss and gradients of a batch in train mode, the losses of three steps, and logits again."""
    fill(model)
    images = formula(image, 997)
    model.eval()
    out = {
        "model": {"class_path": class_path, "init_args": options},
        "image": list(image),
        "labels": labels.flatten().tolist(),
        "label_shape": list(labels.shape),
        "names": [name for name, _ in sorted(model.named_parameters())],
        "lr": lr,
    }
    with torch.no_grad():
        out["logits"] = model(images).flatten()[:200].tolist()
    model.train()
    out["losses"] = []
    for step in range(3):
        model.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        out["losses"].append(loss.item())
        if step == 0:
            out["gradient_norms"] = [p.grad.norm().item() for _, p in sorted(model.named_parameters())]
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(lr * p.grad)
    model.eval()
    with torch.no_grad():
        out["logits_after"] = model(images).flatten()[:200].tolist()
    return out


def numbers(count, classes):
    return torch.arange(count) % classes


def vision_cases():
    yield case(torchvision.models.resnet18(num_classes=5), "ResNet", {"depth": 18, "num_classes": 5}, (4, 3, 33, 40), numbers(4, 5), 1e-3)
    yield case(torchvision.models.resnet50(num_classes=5), "ResNet", {"depth": 50, "num_classes": 5}, (4, 3, 40, 33), numbers(4, 5), 1e-5)
    for shortcut in "AB":
        options = {"depth": 20, "width": 6, "num_classes": 4, "shortcut": shortcut}
        yield case(CifarResNet(20, 6, 4, shortcut), "ResNet", options, (3, 3, 9, 12), numbers(3, 4))
    vit = {"image_size": 12, "patch_size": 4, "num_layers": 3, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 48}
    yield case(VisionTransformer(**vit, num_classes=5), "VisionTransformer", {**vit, "num_classes": 5}, (3, 3, 12, 12), numbers(3, 5))
    depths, widths = [1, 2, 2, 1], [8, 12, 16, 20]
    blocks = [CNBlockConfig(w, n, d) for w, n, d in zip(widths, widths[1:] + [None], depths)]
    options = {"depths": depths, "widths": widths, "num_classes": 5, "stochastic_depth": 0}
    yield case(ConvNeXt(blocks, num_classes=5), "ConvNeXt", options, (3, 3, 35, 64), numbers(3, 5))
    labels = numbers(2 * 13 * 18, 3).view(2, 13, 18)
    labels[0, :3] = -100
    yield case(UNet(3, 3, 4, 2), "UNet", {"num_classes": 3, "width": 4, "depth": 2}, (2, 3, 13, 18), labels)


class Dense(nn.Module):
    def __init__(self, widths):
        super().__init__()
        for i, (a, b) in enumerate(zip(widths, widths[1:])):
            self.add_module(f"layer{i}", nn.Linear(a, b))

    def forward(self, x):
        layers = list(self.children())
        for layer in layers[:-1]:
            x = F.relu(layer(x))
        return layers[-1](x)


def autoencoder_case(likelihood):
    """The log-variances are so small that the drawn codes are the means."""
    model = nn.ModuleDict({"encoder": Dense([12, 10, 6]), "decoder": Dense([3, 10, 12])})
    fill(model)
    with torch.no_grad():
        model["encoder"].layer1.weight[3:] = 0
        model["encoder"].layer1.bias[3:] = -80
    x = (formula((4, 12), 997) + 1) / 2
    mean, log_variance = model["encoder"](x).chunk(2, 1)
    output = model["decoder"](mean)
    if likelihood == "bernoulli":
        reconstruction = -torch.distributions.Bernoulli(logits=output, validate_args=False).log_prob(x)
    else:
        reconstruction = -torch.distributions.Normal(output, 1).log_prob(x) - math.log(2 * math.pi) / 2
    reconstruction = reconstruction.sum(1).mean()
    codes = torch.distributions.Normal(mean, (log_variance / 2).exp())
    kl = torch.distributions.kl_divergence(codes, torch.distributions.Normal(0.0, 1.0)).sum(1).mean()
    loss = reconstruction + 0.5 * kl
    loss.backward()
    return {
        "likelihood": likelihood,
        "names": [name for name, _ in sorted(model.named_parameters())],
        "reconstruction": reconstruction.item(),
        "kl": kl.item(),
        "loss": loss.item(),
        "gradient_norms": [p.grad.norm().item() for _, p in sorted(model.named_parameters())],
    }


def gan_case():
    """The networks of PyTorch's DCGAN example, for 12 x 8 pixels."""
    up = lambda a, b: nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False)
    generator = nn.Sequential(
        nn.ConvTranspose2d(5, 8, (3, 2), 1, 0, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        up(8, 4), nn.BatchNorm2d(4), nn.ReLU(), up(4, 2), nn.Tanh(),
    )
    down = lambda a, b: nn.Conv2d(a, b, 4, 2, 1, bias=False)
    discriminator = nn.Sequential(
        down(2, 4), nn.LeakyReLU(0.2), down(4, 8), nn.BatchNorm2d(8), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, (3, 2), 1, 0, bias=False)
    )
    model = nn.ModuleDict({"generator": nn.ModuleDict({"main": generator}), "discriminator": nn.ModuleDict({"main": discriminator})})
    fill(model)
    images = generator(formula((3, 5), 997)[:, :, None, None])
    logits = discriminator(images).flatten()
    loss = F.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))
    loss.backward()
    return {
        "names": [name for name, _ in sorted(model.named_parameters())],
        "images": images.flatten().tolist(),
        "logits": logits.tolist(),
        "gradient_norms": [p.grad.norm().item() for _, p in sorted(model.named_parameters())],
    }


def hugging_face():
    """Names and shapes as transformers writes them, and what the models compute."""
    import tempfile

    from safetensors import safe_open
    from transformers import GPT2Config, GPT2LMHeadModel, ViTConfig, ViTForImageClassification

    def saved(model):
        """{name: shape} of save_pretrained, filled by the formula in the order of these names."""
        model = model.double().eval()
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            with safe_open(Path(folder) / "model.safetensors", "pt") as file:
                shapes = {name: list(file.get_slice(name).get_shape()) for name in sorted(file.keys())}
            from safetensors.torch import save_file

            tensors = {}
            for k, (name, shape) in enumerate(shapes.items()):
                values = formula(shape, k)
                tensors[name] = values / math.sqrt(math.prod(shape) / shape[0]) if len(shape) > 1 else 0.1 * values + (
                    1 if name.endswith("weight") else 0
                )
            save_file(tensors, Path(folder) / "model.safetensors", {"format": "pt"})
            return type(model).from_pretrained(folder, dtype=torch.float64).eval(), shapes

    gpt, gpt_shapes = saved(GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=7, n_embd=12, n_layer=2, n_head=3)))
    tokens = (torch.arange(21) ** 2 % 11).view(3, 7)
    vit_options = ViTConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, image_size=8, patch_size=4, num_labels=5
    )
    vit, vit_shapes = saved(ViTForImageClassification(vit_options))
    with torch.no_grad():
        return {
            "gpt2": {"shapes": gpt_shapes, "logits": gpt(tokens).logits.flatten().tolist()},
            "vit": {"shapes": vit_shapes, "logits": vit(formula((2, 3, 8, 8), 997)).logits.flatten().tolist()},
        }


out = {
    "torch": torch.__version__.split("+")[0],
    "cases": list(vision_cases()),
    "autoencoders": [autoencoder_case("gaussian"), autoencoder_case("bernoulli")],
    "gan": gan_case(),
    "hugging_face": hugging_face(),
}
path = Path(__file__).parent / "baselines" / "vision.json"
path.write_text(json.dumps(out) + "\n")
