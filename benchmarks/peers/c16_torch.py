"""C16, PyTorch's fully_shard over Gloo; one of two ranks (ranks.py).

`--variant parameters`: parameters are freed after the forward pass and gathered again for the backward pass, as by default;
`gradients`: they stay until then (`reshard_after_forward=False`)."""

import os
import time
import warnings

import torch
import torch.distributed as dist
from common import prepare, write_report
from ddp_net import COMPARED_LOSSES, RATE, Inputs, Net, arguments
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F


class Rank:
    def __init__(self, inputs, reshards):
        self.inputs, self.net, self.number = inputs, Net(), 0
        inputs.load(self.net)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for linear in self.net.linear:
            fully_shard(linear, mesh=mesh, reshard_after_forward=reshards)
        fully_shard(self.net, mesh=mesh, reshard_after_forward=reshards)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=RATE, foreach=True)  # it has no fused one

    def step(self):
        x, y = self.inputs.batch(self.number, dist.get_rank())
        self.number += 1
        loss = F.mse_loss(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def measure(rank, steps):
    dist.barrier()
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(steps):
        rank.step()
    return {"wall_s": (time.perf_counter() - wall) / steps, "cpu_s": (time.process_time() - cpu) / steps}


def main():
    args = arguments()
    prepare()
    warnings.filterwarnings("ignore")
    dist.init_process_group("gloo")
    rank = Rank(Inputs(args.inputs), reshards=args.variant == "parameters")
    losses = {args.variant: [rank.step().item() for _ in range(COMPARED_LOSSES)]}
    rows = {f"torch_{args.variant}": [measure(rank, args.steps) for _ in range(args.blocks)]}
    dist.barrier()
    if dist.get_rank() == 0:
        write_report(args.report, {"rows": rows, "losses": losses})
    os._exit(0)  # as write_report ends the other


main()
