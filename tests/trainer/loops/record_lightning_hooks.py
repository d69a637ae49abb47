#!/usr/bin/env python3
"""Writes lightning_hooks.json: the hooks that Lightning 2.6.6 calls, in order, for the runs below; run by hand:

    <a Python with lightning 2.6.6> tests/trainer/loops/record_lightning_hooks.py

lightning_hooks_test.cpp makes the same runs and compares. Which hooks there are, and what ours are called, is read from
hooks.txt. A call is `c.` for the callback, `d.` for the data module, nothing for the module, then the hook; steps and
batch hooks with the batch's index.
"""

import inspect
import json
import logging
import tempfile
import warnings
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

HERE = Path(__file__).parent
BATCH = 4


class Failure(Exception):
    """What a step of a case throws."""


# ---- the cases. `trainer` holds arguments that Lightning and Fulgur both have ----


def run(verb="fit", **more):
    return {"verb": verb} | more


def case(name, runs, train=4, val=0, module=None, callback=None, checkpoint=None):
    return {"name": name, "train": train, "val": val, "module": module or {}, "callback": callback or {},
            "checkpoint": checkpoint, "runs": runs}


def fit(**trainer):
    return run(trainer=trainer)


CASES = [
    case("two epochs", [fit(max_epochs=2)], train=2),
    case("validation after each epoch", [fit(max_epochs=2)], train=2, val=2),
    case("sanity check", [fit(num_sanity_val_steps=1)], train=2, val=2),
    case("whole sanity check", [fit(num_sanity_val_steps=-1)], train=1, val=2),
    case("accumulation with a short window", [fit(accumulate_grad_batches=2)], train=5),
    case("validation inside an accumulation window", [fit(accumulate_grad_batches=3, val_check_interval=2)], train=6, val=1),
    case("validation every two batches", [fit(val_check_interval=2)], train=5, val=1),
    case("validation every half of an epoch", [fit(val_check_interval=0.5)], val=1),
    case("validation by batches over epochs", [fit(max_epochs=2, val_check_interval=3, check_val_every_n_epoch=None)], train=2, val=1),
    case("validation every second epoch", [fit(max_epochs=3, check_val_every_n_epoch=2)], train=1, val=1),
    case("limits of batches", [fit(limit_train_batches=2, limit_val_batches=1)], val=3),
    case("limits by fractions", [fit(limit_train_batches=0.5, limit_val_batches=0.5)], val=2),
    case("no validation batches", [fit(limit_val_batches=0)], train=2, val=2),
    case("no training batches", [fit(limit_train_batches=0)], train=2, val=2),
    case("a schedule by steps", [fit()], train=2, module={"schedule": "step"}),
    case("a schedule by epochs", [fit(max_epochs=2)], train=2, val=1, module={"schedule": "epoch"}),
    case("max_steps inside an epoch", [fit(max_epochs=2, max_steps=2)], val=1),
    case("max_steps at an epoch's end", [fit(max_epochs=3, max_steps=4)], train=2, val=1),
    case("max_steps where validation is due", [fit(max_steps=2, val_check_interval=2)], val=1),
    case("a stop inside an epoch", [fit(max_epochs=2)], callback={"stop": 1}),
    case("a stop inside an epoch with validation at its end", [fit(max_epochs=2)], val=1, callback={"stop": 1}),
    case("a stop where validation is due", [fit(max_epochs=2, val_check_interval=2)], val=1, callback={"stop": 1}),
    case("a stop between validations", [fit(val_check_interval=3)], train=6, val=1, callback={"stop": 3}),
    case("a stop in an epoch that does not validate", [fit(max_epochs=3, check_val_every_n_epoch=2)], val=1, callback={"stop": 1}),
    case("a stop in the last batch", [fit(max_epochs=2)], train=2, val=1, callback={"stop": 1}),
    case("a stop that waits for min_epochs", [fit(max_epochs=3, min_epochs=2)], train=2, val=1, callback={"stop": 0}),
    case("a stop that waits for min_steps", [fit(max_epochs=3, min_steps=3)], val=1, callback={"stop": 0}),
    case("a stop in validation", [fit(max_epochs=3, val_check_interval=2)], val=1, callback={"stop_in_validation": 1}),
    case("checkpoints after epochs", [fit(max_epochs=2)], train=2, val=1, checkpoint={}),
    case("checkpoints after steps", [fit()], val=1, checkpoint={"every_n_train_steps": 2, "save_top_k": -1}),
    case("checkpoints after validations", [fit(val_check_interval=2)], val=1, checkpoint={"monitor": "val_loss", "save_top_k": -1}),
    case("resume after an epoch", [fit(), run(trainer={"max_epochs": 2}, resumes=True)], train=2, val=1, checkpoint={}),
    case("resume inside an epoch", [fit(max_steps=3), run(trainer={"max_epochs": 2}, resumes=True)], val=1,
         checkpoint={"every_n_train_steps": 3, "save_top_k": -1}),
    case("resume with a schedule", [fit(), run(trainer={"max_epochs": 2}, resumes=True)], train=2, module={"schedule": "step"}, checkpoint={}),
    case("validate", [run("validate", trainer={})], val=2),
    case("test", [run("test", trainer={})], val=2),
    case("predict", [run("predict", trainer={})], val=2),
    case("validate, test and predict a checkpoint",
         [fit(), run("validate", trainer={}, resumes=True), run("test", trainer={}, resumes=True), run("predict", trainer={}, resumes=True)],
         train=1, val=1, checkpoint={}),
    case("a second fit of one Trainer", [fit(max_epochs=2), run(trainer={}, same_trainer=True)], train=2, val=1),
    case("manual optimization", [fit()], train=2, val=1, module={"manual": True}),
    case("manual optimization with a schedule by epochs", [fit(max_epochs=2)], train=1, module={"manual": True, "schedule": "epoch"}),
    case("the rest of an epoch is skipped", [fit(max_epochs=2)], val=1, module={"skip_epoch_at": 2}),
    case("a step without a loss", [fit()], train=3, module={"no_loss_at": 1}),
    case("an accumulation window with a step without a loss", [fit(accumulate_grad_batches=2)], train=4, module={"no_loss_at": 1}),
    case("an exception in training_step", [fit()], module={"fail_at": 1}),
    case("an exception in validation_step", [fit()], train=2, val=2, module={"fail_in_validation_at": 1}),
    case("an exception in the sanity check", [fit(num_sanity_val_steps=2)], train=2, val=2, module={"fail_in_validation_at": 0}),
    case("an exception in test_step", [run("test", trainer={})], val=2, module={"fail_in_test_at": 1}),
]


