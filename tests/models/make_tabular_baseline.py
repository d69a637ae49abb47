#!/usr/bin/env python3
"""Writes baselines/tabular.json with torch 2.11.0; run by hand:

    <a Python with torch 2.11.0> tests/models/make_tabular_baseline.py

The models for tables and series, written with torch's modules in double, with the names of the parameters of Fulgur's.
Weights and batches are values of sines, which the test computes too: parameter k in the order of names has
0.3 sin(k + 0.7 i) at place i, norms' weights one more. The FT-Transformer follows the formulas of Gorishniy et al. 2021
(tokens, prenorm without the first norm of the attention, ReGLU, head of ReLU of the norm) without dropout, and computes
all tokens in each block.
"""

import json
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
ROWS, NUMBERS, CARDINALITIES = 5, 3, [4, 2]
WINDOW, HORIZON, INPUTS, OUTPUTS = 6, 3, 2, 2


class Mlp(nn.Module):
    def __init__(self, outputs, batch_norm):
        super().__init__()
        self.embedding0 = nn.Parameter(torch.zeros(CARDINALITIES[0], 3))
        self.embedding1 = nn.Parameter(torch.zeros(CARDINALITIES[1], 3))
        self.layer0, self.layer1, self.layer2 = nn.Linear(NUMBERS + 6, 7), nn.Linear(7, 4), nn.Linear(4, outputs)
        self.norm0, self.norm1 = (nn.BatchNorm1d(7), nn.BatchNorm1d(4)) if batch_norm else (nn.Identity(), nn.Identity())

    def forward(self, batch):
        numbers, categories = batch
        x = torch.cat([numbers, self.embedding0[categories[:, 0]], self.embedding1[categories[:, 1]]], 1)
        x = F.relu(self.norm0(self.layer0(x)))
        return self.layer2(F.relu(self.norm1(self.layer1(x))))


