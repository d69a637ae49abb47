"""Trains on two ranks with a slow link between them, once for each option of ddp for slow networks. See slow_networks.sh."""

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from slow_link import ADDRESSES, SlowLink

MODEL = [
    "--config", "configs/fashion_mnist_mlp.yaml", "--model.hidden", "[1024, 1024]", "--trainer.capture", "false",
    "--trainer.max_epochs", "1", "--trainer.log_every_n_steps", "50", "--trainer.num_threads", "1",
    "--trainer.enable_progress_bar", "false", "--trainer.callbacks", "[ThroughputMonitor]",
]  # fmt: skip


@dataclasses.dataclass
class Row:
    title: str
    options: dict  # of ddp


ROWS = [
    Row("whole gradients", {}),
    Row("bucket_cap_mb: auto", {"bucket_cap_mb": "auto"}),
    Row("compression: bf16", {"compression": "bf16"}),
    Row("compression: powersgd, rank 1", {"compression": "powersgd", "powersgd": {"start_step": 50}}),
    Row(
        "compression: powersgd, rank 4",
        {"compression": "powersgd", "powersgd": {"start_step": 50, "matrix_approximation_rank": 4}},
    ),
    Row("local_sgd, period 8", {"local_sgd": {"period": 8}}),
    Row("local_sgd, period 8, start_step 100", {"local_sgd": {"period": 8, "start_step": 100}}),
    Row("DiLoCo, period 32", {"local_sgd": {"period": 32, "outer_optimizer": {}}}),
]


def run(link: SlowLink, trainer: str, row: Row, port: int, steps: int) -> dict:
    """The time of a step, in the last windows of ThroughputMonitor; bytes that a rank sends, start and validation included."""
    strategy = json.dumps({"class_path": "ddp", "init_args": row.options})
    with tempfile.TemporaryDirectory() as folder:
        words = [trainer, "fit", *MODEL, "--trainer.strategy", strategy, "--trainer.default_root_dir", folder]
        words += ["--trainer.devices", "1", "--trainer.num_nodes", "2", "--trainer.max_steps", str(steps)]
        before = [link.bytes_sent(node) for node in (0, 1)]
        processes = []
        for node in (0, 1):
            place = {"RANK": node, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "NODE_RANK": node}
            place |= {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
            environment = os.environ | {name: str(value) for name, value in place.items()}
            processes.append(
                subprocess.Popen(
                    link.command(node, words), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
                )
            )
        errors = [process.communicate()[1].decode() for process in processes]
        if any(process.returncode for process in processes):
            sys.exit(f"{row.title}: a rank has failed\n{errors[0]}\n{errors[1]}")
        sent = sum(link.bytes_sent(node) for node in (0, 1)) - sum(before)
        lines = next(pathlib.Path(folder).rglob("metrics.jsonl")).read_text().splitlines()
    last: dict = {}
    for line in lines:
        last |= json.loads(line)
    return {
        "option": row.title,
        "ms_per_step": 1000 / last["device/batches_per_sec"],
        "mb_per_step": sent / 2 / steps / 1e6,
        "train_loss": last["train_loss"],
        "val_acc": last["val_acc"],
    }


def table(results: list[dict]) -> str:
    first = results[0]
    lines = [
        "| option | ms a step | times faster | MB a rank sends in a step | train_loss | val_acc |",
        "|---|---|---|---|---|---|",
    ]
    for r in results:
        lines.append(
            f"| `{r['option']}` | {r['ms_per_step']:.0f} | {first['ms_per_step'] / r['ms_per_step']:.1f} "
            f"| {r['mb_per_step']:.2f} | {r['train_loss']:.3f} | {r['val_acc']:.3f} |"
        )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainer", required=True, help="the built program")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--mbit", type=float, default=1000)
    parser.add_argument("--delay_ms", type=float, default=5, help="in each direction")
    parser.add_argument("--steps", type=int, default=460)
    parser.add_argument("--rows", default="", help="only rows whose titles contain this")
    arguments = parser.parse_args()
    results = []
    with SlowLink(arguments.mbit, arguments.delay_ms / 1000) as link:
        for number, row in enumerate(ROWS):
            if arguments.rows in row.title:
                results.append(run(link, arguments.trainer, row, 29500 + number, arguments.steps))
                print(results[-1], file=sys.stderr, flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "slow_networks.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.out / "slow_networks.md").write_text(table(results))
    print(table(results))


if __name__ == "__main__":
    main()
