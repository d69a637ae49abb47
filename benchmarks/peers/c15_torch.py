"""C15, PyTorch by hand: eager, or with a compiled network."""

import torch
from c15_nets import BATCHES, RATE, arguments, report_of
from c15_torch_nets import make_net, tensors
from common import prepare, write_report


def main():
    args = arguments("eager", "compiled")
    prepare()

    def train(kind, widths, batches, steps, measured):
        batches = tensors(batches)
        net = make_net(kind, widths)
        optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=RATE, fused=True)
        loss_of = torch.compile(net) if args.mode == "compiled" else net
        for i in range(steps):
            loss = loss_of(*batches[i % BATCHES])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            measured.see(i, loss.detach())
        torch.compiler.reset()

    @torch.inference_mode()
    def predict(kind, widths, batches, steps, measured):
        batches = tensors(batches)
        net = make_net(kind, widths).net
        output_of = torch.compile(net) if args.mode == "compiled" else net
        for i in range(steps):
            measured.see_prediction(i, output_of(batches[i % BATCHES][0]))
        torch.compiler.reset()

    write_report(args.report, report_of(train, predict, args.divide))


main()
