"""C2, Fabric: PyTorch's loop with DataLoader and AdamW, set up by Lightning Fabric."""

import torch
from common import Laps, prepare, write_report
from lightning.fabric import Fabric
from mlp import RATE, Inputs, Losses, arguments


def main():
    args = arguments()
    prepare()
    inputs = Inputs(args.inputs)
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    net = inputs.model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE)
    module, optimizer = fabric.setup(net, optimizer)
    module.mark_forward_method("loss")
    # use_distributed_sampler only matters with several devices: the sampler stays.
    batches = fabric.setup_dataloaders(inputs.loader())
    losses, laps = Losses(), Laps()
    for _ in range(args.epochs):
        laps.stamp()
        for x, y in batches:
            loss = module.loss(x, y)
            losses.add(loss)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    laps.stamp()
    write_report(args.report, {"samples": laps.samples(), "losses": losses.report(net, inputs)})


main()
