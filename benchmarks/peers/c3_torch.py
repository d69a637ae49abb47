"""C3, torch.optim of Python: `--mode default` (a loop over parameters on the CPU), `foreach` or `fused`.
cpp/optimizer_cases.h is the same in C++."""

import argparse
from pathlib import Path

import torch
from common import Laps, prepare, write_report
from safetensors.torch import load_file

WARMUPS = 2


def make_optimizer(kind, parameters, mode):
    kwargs = {} if mode == "default" else {mode: True}
    if kind == "SGD":
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, **kwargs)
    if kind == "Adam":
        return torch.optim.Adam(parameters, lr=1e-3, **kwargs)
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01, **kwargs)


def some_of(parameters):
    values = [sum(p.detach().sum(dtype=torch.float64).item() for p in parameters) / len(parameters)]
    for i in (0, len(parameters) // 2, len(parameters) - 1):
        values += parameters[i].detach()[:8].tolist()
    return values


def main():
    parser = argparse.ArgumentParser()
    for name in ("mode", "cases", "inputs", "report"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    prepare()
    data = load_file(Path(args.inputs) / "parameters.safetensors")
    report = {"cases": {}, "parameters": {}}
    for text in args.cases.split(","):
        kind, *sizes = text.split(":")
        tensors, elements, steps = map(int, sizes)
        parameters = []
        for i in range(tensors):
            scale = 1 + i / 1024
            p = (data["values"][:elements] * scale).requires_grad_()
            p.grad = data["gradients"][:elements] * scale
            parameters.append(p)
        optimizer = make_optimizer(kind, parameters, args.mode)
        samples = []
        for _ in range(WARMUPS + steps):
            laps = Laps()
            laps.stamp()
            optimizer.step()
            laps.stamp()
            samples += laps.samples()
        name = f"{kind} {tensors} x {elements}"
        report["cases"][name] = samples[WARMUPS:]
        report["parameters"][name] = some_of(parameters)
        del optimizer, parameters, p
    write_report(args.report, report)


main()
