"""Runs benchmarks of suite/ and writes results.json, results.md and results.svg; called by benchmarks/run.sh."""

import argparse
import importlib
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import machine
import plot
import report
import runner

FOLDER = Path(__file__).resolve().parent.parent


def suite():
    sys.path.insert(0, str(FOLDER / "suite"))
    found = {path.stem.split("_")[0].upper(): path.stem for path in (FOLDER / "suite").glob("c[0-9]*_*.py")}
    return dict(sorted(found.items(), key=lambda item: int(item[0][1:])))


def arguments(known):
    parser = argparse.ArgumentParser(prog="benchmarks/run.sh")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to run: {', '.join(known)}; default all")
    parser.add_argument("--repeats", type=int, help="rounds of each benchmark; default: its own")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder for the results; others that are there are kept; default build/benchmarks",
    )
    parser.add_argument(
        "--quick", action="store_true", help="few rounds of little work: shows that all runs, the figures mean nothing"
    )
    parser.add_argument("--build", type=Path, required=True, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.names = [name.upper() for name in args.names] or list(known)
    for name in args.names:
        if name not in known:
            parser.error(f"there is no {name}; there are {', '.join(known)}")
    if args.repeats is not None and args.repeats < 1:
        parser.error("--repeats must be at least 1")
    return args


def run_one(module, args, places, work):
    benchmark = importlib.import_module(module).benchmark(args.quick)
    if args.repeats:
        benchmark.rounds = args.repeats
    conditions = {
        "date": machine.now(),
        "commit": machine.commit(FOLDER.parent),
        "quick": args.quick,
        "load_before": machine.load_average(),
    }
    results = runner.run(benchmark, places, work)
    conditions["load_after"] = machine.load_average()
    return report.record(benchmark, results, benchmark.check(results), conditions)


def write(args, described, benchmarks):
    args.out.mkdir(parents=True, exist_ok=True)
    report.write_json(args.out / "results.json", described, benchmarks)
    report.write_markdown(args.out / "results.md", described, benchmarks)
    plot.write_svg(args.out / "results.svg", benchmarks)


def earlier(out, described):
    """Benchmarks that are in `out` already, where they were measured on this machine."""
    try:
        found = json.loads((out / "results.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found["benchmarks"] if found["machine"] == described else {}


def main():
    # Ends as an error does: no peer continues, and no folder remains.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    known = suite()
    args = arguments(known)
    described = machine.describe_with_peers(args.build)
    benchmarks = earlier(args.out, described)
    places = {
        "bin": str(args.build / "bin"),
        "lib": str(args.build / "lib"),
        "python": sys.executable,
        "peers": str(FOLDER / "peers"),
        "suite": str(FOLDER / "suite"),
    }
    work = Path(tempfile.mkdtemp(prefix="fulgur-benchmarks-"))
    failed = []
    try:
        for name in args.names:
            benchmarks[name] = run_one(known[name], args, places, work)
            failed += [f"{name}: {c['title']}: {c['detail']}" for c in benchmarks[name]["checks"] if not c["good"]]
            for target in benchmarks[name]["targets"]:
                verdict = "" if target["reached"] or args.quick else "  (falls short)"
                print(
                    f"{name}  {target['title']}: {target['min']:.2f} {target['unit']} (medians {target['median']:.2f}){verdict}"
                )
            write(args, described, benchmarks)
    except runner.PeerFailed as error:
        sys.exit(f"run.sh: {error}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"results: {args.out}/results.json, results.md, results.svg")
    if failed:
        sys.exit("run.sh: peers did not do the same work:\n  " + "\n  ".join(failed))


main()
