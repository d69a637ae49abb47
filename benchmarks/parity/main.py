"""Trains each model with the trainer and its twin with PyTorch, and compares them; called by benchmarks/parity/run.sh."""

import argparse
import copy
import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch

FOLDER = Path(__file__).resolve().parent
sys.path.append(str(FOLDER.parent / "harness"))  # after this folder, which has a report.py, too

import fulgur  # noqa: E402
import machine  # noqa: E402
import report  # noqa: E402
from cases import CASES  # noqa: E402
from compare import apart  # noqa: E402
from training import Settings, train  # noqa: E402

BOUNDS = {"32-true": 1e-4, "64-true": 1e-6, "bf16-mixed": None}
ROUNDING = {"32-true": 2**-24, "64-true": 2**-53, "bf16-mixed": 2**-24}
ABOUT = (
    "Each model, trained by `trainer fit`, and its twin in PyTorch, from the same weights and with the same batches: 200 steps of AdamW, two "
    "batches a step, the norm of the gradients limited to 1, an exponential average of the weights, one thread. *Losses apart* is the largest "
    "relative difference of a loss in any of the 200 steps. *PyTorch from itself* is the same for the twin and a second run of it whose weights "
    "begin with a relative error of half a rounding: so far may two correct programs be apart. The last weights and the averages "
    "are compared by the norm of their difference over their norm."
)


def arguments():
    parser = argparse.ArgumentParser(prog="benchmarks/parity/run.sh")
    parser.add_argument("names", nargs="*", metavar="MODEL", help=f"which to run: {', '.join(CASES)}; default all")
    parser.add_argument("--precision", action="append", choices=list(BOUNDS), help="default: each")
    parser.add_argument("--steps", type=int, default=Settings.steps, help=f"default {Settings.steps}")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results; others that are there are kept")
    parser.add_argument("--trainer", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--build", type=Path, required=True, help=argparse.SUPPRESS)
    args = parser.parse_args()
    for name in args.names:
        if name not in CASES:
            parser.error(f"there is no {name}; there are {', '.join(CASES)}")
    return args


def perturbed(model, relative, dtype):
    with torch.no_grad():
        for value in model.to(dtype).parameters():
            value.mul_(1 + relative * (2 * torch.rand(value.shape, dtype=dtype) - 1))
    return model


def run_one(case, precision, settings, trainer, work):
    torch.manual_seed(settings.seed)
    model = case.twin()
    arrays = case.arrays(case.batch_size * settings.batches)
    dtype = torch.float64 if precision == "64-true" else torch.float32
    starts = [copy.deepcopy(model), perturbed(copy.deepcopy(model), ROUNDING[precision], dtype)]
    folder = Path(tempfile.mkdtemp(dir=work))
    ours = fulgur.train(case, model, arrays, settings, precision, trainer, folder)
    shutil.rmtree(folder)
    theirs = []
    for start in starts:
        torch.manual_seed(settings.seed)  # as the trainer does before it trains, for models that draw numbers
        trained = train(case, start, arrays, settings, precision)
        trained.weights, trained.averaged = case.to_fulgur(trained.weights), case.to_fulgur(trained.averaged)
        theirs.append(trained)
    for trained in (*theirs, ours):
        # A weight that is tied to the embedding is in files once.
        for state in (trained.weights, trained.averaged):
            if "lm_head.weight" in state and not case.model["init_args"].get("tie_weights", True) is False:
                del state["lm_head.weight"]
    found, itself = apart(ours, theirs[0]), apart(theirs[1], theirs[0])
    losses = next(iter(theirs[0].losses.values()))
    bound = BOUNDS[precision]
    return {
        "title": case.title,
        "twin": case.twin_title,
        "precision": precision,
        "lr": case.lr,
        "steps": settings.steps,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "fulgur": found,
        "itself": itself,
        "bound": bound,
        "met": None if bound is None else found["loss"]["relative"] <= bound,
        "note": case.note,
        "date": machine.now(),
        "commit": machine.commit(FOLDER.parent.parent),
    }


def earlier(out, described):
    try:
        found = json.loads((out / "parity.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found["parity"] if found["machine"] == described else {}


def write(out, described, rows):
    order = [f"{name} {precision}" for precision in BOUNDS for name in CASES]
    rows = {key: rows[key] for key in order if key in rows}
    out.mkdir(parents=True, exist_ok=True)
    report.write_json(out / "parity.json", described, rows)
    report.write_markdown(out / "parity.md", described, rows, ABOUT)


def main():
    args = arguments()
    torch.set_num_threads(1)
    described = machine.describe(args.build) | {"torch": torch.__version__.split("+")[0]}
    rows, missed = earlier(args.out, described), []
    settings = Settings(steps=args.steps)
    work = tempfile.mkdtemp(prefix="fulgur-parity-")
    try:
        for name in args.names or CASES:
            case = CASES[name]
            for precision in [p for p in args.precision or BOUNDS if p in case.precisions]:
                row = rows[f"{name} {precision}"] = run_one(case, precision, settings, args.trainer, work)
                if row["met"] is False:
                    missed.append(f"{name} {precision}")
                ours, itself = row["fulgur"]["loss"], row["itself"]["loss"]["relative"]
                print(f"{name:16} {precision:10} losses apart {ours['relative']:.1e} (step {ours['step']}), PyTorch from itself {itself:.1e}", flush=True)
                write(args.out, described, rows)
    except (fulgur.TrainerFailed, ValueError) as error:
        sys.exit(f"parity: {name} {precision}: {error}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"results: {args.out}/parity.json, parity.md")
    if missed:
        sys.exit(f"parity: the bound is not met by {', '.join(missed)}")


main()
