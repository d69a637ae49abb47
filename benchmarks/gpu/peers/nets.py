"""The networks of the GPU benchmarks; cpp/nets.cpp and fulgur::Gpt have the same, parameter by parameter."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Mlp(nn.Module):
    def __init__(self, case):
        super().__init__()
        width = case["width"]
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(case["depth"]))
        self.last = nn.Linear(width, case["classes"])

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.last(x)


class AirbenchGroup(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.norm1.weight.requires_grad_(False)
        self.norm2.weight.requires_grad_(False)

    def forward(self, x):
        x = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.norm2(self.conv2(x)))


class Airbench(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2)
        self.whiten.weight.requires_grad_(False)
        self.groups = nn.ModuleList(AirbenchGroup(a, b) for a, b in ((24, 64), (64, 256), (256, 256)))
        self.head = nn.Linear(256, case["classes"], bias=False)

    def forward(self, x):
        x = F.gelu(self.whiten(x))
        for group in self.groups:
            x = group(x)
        return (self.head(F.max_pool2d(x, 3).flatten(1)) / 9).float()


class Bottleneck(nn.Module):
    def __init__(self, inputs, inner, stride, bias):
        super().__init__()
        outputs = 4 * inner
        self.conv1, self.norm1 = nn.Conv2d(inputs, inner, 1, bias=bias), nn.BatchNorm2d(inner)
        self.conv2, self.norm2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=bias), nn.BatchNorm2d(inner)
        self.conv3, self.norm3 = nn.Conv2d(inner, outputs, 1, bias=bias), nn.BatchNorm2d(outputs)
        self.skip = None
        if inputs != outputs or stride != 1:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=bias), nn.BatchNorm2d(outputs))

    def forward(self, x):
        inner = torch.relu(self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))
        return torch.relu(self.norm3(self.conv3(inner)) + (x if self.skip is None else self.skip(x)))


class ResNet(nn.Module):
    def __init__(self, case):
        super().__init__()
        bias, width = case.get("bias", False), case["width"]
        self.stem, self.stem_norm = nn.Conv2d(3, width, 7, 2, 3, bias=bias), nn.BatchNorm2d(width)
        blocks, inputs = [], width
        for stage, depth in enumerate(case["depths"]):
            inner = width * 2**stage
            for i in range(depth):
                blocks.append(Bottleneck(inputs, inner, 2 if i == 0 and stage > 0 else 1, bias))
                inputs = 4 * inner
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(inputs, case["classes"])

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.stem_norm(self.stem(x))), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Cnn(nn.Module):
    """fulgur::CnnClassifier."""

    def __init__(self, case):
        super().__init__()
        self.dropout = case["dropout"]
        self.conv0, self.norm0 = nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.conv1, self.norm1 = nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)
        self.layer0, self.layer1 = nn.Linear(64 * 7 * 7, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(self.norm0(self.conv0(x)), 2).relu_()
        x = F.max_pool2d(self.norm1(self.conv1(x)), 2).relu_().flatten(1)
        return self.layer1(F.dropout(self.layer0(x).relu_(), self.dropout, self.training))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, x):
        n, t, c = x.shape
        q, k, v = (p.view(n, t, self.heads, c // self.heads).transpose(1, 2) for p in self.c_attn(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attn_proj(y.transpose(1, 2).reshape(n, t, c))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x))))


class Gpt(nn.Module):
    def __init__(self, case):
        super().__init__()
        width = case["width"]
        self.every = {"none": 0, "all": 1, "every_2": 2}[case.get("checkpointing", "none")]
        self.wte, self.wpe = nn.Embedding(case["vocab"], width), nn.Embedding(case["length"], width)
        self.blocks = nn.ModuleList(GptBlock(width, case["heads"]) for _ in range(case["layers"]))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for i, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if self.every and i % self.every == 0 else block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def make_net(case, device):
    kind = {"mlp": Mlp, "airbench": Airbench, "resnet": ResNet, "gpt": Gpt, "cnn": Cnn}[case["model"]]
    with torch.device(device):
        return kind(case)


def loss_of(net, x, y):
    logits = net(x)
    return F.cross_entropy(logits.flatten(0, 1), y.reshape(-1)) if logits.dim() == 3 else F.cross_entropy(logits, y)
