"""C12, Lightning's Trainer as it is by default, with EarlyStopping at the goal."""

import warnings

import lightning.pytorch as pl
import torch
from c12_net import BATCH, COMPARED_LOSSES, EVAL_BATCH, RATE, Inputs, arguments, channels_last, report_of, since_start
from common import prepare, write_report
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger
from torch.nn import functional as F
from torch.utils.data import DataLoader, Sampler, TensorDataset


class GivenOrder(Sampler):
    """The order that all peers have; as RandomSampler but for where it comes from."""

    def __init__(self, order):
        self.order, self.epoch = order, -1

    def __len__(self):
        return self.order.shape[1]

    def __iter__(self):
        self.epoch += 1
        return iter(self.order[self.epoch].tolist())


class Classifier(pl.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net, self.first, self.ends = net, [], []

    def training_step(self, batch, _):
        loss = F.cross_entropy(self.net(channels_last(batch[0])), batch[1])
        if len(self.first) < COMPARED_LOSSES:
            self.first.append(loss.item())
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _):
        self.log("val_acc", (self.net(channels_last(batch[0])).argmax(1) == batch[1]).float().mean(), prog_bar=True)

    def on_train_epoch_end(self):
        self.ends.append(since_start())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=RATE)


def main():
    args = arguments()
    prepare()
    warnings.filterwarnings("ignore")
    inputs = Inputs(args)
    module = Classifier(inputs.model())
    stopping = EarlyStopping("val_acc", mode="max", patience=args.epochs, stopping_threshold=args.goal - 1e-6)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        precision=args.precision,
        max_epochs=args.epochs,
        logger=CSVLogger(args.scratch),
        callbacks=[stopping],
        default_root_dir=args.scratch,
    )
    trainer.fit(
        module,
        DataLoader(TensorDataset(inputs.x, inputs.y), batch_size=BATCH, sampler=GivenOrder(inputs.order)),
        DataLoader(TensorDataset(inputs.test_x, inputs.test_y), batch_size=EVAL_BATCH),
    )
    accuracy = round(trainer.callback_metrics["val_acc"].item(), 6)
    write_report(args.report, report_of(module.ends, accuracy, args.goal, module.first))


main()
