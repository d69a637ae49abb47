"""C15, Lightning's Trainer."""

import logging
import warnings

import lightning.pytorch as pl
import torch
from c15_nets import BATCHES, RATE, arguments, report_of
from c15_torch_nets import make_net, tensors
from common import prepare, write_report
from torch.utils.data import DataLoader


class Trained(pl.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def training_step(self, batch, _):
        return self.net(*batch)

    def predict_step(self, batch, _):
        return self.net.net(batch[0])

    def configure_optimizers(self):
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=RATE, fused=True)


class Stamps(pl.Callback):
    def __init__(self, measured):
        self.measured = measured

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.measured.see(batch_idx, outputs["loss"])

    def on_predict_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0):
        self.measured.see_prediction(batch_idx, outputs)


def main():
    args = arguments()
    prepare()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    def trainer_of(measured):
        return pl.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            callbacks=[Stamps(measured)],
            default_root_dir=args.scratch,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )

    def loader_of(batches, steps):
        batches = tensors(batches)
        return DataLoader([batches[i % BATCHES] for i in range(steps)], batch_size=None)

    def train(kind, widths, batches, steps, measured):
        trainer_of(measured).fit(Trained(make_net(kind, widths)), loader_of(batches, steps))

    def predict(kind, widths, batches, steps, measured):
        trainer_of(measured).predict(Trained(make_net(kind, widths)), loader_of(batches, steps), return_predictions=False)

    write_report(args.report, report_of(train, predict, args.divide))


main()
