"""C12, PyTorch by hand as fast as eager mode gets: one index_select for a batch, fused AdamW."""

from functools import partial

import torch
from c12_net import BATCH, COMPARED_LOSSES, EVAL_BATCH, RATE, Inputs, arguments, channels_last, report_of, since_start
from common import prepare, write_report
from torch.nn import functional as F


@torch.no_grad()
def accuracy_of(net, inputs, autocast):
    net.eval()
    right = 0
    for x, y in zip(inputs.test_x.split(EVAL_BATCH), inputs.test_y.split(EVAL_BATCH)):
        with autocast():
            right += (net(channels_last(x)).argmax(1) == y).sum().item()
    net.train()
    return right / len(inputs.test_y)


def exact_losses(inputs):
    """The compared losses in float64."""
    net = inputs.model().double()
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, fused=True)
    losses = []
    for rows in inputs.order[0].split(BATCH)[:COMPARED_LOSSES]:
        loss = F.cross_entropy(net(channels_last(inputs.x.index_select(0, rows).double())), inputs.y.index_select(0, rows))
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


def main():
    args = arguments()
    prepare()
    inputs = Inputs(args)
    autocast = partial(torch.autocast, "cpu", torch.bfloat16, enabled=args.precision == "bf16-mixed")
    net = inputs.model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, fused=True)
    first, accuracy, ends = [], 0.0, []
    while accuracy < args.goal and len(ends) < args.epochs:
        for rows in inputs.order[len(ends)].split(BATCH):
            x, y = inputs.x.index_select(0, rows), inputs.y.index_select(0, rows)
            with autocast():
                loss = F.cross_entropy(net(channels_last(x)), y)
            if len(first) < COMPARED_LOSSES:
                first.append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        accuracy = accuracy_of(net, inputs, autocast)
        ends.append(since_start())
    report = report_of(ends, accuracy, args.goal, first)  # ends what is timed
    if args.precision == "32-true":
        report["exact_losses"] = exact_losses(inputs)
    write_report(args.report, report)


main()
