"""The same training by `trainer fit`: writes data, weights and config, and reads the log and the checkpoint."""

import json
import os
import subprocess
from pathlib import Path

import torch
from case import Arrays, Case
from safetensors.torch import load_file, save_file
from training import Settings, Trained


class TrainerFailed(Exception):
    pass


def _without_copies(state: Arrays) -> Arrays:
    """Each tensor once, as files of Hugging Face have tied weights."""
    seen, kept = set(), {}
    for name, value in state.items():
        if value.data_ptr() not in seen:
            seen.add(value.data_ptr())
            kept[name] = value.detach().contiguous()
    return kept


def _config(case: Case, settings: Settings, precision: str, folder: Path) -> dict:
    data = str(folder / "data.safetensors")
    place = {name: f"{data}:{name}" for name in case.entries}
    train = {"input": place.get("input", place[case.entries[0]])}
    train |= {"target": place["target"]} if "target" in place else {}
    train["more"] = {name: value for name, value in place.items() if name not in ("input", "target")}
    trainer = {
        "accelerator": "cpu",
        "num_threads": 1,
        "precision": precision,
        "max_steps": settings.steps,
        "max_epochs": -1,
        "limit_val_batches": 0,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
        "default_root_dir": str(folder),
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": "JsonlLogger",
        "callbacks": [
            {"class_path": "WeightAveraging", "init_args": {"decay": settings.decay}},
            {"class_path": "ModelCheckpoint", "init_args": {"save_last": True}},
        ],
    }
    config = {
        "seed_everything": settings.seed,
        "trainer": trainer,
        "model": case.model,
        "pretrained": {"path": str(folder / "weights.safetensors")} | ({"key_map": case.key_map} if case.key_map else {}),
        "data": {
            "class_path": "ArrayDataModule",
            "init_args": {
                "train": train,
                "val_fraction": 0,
                "test_fraction": 0,
                "shuffle": False,
                "float_input": "input" in case.entries and case.model["class_path"] != "GPT",
                "batch_size": case.batch_size,
            },
        },
    }
    if not case.adversarial:
        trainer |= {"accumulate_grad_batches": settings.accumulate, "gradient_clip_val": settings.clip}
        options = {"lr": case.lr, "eps": case.eps, "weight_decay": settings.weight_decay}
        config["optimizer"] = {"class_path": "AdamW", "init_args": options}
    return config


def _run(command: list[str]):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TrainerFailed(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stderr[-3000:]}")


def _losses(log: Path) -> dict[str, list[float]]:
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    names = [name for name in rows[0] if name.startswith("train_") and name.endswith("loss")]
    return {name: [row[name] for row in rows if name in row] for name in names}


def train(case: Case, model, arrays: Arrays, settings: Settings, precision: str, trainer: str, folder: Path) -> Trained:
    save_file({name: value.contiguous() for name, value in arrays.items()}, folder / "data.safetensors")
    save_file(_without_copies(model.state_dict(keep_vars=True)), folder / "weights.safetensors", {"format": "pt"})
    config = folder / "config.yaml"
    config.write_text(json.dumps(_config(case, settings, precision, folder)))  # JSON is YAML
    _run([trainer, "fit", "--config", str(config)])
    run = folder / "fulgur_logs" / "version_0"
    exported = {}
    for name, options in (("weights", []), ("averaged", ["--averaged"])):
        file = folder / f"{name}_at_the_end.safetensors"
        _run([trainer, "export", str(run / "checkpoints" / "last.ckpt"), "--output", str(file), *options])
        exported[name] = load_file(file)
    return Trained(_losses(run / "metrics.jsonl"), **exported)
