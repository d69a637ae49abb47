"""C7, PyTorch: torch.save of the state that c7_fulgur saves, with and without fsync, and the stall of the asynchronous save of
torch.distributed.checkpoint."""

import argparse
import os
import shutil
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from common import prepare, write_report

LARGEST = 7_000_000


def make_state(parameters):
    model, averages, squares = {}, {}, {}
    for i, begin in enumerate(range(0, parameters, LARGEST)):
        size = min(LARGEST, parameters - begin)
        model[f"layer{i}.weight"] = torch.full((size,), i + 0.1)
        averages[f"layer{i}.weight"] = torch.full((size,), i + 0.2)
        squares[f"layer{i}.weight"] = torch.full((size,), i + 0.3)
    return {"state_dict": model, "exp_avg": averages, "exp_avg_sq": squares}


def save(state, path, synced):
    with open(path, "wb") as file:
        torch.save(state, file)
        if synced:
            file.flush()
            os.fsync(file.fileno())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--report")
    args = parser.parse_args()
    prepare()
    warnings.filterwarnings("ignore")
    state = make_state(args.parameters)
    folder = args.scratch / "c7_torch"
    folder.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    rows = {"torch_save": [], "torch_save_synced": [], "dcp_async": []}

    def measure(row, function):
        cpu, wall = time.process_time(), time.perf_counter()
        result = function()
        rows[row].append({"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu})
        return result

    for number in range(args.rounds + 1):
        measure("torch_save", lambda: save(state, folder / "a.pt", synced=False))
        (folder / "a.pt").unlink()
        measure("torch_save_synced", lambda: save(state, folder / "b.pt", synced=True))
        (folder / "b.pt").unlink()
        done = measure("dcp_async", lambda: dcp.async_save(state, checkpoint_id=folder / "dcp"))
        done.result()
        shutil.rmtree(folder / "dcp")
        if number == 0:  # new memory, imports
            rows = {row: [] for row in rows}
    shutil.rmtree(folder)
    write_report(args.report, {"rows": rows})


main()
