"""Python's side of benchmarks/gpu.sh: runs the cases of a plan one by one and writes the report after each, so that what was
measured outlives a run that is ended.

    torch_bench.py --device cuda|cpu --plan PLAN.json --report REPORT.json --scratch FOLDER
"""

import argparse
import gc
import json
import os
import sys

try:
    import torch
except ImportError as error:
    sys.exit(f"torch is not there: {error}")

from counts import run_counts
from input_pipeline import run_input
from optimizer import run_optimizer
from training import run_training
from work import NotMeasured

KINDS = {"training": run_training, "optimizer": run_optimizer, "input": run_input, "counts": run_counts}


def main():
    parser = argparse.ArgumentParser()
    for name in ("device", "plan", "report", "scratch"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("this torch sees no CUDA device")
    torch.set_flush_denormal(True)
    with open(args.plan, encoding="utf-8") as file:
        plan = json.load(file)
    report = []
    for case in plan:
        try:
            result = KINDS[case["kind"]](case, args.device, args.scratch)
        except NotMeasured as reason:
            result = {"not_measured": str(reason)}
        except Exception as error:  # a case that fails leaves the others; main.py reports it
            result = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        gc.collect()
        report.append(result | {"id": case["id"]})
        with open(args.report + ".new", "w", encoding="utf-8") as file:
            json.dump(report, file)
        os.replace(args.report + ".new", args.report)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