# ---- recording ----

STEPS = ("training_step", "validation_step", "test_step", "predict_step")
SILENT = ("forward", "automatic_optimization", "state_key", "configure_sharded_model")
CALLS = []


def hooks_of(kind):
    """Lightning's names and ours."""
    names = {}
    for line in (HERE / "hooks.txt").read_text().splitlines():
        words = line.split()
        if not words or words[0] != kind or words[1] in SILENT or words[2:3] == ["added"]:
            continue
        loaders = words[2:] == ["as", "loaders"]
        names[words[1]] = words[3] if words[2:3] == ["as"] and not loaders else words[1]
    return names


def call_of(mark, name, arguments):
    text = mark + name
    if name == "setup" and mark == "c.":
        text += f"({arguments['stage'].value})"
    if "_batch_" in name and "batch_idx" in arguments or name in STEPS:
        text += f" {arguments['batch_idx']}"
    return text


def recorded(kind, mark, base):
    """A subclass of `base` that writes down each hook before it runs."""

    def overriding(hook, name):
        signature = inspect.signature(getattr(base, hook))

        def method(self, *args, **kwargs):
            arguments = signature.bind(self, *args, **kwargs).arguments
            CALLS.append(call_of(mark, name, arguments))
            return getattr(base, hook)(self, *args, **kwargs)

        method.__signature__ = signature
        method.__name__ = hook
        return method

    members = {hook: overriding(hook, name) for hook, name in hooks_of(kind).items() if hasattr(base, hook)}
    return type("Recorded" + base.__name__, (base,), members)


