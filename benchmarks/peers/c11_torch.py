"""C11 in PyTorch; cpp/c11_fulgur.cpp is the same in C++."""

import argparse
from pathlib import Path

import torch
from common import Laps, prepare, write_report
from gpt import GptBlock
from safetensors.torch import load_file
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

WARMUPS = 1
WAYS = {"none": "none", "every_2": "every 2", "all": "all", "whole": "all, no early stop"}


class MlpBlock(nn.ModuleDict):
    def __init__(self, width):
        super().__init__({"in": nn.Linear(width, 4 * width), "out": nn.Linear(4 * width, width)})

    def forward(self, x):
        return self["out"](torch.relu(self["in"](x)))


def forward(blocks, x, way):
    every = {"none": 0, "every_2": 2}.get(way, 1)
    with set_checkpoint_early_stop(way != "whole"):
        for i, block in enumerate(blocks):
            x = checkpoint(block, x, use_reentrant=False) if every and i % every == 0 else block(x)
    return x


def saved_bytes(blocks, x, way):
    parameters = {p.untyped_storage().data_ptr() for block in blocks for p in block.parameters()}
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = forward(blocks, x, way)
    found = sum(storages.values())
    del y
    return found


def main():
    parser = argparse.ArgumentParser()
    for name in ("layers", "heads", "steps", "inputs", "report"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    prepare()
    data = load_file(Path(args.inputs) / "blocks.safetensors")
    x, dy = data["x"].requires_grad_(), data["dy"]
    width, layers = x.shape[2], int(args.layers)
    stacks = {
        "GPT": [GptBlock(width, int(args.heads)) for _ in range(layers)],
        "MLP": [MlpBlock(width) for _ in range(layers)],
    }
    report = {"cases": {}, "gradients": {}, "saved": {}}
    for kind, blocks in stacks.items():
        for i, block in enumerate(blocks):
            prefix = f"{kind}.{i}."
            block.load_state_dict({name[len(prefix) :]: value for name, value in data.items() if name.startswith(prefix)})
        parameters = [p for block in blocks for p in block.parameters()]
        for step in range(WARMUPS + int(args.steps)):
            for way, title in WAYS.items():
                name = f"{kind} blocks, {title}"
                for p in [x, *parameters]:
                    p.grad = None
                laps = Laps()
                laps.stamp()
                forward(blocks, x, way).backward(dy)
                laps.stamp()
                if step < WARMUPS:
                    report["saved"][name] = [saved_bytes(blocks, x, way)]
                    report["gradients"][name] = [p.grad.norm(dtype=torch.float64).item() for p in [x, *(blocks[i].get_submodule({"GPT": "mlp.c_fc", "MLP": "in"}[kind]).weight for i in range(layers))]]
                    continue
                sample = laps.samples()[0] | {"saved_mib": report["saved"][name][0] / 2**20}
                report["cases"].setdefault(name, []).append(sample)
    write_report(args.report, report)


main()
