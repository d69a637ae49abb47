#!/usr/bin/env python3
"""Writes baselines/adapters.json with torch 2.11.0; run by hand:

    <a Python with torch 2.11.0> tests/models/make_adapters_baseline.py

The GPT of make_gpt_baseline.py with LoRA adapters by PEFT's formula, result + lora_B(lora_A(x)) * alpha / rank: five steps of AdamW with
clipped gradients, in double. Matrix A number k, in the order of the layers' names, has 0.3 sin(100 + k + 0.7 i) at place i; B is zero.
"""

import json
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
# Its definitions, without the part that writes its file.
source = (Path(__file__).parent / "make_gpt_baseline.py").read_text().split("\ndef case(")[0]
twin = {}
exec(compile(source, "make_gpt_baseline.py", "exec"), twin)

RANK, ALPHA, STEPS, LR, DECAY, CLIP = 2, 6.0, 5, 0.01, 0.1, 0.5


class Adapted(nn.Module):
    def __init__(self, base, k):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(0.3 * torch.sin(100 + k + 0.7 * torch.arange(RANK * base.in_features)).view(RANK, -1))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.lora_A), self.lora_B) * (ALPHA / RANK)


model = twin["Gpt"](True)
with torch.no_grad():
    for k, (name, p) in enumerate(sorted(model.named_parameters())):
        values = 0.3 * torch.sin(k + 0.7 * torch.arange(p.numel()))
        p.copy_(values.view_as(p) + (1 if ".ln_" in name and name.endswith("weight") else 0))
model.requires_grad_(False)
layers = sorted(name for name, _ in model.named_modules() if name.endswith("attn.c_attn") or name.endswith("mlp.c_proj"))
trained = []
for k, name in enumerate(layers):
    parent, leaf = name.rsplit(".", 1)
    adapted = Adapted(model.get_submodule(name), k)
    setattr(model.get_submodule(parent), leaf, adapted)
    trained += [adapted.lora_A, adapted.lora_B]
norm = model.transformer["ln_f"].requires_grad_(True)
trained += list(norm.parameters())

vocab, block, batch = twin["VOCAB"], twin["BLOCK"], twin["BATCH"]
tokens = (torch.arange(batch * (block + 1)) ** 2 % vocab).view(batch, block + 1)
optimizer = torch.optim.AdamW(trained, lr=LR, weight_decay=DECAY)
losses = []
for _ in range(STEPS):
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(trained, CLIP)
    optimizer.step()
    losses.append(loss.item())

out = {
    "torch": torch.__version__.split("+")[0],
    "vocab_size": vocab, "block_size": block, "n_layer": twin["LAYERS"], "n_head": twin["HEADS"], "n_embd": twin["WIDTH"], "batch": batch,
    "rank": RANK, "alpha": ALPHA, "lr": LR, "weight_decay": DECAY, "clip": CLIP,
    "layers": layers,
    "losses": losses,
    "logits": model(tokens[:, :-1]).detach().flatten().tolist(),
}
(Path(__file__).parent / "baselines" / "adapters.json").write_text(json.dumps(out) + "\n")
