"""C2, PyTorch by hand: `--mode default` as most write it (DataLoader, AdamW), `--mode best` as fast as eager mode gets
(one index_select per batch, fused AdamW)."""

import torch
from common import Laps, prepare, write_report
from mlp import RATE, IndexedBatches, Inputs, Losses, arguments


def main():
    args = arguments()
    prepare()
    inputs = Inputs(args.inputs)
    net = inputs.model()
    best = args.mode == "best"
    batches = IndexedBatches(inputs) if best else inputs.loader()
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, fused=True if best else None)
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
