"""C10, PyTorch's DistributedDataParallel over Gloo; one of two ranks (ranks.py).

`--variant plain`: DDP as it is by default, what it is made of done by hand (one all-reduce of all gradients after backward,
one for each gradient, none), and no_sync over 4; `view`: DDP with gradient_as_bucket_view; `bn`: DDP of a network with
BatchNorm. PyTorch's SyncBatchNorm refuses CPU tensors, so there is no figure of it; its losses, for those to compare with
who have one, are BatchNorm's on the batches of both ranks in one process."""

import os
import time
import warnings
from contextlib import nullcontext

import torch
import torch.distributed as dist
from common import prepare, write_report
from ddp_net import ACCUMULATED, COMPARED_LOSSES, RATE, Inputs, Net, arguments
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def reduce_each(gradients):
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient.div_(dist.get_world_size())


def reduce_flat(gradients):
    flat = _flatten_dense_tensors(gradients)
    dist.all_reduce(flat)
    flat.div_(dist.get_world_size())
    for gradient, reduced in zip(gradients, _unflatten_dense_tensors(flat, gradients)):
        gradient.copy_(reduced)


class Way:
    """One way to train: a network of its own, and what happens in a step."""

    def __init__(self, inputs, reduce=None, norm=False, ddp=None, accumulated=1):
        self.inputs, self.reduce, self.accumulated = inputs, reduce, accumulated
        self.net = Net(norm)
        inputs.load(self.net)
        self.model = self.net if ddp is None else DDP(self.net, **ddp)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=RATE, fused=True)
        self.number = 0

    def reset(self):
        self.inputs.load(self.net)
        self.number = 0

    def micro_step(self):
        x, y = self.inputs.batch(self.number, dist.get_rank())
        self.number += 1
        last = self.number % self.accumulated == 0
        with nullcontext() if last else self.model.no_sync():
            loss = F.mse_loss(self.model(x), y)
            (loss / self.accumulated if self.accumulated > 1 else loss).backward()
        if last:
            if self.reduce:
                self.reduce([p.grad for p in self.net.parameters()])
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss


def measure(way, steps):
    way.reset()
    dist.barrier()
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(steps):
        way.micro_step()
    return {"wall_s": (time.perf_counter() - wall) / steps, "cpu_s": (time.process_time() - cpu) / steps}


def whole_batch_losses(inputs):
    """Of rank 0's share, trained on the shares of all ranks at once."""
    way, losses, ranks = Way(inputs, norm=True), [], range(dist.get_world_size())
    for number in range(COMPARED_LOSSES):
        batches = [inputs.batch(number, rank) for rank in ranks]
        outputs = way.net(torch.cat([x for x, _ in batches])).chunk(len(batches))
        each = [F.mse_loss(output, y) for output, (_, y) in zip(outputs, batches)]
        (sum(each) / len(each)).backward()
        way.optimizer.step()
        way.optimizer.zero_grad()
        losses.append(each[0].item())
    return losses


def main():
    args = arguments()
    prepare()
    warnings.filterwarnings("ignore")
    dist.init_process_group("gloo")
    inputs = Inputs(args.inputs)
    if args.variant == "plain":
        ways = {
            "local": Way(inputs),
            "each": Way(inputs, reduce_each),
            "flat": Way(inputs, reduce_flat),
            "ddp": Way(inputs, ddp={}),
            "no_sync": Way(inputs, ddp={}, accumulated=ACCUMULATED),
        }
    elif args.variant == "view":
        ways = {"view": Way(inputs, ddp={"gradient_as_bucket_view": True})}
    else:
        ways = {"bn": Way(inputs, norm=True, ddp={})}

    # The warm-up too: DDP makes its buckets again after the first step.
    losses = {name: [way.micro_step().item() for _ in range(COMPARED_LOSSES)] for name, way in ways.items()}
    if args.variant == "bn":
        losses["sync_bn"] = whole_batch_losses(inputs)
    rows = {f"torch_{name}": [] for name in ways}
    for _ in range(args.blocks):
        for name, way in ways.items():
            rows[f"torch_{name}"].append(measure(way, args.steps))
    dist.barrier()
    if dist.get_rank() == 0:
        write_report(args.report, {"rows": rows, "losses": losses})
    os._exit(0)  # as write_report ends the other


main()
