#!/usr/bin/env python3
"""Writes baselines/grad_scaler.json with torch 2.11.0: the life of torch.amp.GradScaler over steps some of which overflow. Run by
hand:

    <a Python with torch 2.11.0> tests/strategies/make_grad_scaler_baseline.py
"""

import json
from pathlib import Path

import torch

OUT = Path(__file__).parent / "baselines" / "grad_scaler.json"
CASES = [
    {"init_scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3, "overflows": [0, 1, 5, 12]},
    {"init_scale": 1.0, "growth_factor": 1.7, "backoff_factor": 0.3, "growth_interval": 2, "overflows": [3, 4, 9, 10, 11]},
    {"init_scale": 1024.0, "growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 1, "overflows": list(range(10, 20))},
]
STEPS = 24


def life(case):
    options = {name: value for name, value in case.items() if name != "overflows"}
    scaler = torch.amp.GradScaler("cpu", **options)
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    steps = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = (weight * torch.tensor([0.5, float("inf") if step in case["overflows"] else 0.25])).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        state = scaler.state_dict()
        steps.append({"scale": state["scale"], "growth_tracker": state["_growth_tracker"], "weight": weight.tolist()})
    return {**case, "steps": steps}


OUT.write_text(json.dumps({"torch": torch.__version__, "cases": [life(case) for case in CASES]}, indent=1) + "\n")
