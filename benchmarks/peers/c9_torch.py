"""C9, PyTorch by hand."""

import torch
from c9_nets import RATE, arguments, loss_of, report_of
from common import prepare, write_report


def train(inputs, precision, steps, laps, losses):
    net = inputs.net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, fused=True)
    for x, y in list(zip(inputs.x.split(inputs.batch), inputs.y.split(inputs.batch), strict=True))[:steps]:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
            loss = loss_of(net, x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        laps.stamp()


def main():
    args = arguments()
    prepare()
    write_report(args.report, report_of(train, args))


main()
