#!/usr/bin/env python3
"""Writes baselines/ddp.json with torch 2.11.0: weights and running statistics that PyTorch's DistributedDataParallel over
Gloo comes to, of rank 0. Run by hand:

    <a Python with torch 2.11.0> tests/strategies/make_ddp_baselines.py

`norm: sync` is what SyncBatchNorm is to come to: BatchNorm in one process, on the batches of all ranks. (PyTorch's own
refuses CPU tensors.) ddp_problem.h is the twin of the network and the data.
"""

import json
import math
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

OUT = Path(__file__).parent / "baselines" / "ddp.json"
SAMPLES, BATCH, STEPS, SHOWN = 48, 3, 100, (1, 10, 100)
RATE, MOMENTUM = 0.05, 0.9


def table(rows, columns, seed):
    return torch.tensor([[math.sin(seed + 3 * i + 7 * j) for j in range(columns)] for i in range(rows)], dtype=torch.float64)


class Net(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.first, self.second = nn.Linear(5, 7).double(), nn.Linear(7, 3).double()
        self.norm = nn.BatchNorm1d(7).double() if norm else None
        with torch.no_grad():
            self.first.weight.copy_(table(7, 5, 1))
            self.first.bias.copy_(table(1, 7, 2)[0])
            self.second.weight.copy_(table(3, 7, 3))
            self.second.bias.copy_(table(1, 3, 4)[0])

    def forward(self, x):
        x = self.first(x)
        return self.second(torch.tanh(self.norm(x) if self.norm else x))

    def values(self):
        tensors = [self.first.weight, self.first.bias, self.second.weight, self.second.bias]
        if self.norm:
            tensors += [self.norm.weight, self.norm.bias, self.norm.running_mean, self.norm.running_var]
        return [float(f"{x:.15g}") for t in tensors for x in t.detach().flatten().tolist()]


def share(number, rank, ranks):
    """Batch `number` of a rank: strided, as samplers deal the samples out, in order and from the begin again."""
    rows = [((number * BATCH + i) * ranks + rank) % SAMPLES for i in range(BATCH)]
    return table(SAMPLES, 5, 5)[rows], table(SAMPLES, 3, 6)[rows]


def train(rank, ranks, norm, accumulate, meet, out):
    torch.set_num_threads(1)
    whole = norm == "sync"
    net = Net(norm != "none")
    model = net
    if not whole:
        dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=ranks)
        model = DDP(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM)
    shown = {}
    for step in range(1, STEPS + 1):
        for k in range(accumulate):
            number = (step - 1) * accumulate + k
            shares = [share(number, r, ranks) for r in (range(ranks) if whole else [rank])]
            x, y = (torch.cat(parts) for parts in zip(*shares))
            with nullcontext() if whole or k + 1 == accumulate else model.no_sync():
                (nn.functional.mse_loss(model(x), y) / accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step in SHOWN:
            shown[str(step)] = net.values()
    if rank == 0:
        Path(out).write_text(json.dumps(shown))
    if not whole:
        dist.destroy_process_group()


def main():
    cases = []
    for ranks in (2, 3, 4):
        for norm in ("none", "batch", "sync"):
            for accumulate in (1, 3):
                with tempfile.TemporaryDirectory() as folder:
                    arguments = (ranks, norm, accumulate, f"{folder}/meet", f"{folder}/out")
                    if norm == "sync":
                        train(0, *arguments)
                    else:
                        mp.spawn(train, arguments, nprocs=ranks)
                    values = json.loads(Path(folder, "out").read_text())
                cases.append({"ranks": ranks, "norm": norm, "accumulate": accumulate, "values": values})
                print(ranks, norm, accumulate, flush=True)
    lines = ",\n".join(json.dumps(case) for case in cases)
    OUT.write_text(f'{{"torch": "{torch.__version__.split("+")[0]}", "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