class Module(L.LightningModule):
    def __init__(self, settings):
        super().__init__()
        self.settings = settings
        self.layer = torch.nn.Linear(4, 2)
        self.automatic_optimization = not settings.get("manual", False)

    def loss(self, batch):
        return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if self.settings.get("skip_epoch_at") == batch_idx else None

    def training_step(self, batch, batch_idx):
        if self.settings.get("fail_at") == batch_idx:
            raise Failure
        if self.settings.get("no_loss_at") == batch_idx:
            return None
        loss = self.loss(batch)
        if not self.automatic_optimization:
            self.manual_backward(loss)
            self.optimizers().step()
            self.optimizers().zero_grad()
        return loss

    def validation_step(self, batch, batch_idx):
        if self.settings.get("fail_in_validation_at") == batch_idx:
            raise Failure
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch, batch_idx):
        if self.settings.get("fail_in_test_at") == batch_idx:
            raise Failure
        self.log("test_loss", self.loss(batch))

    def predict_step(self, batch, batch_idx):
        return self.layer(batch[0])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
        interval = self.settings.get("schedule")
        if interval is None:
            return optimizer
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": interval}}


class Watcher(L.Callback):
    def __init__(self, settings):
        self.settings = settings
        self.batches = 0
        self.validations = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if self.settings.get("stop") == self.batches:
            trainer.should_stop = True
        self.batches += 1

    def on_validation_end(self, trainer, pl_module):
        self.validations += 1
        if self.settings.get("stop_in_validation") == self.validations:
            trainer.should_stop = True

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state_dict):
        self.batches = state_dict["batches"]


class Data(L.LightningDataModule):
    def __init__(self, train, val):
        super().__init__()
        self.train, self.val = train, val

    @staticmethod
    def loader(batches):
        if batches == 0:
            return []
        torch.manual_seed(batches)
        return DataLoader(TensorDataset(torch.randn(BATCH * batches, 4), torch.randn(BATCH * batches, 2)), batch_size=BATCH)

    def train_dataloader(self):
        return self.loader(self.train)

    def val_dataloader(self):
        return self.loader(self.val)

    test_dataloader = predict_dataloader = val_dataloader

    def state_dict(self):
        return {"train": self.train}

    def load_state_dict(self, state_dict):
        pass


RecordedModule = recorded("module", "", Module)
RecordedWatcher = recorded("callback", "c.", Watcher)


class RecordedData(Data):
    """The transfer hooks are the module's: a data module that has them takes their place."""


for name, method in vars(recorded("data", "d.", Data)).items():
    if callable(method) and "batch_transfer" not in name and "transfer_batch" not in name:
        setattr(RecordedData, name, method)


def make_trainer(folder, case, settings):
    callbacks = [RecordedWatcher(case["callback"])]
    if case["checkpoint"] is not None:
        callbacks.append(ModelCheckpoint(**case["checkpoint"]))
    defaults = {"max_epochs": 1, "num_sanity_val_steps": 0}
    return L.Trainer(**(defaults | settings), callbacks=callbacks, enable_checkpointing=case["checkpoint"] is not None,
                     default_root_dir=folder, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)


def saved_by(trainer):
    """The newest checkpoint."""
    files = sorted(Path(trainer.checkpoint_callback.dirpath).glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    return files[-1]


def record(case):
    trainer = checkpoint = None
    with tempfile.TemporaryDirectory() as folder:
        for part in case["runs"]:
            torch.manual_seed(1)
            settings = dict(part["trainer"])
            if part.get("same_trainer"):
                trainer.fit_loop.max_epochs += 1
                module, data = trainer.lightning_module, trainer.datamodule
            else:
                trainer = make_trainer(folder, case, settings)
                module, data = RecordedModule(case["module"]), RecordedData(case["train"], case["val"])
            CALLS.clear()
            path = checkpoint if part.get("resumes") else None
            try:
                getattr(trainer, part["verb"])(module, datamodule=data, ckpt_path=path, weights_only=False)
            except Failure:
                CALLS.append("Failure")
            part["calls"] = ", ".join(CALLS)
            if part["verb"] == "fit" and case["checkpoint"] is not None:
                checkpoint = saved_by(trainer)
    return case


def main():
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    assert L.__version__ == "2.6.6", L.__version__
    cases = [record(one) for one in CASES]
    document = {"made_by": "tests/trainer/loops/record_lightning_hooks.py", "lightning": L.__version__, "torch": torch.__version__, "cases": cases}
    lines = json.dumps(document, indent=1)
    (HERE / "lightning_hooks.json").write_text(lines + "\n")
    print(len(cases), "cases,", sum(part["calls"].count(",") + 1 for one in cases for part in one["runs"]), "calls")


if __name__ == "__main__":
    main()
