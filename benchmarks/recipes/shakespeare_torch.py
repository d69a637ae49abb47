#!/usr/bin/env python3
"""configs/recipes/shakespeare_char.yaml in plain PyTorch: the same model, schedule and validation windows.

    benchmarks/recipes/shakespeare_torch.py input.txt [SEED]
"""

import math
import sys
import time

import torch
from gpt_training import BLOCK, mean_loss, train
from torch import nn
from torch.nn import functional as F

LAYERS, HEADS, WIDTH, STEPS, RATE = 4, 4, 128, 2000, 2e-3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = (p.view(n, t, HEADS, -1).transpose(1, 2) for p in self.qkv(self.ln_1(x)).chunk(3, 2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, WIDTH))
        return x + self.narrow(F.gelu(self.widen(self.ln_2(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.LayerNorm(WIDTH, bias=False)
        for name, value in self.named_parameters():
            if value.dim() > 1:
                into_the_sum = name.endswith(("out.weight", "narrow.weight"))
                nn.init.normal_(value, 0, 0.02 / math.sqrt(2 * LAYERS) if into_the_sum else 0.02)

    def loss(self, x, y):
        hidden = self.norm(self.blocks(self.tokens(x) + self.positions.weight))
        return F.cross_entropy(F.linear(hidden, self.tokens.weight).flatten(0, 1), y.flatten())


def main():
    torch.manual_seed(int(sys.argv[2]) if len(sys.argv) > 2 else 1337)
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    numbers = {c: i for i, c in enumerate(sorted(set(text)))}
    data = torch.tensor([numbers[c] for c in text])
    part = int(0.9 * len(data))
    begin = time.process_time()
    model = Gpt(len(numbers))
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, RATE, betas=(0.9, 0.99), fused=True)
    train(model, optimizer, data[:part], STEPS, warmup=100, rate=RATE, lowest_rate=1e-4)
    trained = time.process_time() - begin
    print(f"validation loss {mean_loss(model, data[part:]):.4f}, {trained:.1f} s of CPU time for {STEPS} steps")


main()