class FtBlock(nn.Module):
    def __init__(self, width, heads, ffn_width, with_norm):
        super().__init__()
        self.heads = heads
        if with_norm:
            self.attention_norm = nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.ffn_norm = nn.LayerNorm(width)
        self.linear1, self.linear2 = nn.Linear(width, 2 * ffn_width), nn.Linear(ffn_width, width)

    def forward(self, x):
        n, t, d = x.shape
        normed = self.attention_norm(x) if hasattr(self, "attention_norm") else x
        q, k, v = (layer(normed).view(n, t, self.heads, d // self.heads).transpose(1, 2) for layer in (self.query, self.key, self.value))
        attention = (q @ k.transpose(2, 3) / math.sqrt(d // self.heads)).softmax(3)
        x = x + self.out((attention @ v).transpose(1, 2).reshape(n, t, d))
        a, b = self.linear1(self.ffn_norm(x)).chunk(2, dim=2)
        return x + self.linear2(a * F.relu(b))


class FtTransformer(nn.Module):
    def __init__(self, outputs, width=8, heads=2, blocks=2):
        super().__init__()
        self.first_token = nn.Parameter(torch.zeros(width))
        self.number_weight = nn.Parameter(torch.zeros(NUMBERS, width))
        self.number_bias = nn.Parameter(torch.zeros(NUMBERS, width))
        self.embedding0 = nn.Parameter(torch.zeros(CARDINALITIES[0], width))
        self.embedding1 = nn.Parameter(torch.zeros(CARDINALITIES[1], width))
        self.category_bias = nn.Parameter(torch.zeros(2, width))
        for i in range(blocks):
            setattr(self, f"block{i}", FtBlock(width, heads, width * 4 // 3, i > 0))
        self.blocks = blocks
        self.head_norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, batch):
        numbers, categories = batch
        n = numbers.shape[0]
        tokens = [self.first_token.expand(n, 1, -1), numbers[:, :, None] * self.number_weight + self.number_bias]
        embedded = torch.stack([self.embedding0[categories[:, 0]], self.embedding1[categories[:, 1]]], 1)
        x = torch.cat(tokens + [embedded + self.category_bias], 1)
        for i in range(self.blocks):
            x = getattr(self, f"block{i}")(x)
        return self.head(F.relu(self.head_norm(x[:, 0])))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(INPUTS, 5, num_layers=2, batch_first=True)
        self.head = nn.Linear(5, HORIZON * OUTPUTS)

    def forward(self, batch):
        outputs, _ = self.lstm(batch)
        return self.head(outputs[:, -1]).view(-1, HORIZON, OUTPUTS)


def sines(count, start):
    return torch.sin(start + 0.7 * torch.arange(count))


def set_weights(model):
    names = sorted(name for name, _ in model.named_parameters())
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for k, name in enumerate(names):
            value = parameters[name]
            value.copy_(0.3 * sines(value.numel(), k).view_as(value) + (1 if "norm" in name and name.endswith("weight") else 0))
    return names


def case(kind, options, model, batch, target, task, mean, std):
    """Outputs in eval mode, then the losses of plain gradient steps in training mode."""
    names = set_weights(model)
    model.eval()
    with torch.no_grad():
        outputs = model(batch)
    model.train()
    mean, std = torch.tensor(mean or [0.0]), torch.tensor(std or [1.0])
    losses, norms = [], []
    for step in range(5):
        model.zero_grad()
        raw = model(batch)
        if task == "classification":
            loss = F.cross_entropy(raw, target)
        else:
            loss = F.mse_loss(raw, (target.view_as(raw) - mean) / std)
        loss.backward()
        losses.append(loss.item())
        parameters = dict(model.named_parameters())
        if step == 0:
            norms = [parameters[name].grad.norm().item() for name in names]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.05 * parameter.grad
    return {"model": kind, "task": task, **options, "names": names, "outputs": outputs.flatten().tolist(), "losses": losses,
            "gradient_norms": norms}


def main():
    numbers = 2 * sines(ROWS * NUMBERS, 1).view(ROWS, NUMBERS)
    categories = torch.stack([torch.arange(ROWS) % c for c in CARDINALITIES], 1)
    table = (numbers, categories)
    labels = (torch.arange(ROWS) ** 2) % 3
    one, two = 10 + 4 * sines(ROWS, 2), 10 + 4 * sines(ROWS * 2, 2).view(ROWS, 2)
    series = sines(ROWS * WINDOW * INPUTS, 3).view(ROWS, WINDOW, INPUTS)
    future = 5 + 2 * sines(ROWS * HORIZON * OUTPUTS, 4).view(ROWS, HORIZON, OUTPUTS)
    cases = []
    for batch_norm in (False, True):
        cases.append(case("TabularMlp", {"batch_norm": batch_norm, "num_outputs": 1, "mean": [9.5], "std": [2.5]},
                          Mlp(1, batch_norm), table, one, "regression", [9.5], [2.5]))
    cases.append(case("TabularMlp", {"batch_norm": False, "num_outputs": 3, "mean": [], "std": []}, Mlp(3, False), table, labels,
                      "classification", None, None))
    cases.append(case("FtTransformer", {"num_outputs": 2, "mean": [9.5, 10.5], "std": [2.5, 3.0]}, FtTransformer(2), table, two,
                      "regression", [9.5, 10.5], [2.5, 3.0]))
    cases.append(case("FtTransformer", {"num_outputs": 3, "mean": [], "std": []}, FtTransformer(3), table, labels,
                      "classification", None, None))
    cases.append(case("LstmForecaster", {"num_outputs": OUTPUTS, "mean": [5.0, 5.5], "std": [2.0, 1.5]}, Lstm(), series, future,
                      "regression", [5.0, 5.5], [2.0, 1.5]))
    path = Path(__file__).parent / "baselines" / "tabular.json"
    path.write_text(json.dumps({"torch": torch.__version__.split("+")[0], "cases": cases}) + "\n")


if __name__ == "__main__":
    main()
