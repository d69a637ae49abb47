"""C2, PyTorch by hand: `--mode default` as most write it (DataLoader, AdamW), `--mode best` as fast as eager mode gets
(one index_select per batch, fused AdamW), `--mode indexed` with `x[rows]` for a batch and fused AdamW."""

import torch
from common import Laps, prepare, write_report
from mlp import RATE, IndexedBatches, Inputs, Losses, arguments


def main():
    args = arguments()
    prepare()
    inputs = Inputs(args.inputs)
    net = inputs.model()
    by_default = args.mode == "default"
    batches = inputs.loader() if by_default else IndexedBatches(inputs, selects=args.mode == "best")
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, fused=None if by_default else True)
    losses, laps = Losses(), Laps()
    for _ in range(args.epochs):
        laps.stamp()
        for x, y in batches:
            loss = net.loss(x, y)
            losses.add(loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    laps.stamp()
    write_report(args.report, {"samples": laps.samples(), "losses": losses.report(net, inputs)})


main()
