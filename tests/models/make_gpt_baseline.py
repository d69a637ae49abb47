#!/usr/bin/env python3
"""Writes baselines/gpt.json with torch 2.11.0; run by hand:

    <a Python with torch 2.11.0> tests/models/make_gpt_baseline.py

A GPT written with torch's modules, in double, under nanoGPT's names. Its weights are values of a sine, which the test
computes too: parameter k in the order of names has 0.3 sin(k + 0.7 i) at place i, norms' weights one more.
"""

import json
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
VOCAB, BLOCK, LAYERS, HEADS, WIDTH, BATCH = 11, 7, 2, 2, 6, 3


class Attention(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=bias)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=bias)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (p.view(n, t, HEADS, c // HEADS).transpose(1, 2) for p in self.c_attn(x).chunk(3, dim=2))
        scores = q @ k.transpose(2, 3) / math.sqrt(c // HEADS)
        scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf"))
        return self.c_proj((scores.softmax(3) @ v).transpose(1, 2).reshape(n, t, c))


class Mlp(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.c_fc = nn.Linear(WIDTH, 4 * WIDTH, bias=bias)
        self.c_proj = nn.Linear(4 * WIDTH, WIDTH, bias=bias)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(WIDTH, bias=bias), Attention(bias)
        self.ln_2, self.mlp = nn.LayerNorm(WIDTH, bias=bias), Mlp(bias)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCAB, WIDTH),
                "wpe": nn.Embedding(BLOCK, WIDTH),
                "h": nn.ModuleList(Block(bias) for _ in range(LAYERS)),
                "ln_f": nn.LayerNorm(WIDTH, bias=bias),
            }
        )
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, tokens):
        x = self.transformer.wte(tokens) + self.transformer.wpe(torch.arange(tokens.shape[1]))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def case(bias):
    model = Gpt(bias)
    parameters = dict(sorted(model.named_parameters()))
    with torch.no_grad():
        for k, (name, p) in enumerate(parameters.items()):
            values = 0.3 * torch.sin(k + 0.7 * torch.arange(p.numel()))
            p.copy_(values.view_as(p) + (1 if ".ln_" in name and name.endswith("weight") else 0))
    tokens = (torch.arange(BATCH * (BLOCK + 1)) ** 2 % VOCAB).view(BATCH, BLOCK + 1)
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    return {
        "bias": bias,
        "names": list(parameters),
        "logits": logits.detach().flatten().tolist(),
        "loss": loss.item(),
        "gradient_norms": [p.grad.norm().item() for p in parameters.values()],
    }


out = {
    "torch": torch.__version__.split("+")[0],
    "vocab_size": VOCAB, "block_size": BLOCK, "n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH, "batch": BATCH,
    "cases": [case(True), case(False)],
}
path = Path(__file__).parent / "baselines" / "gpt.json"
path.write_text(json.dumps(out) + "\n")
