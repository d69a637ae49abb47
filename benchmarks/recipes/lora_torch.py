#!/usr/bin/env python3
"""configs/recipes/gpt_lora.yaml in plain PyTorch: the same model, weights of the base, adapters, schedule and validation windows.

    benchmarks/recipes/lora_torch.py BASE.safetensors TOKENS [SEED]

BASE.safetensors is the exported base model, TOKENS a folder of `trainer tokenize`. Needs safetensors.
"""

import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from gpt_training import mean_loss, train
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

HEADS, STEPS, RATE, RANK, ALPHA, DROPOUT = 4, 1000, 2e-3, 8, 16, 0.05


class Adapted(nn.Module):
    """A linear layer that does not learn, and its adapter (Hu et al. 2021)."""

    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = weight, bias
        self.down = nn.Parameter(torch.empty(RANK, weight.shape[1]))
        self.up = nn.Parameter(torch.zeros(weight.shape[0], RANK))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x):
        adapter = F.dropout(x, DROPOUT, self.training) @ self.down.T @ self.up.T
        return F.linear(x, self.weight, self.bias) + ALPHA / RANK * adapter


class Gpt(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.weights = {name.removeprefix("transformer."): value for name, value in weights.items()}
        self.layers = 1 + max(int(name.split(".")[1]) for name in self.weights if name.startswith("h."))
        names = [f"h.{i}.{part}" for i in range(self.layers) for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")]
        self.adapted = nn.ModuleDict({name.replace(".", "_"): Adapted(self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]) for name in names})

    def norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def loss(self, tokens, targets):
        n, t = tokens.shape
        embedding = self.weights["wte.weight"]
        x = embedding[tokens] + self.weights["wpe.weight"][:t]
        for i in range(self.layers):
            layer = {part: self.adapted[f"h_{i}_{part}"] for part in ("attn_c_attn", "attn_c_proj", "mlp_c_fc", "mlp_c_proj")}
            q, k, v = (part.view(n, t, HEADS, -1).transpose(1, 2) for part in layer["attn_c_attn"](self.norm(x, f"h.{i}.ln_1")).chunk(3, 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, -1)
            x = x + layer["attn_c_proj"](y)
            x = x + layer["mlp_c_proj"](F.gelu(layer["mlp_c_fc"](self.norm(x, f"h.{i}.ln_2"))))
        return F.cross_entropy(F.linear(self.norm(x, "ln_f"), embedding).flatten(0, 1), targets.flatten())


def tokens_of(folder):
    """Tokens of the training part, and of the validation part."""
    about = json.loads((Path(folder) / "tokens.json").read_text(encoding="utf-8"))
    tokens = torch.from_numpy(np.fromfile(Path(folder) / "tokens.bin", about["dtype"]).astype(np.int64))
    return tokens[: about["train_tokens"]], tokens[about["train_tokens"] :]


def main():
    torch.manual_seed(int(sys.argv[3]) if len(sys.argv) > 3 else 42)
    tokens, val = tokens_of(sys.argv[2])
    model = Gpt(load_file(sys.argv[1]))
    before = mean_loss(model, val)
    model.train()
    begin = time.process_time()
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.99), weight_decay=0.0, fused=True)
    train(model, optimizer, tokens, STEPS, warmup=50, rate=RATE, lowest_rate=0)
    trained = time.process_time() - begin
    print(f"validation loss {before:.4f} before, {mean_loss(model, val):.4f} after, {trained:.1f} s of CPU time for {STEPS} steps")


main()
