"""Compares two builds of Fulgur with the benchmarks of suite/; called by scripts/compare.sh.

The programs of both builds run in turn, A B A B …, and only Fulgur's own. Of each process the least time of each number
counts (of a difference, `added_s`, the middle). The result is the ratio B/A of the medians over the processes, with the
interval in which it lies in 95 of 100 repetitions, by resampling the processes. B is slower if the whole interval lies
above 1 by more than `--tolerance`.
"""

import argparse
import importlib
import json
import random
import shutil
import signal
import statistics
import sys
import tempfile
from pathlib import Path

import runner

FOLDER = Path(__file__).resolve().parent.parent
RESAMPLED = 2000


def suite():
    sys.path.insert(0, str(FOLDER / "suite"))
    found = {path.stem.split("_")[0].upper(): path.stem for path in (FOLDER / "suite").glob("c[0-9]*_*.py")}
    return dict(sorted(found.items(), key=lambda item: int(item[0][1:])))


def numbers_of(report, peer, keys):
    """What one process measured: its number by case, row and key."""
    rows = {("", peer.row): report.get("samples", [])}
    rows |= {(case, peer.row): samples for case, samples in report.get("cases", {}).items()}
    rows |= {("", row): samples for row, samples in report.get("rows", {}).items()}
    numbers = {}
    for (case, row), samples in rows.items():
        for key in keys:
            found = [sample[key] for sample in samples if key in sample]
            if found:
                # The least of differences would flatter.
                numbers[case, row, key] = statistics.median(found) if key == "added_s" else min(found)
    return numbers


def measure(benchmark, builds, rounds):
    """Numbers of all processes, by side and by case, row and key."""
    peers = [peer for peer in benchmark.peers if peer.command[0].startswith("{bin}/")]
    peers = [peer for peer in peers if peer.name.startswith("fulgur")]
    keys = [metric.key for metric in benchmark.metrics]
    work = Path(tempfile.mkdtemp(prefix="fulgur-compare-"))
    sides = {side: {} for side in builds}
    try:
        inputs = work / "inputs"
        inputs.mkdir()
        benchmark.make_inputs(inputs)
        # The first round warms the files that both read.
        for number in range(rounds + 1):
            print(f"[{benchmark.name}] round {number} of {rounds}", file=sys.stderr)
            for side, build in builds.items():
                places = {
                    "bin": str(build / "bin"),
                    "lib": str(build / "lib"),
                    "python": sys.executable,
                    "peers": str(FOLDER / "peers"),
                    "suite": str(FOLDER / "suite"),
                    "inputs": str(inputs),
                }
                for peer in peers:
                    report = runner.measure(peer, places, work)
                    if number == 0:
                        continue
                    for name, value in numbers_of(report, peer, keys).items():
                        sides[side].setdefault(name, []).append(value)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return sides


def ratio_of(a, b):
    """The ratio of the medians, and its interval."""
    if statistics.median(a) <= 0:
        return None
    chance = random.Random(1)
    ratios = []
    for _ in range(RESAMPLED):
        below = statistics.median(chance.choices(a, k=len(a)))
        if below > 0:
            ratios.append(statistics.median(chance.choices(b, k=len(b))) / below)
    ratios.sort()
    low, high = ratios[int(0.025 * len(ratios))], ratios[int(0.975 * len(ratios))]
    return statistics.median(b) / statistics.median(a), low, high


def rows_of(name, sides, tolerance):
    rows = []
    for (case, row, key), a in sides["A"].items():
        b = sides["B"].get((case, row, key))
        found = ratio_of(a, b) if b else None
        if not found:
            continue
        ratio, low, high = found
        verdict = "slower" if low > 1 + tolerance else "faster" if high < 1 - tolerance else "same"
        rows.append(
            {
                "benchmark": name,
                "case": case,
                "row": row,
                "number": key,
                "A": statistics.median(a),
                "B": statistics.median(b),
                "ratio": ratio,
                "low": low,
                "high": high,
                "verdict": verdict,
            }
        )
    return rows


def arguments(known):
    parser = argparse.ArgumentParser(prog="scripts/compare.sh")
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks; default: C1 C2 C3 C4 C7")
    parser.add_argument("--rounds", type=int, default=7, help="processes of each program and commit; default 7")
    parser.add_argument("--tolerance", type=float, default=0.02, help="what counts as no difference; default 0.02, 2 %%")
    parser.add_argument("--quick", action="store_true", help="little work: shows that all runs, the figures mean nothing")
    parser.add_argument("--json", type=Path, help="write the rows to this file as well")
    parser.add_argument("--a", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--b", type=Path, required=True, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.names = [name.upper() for name in args.names] or ["C1", "C2", "C3", "C4", "C7"]
    for name in args.names:
        if name not in known:
            parser.error(f"there is no {name}; there are {', '.join(known)}")
    if args.rounds < 3:
        parser.error("--rounds must be at least 3: fewer give no bounds")
    return args


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    known = suite()
    args = arguments(known)
    rows = []
    try:
        for name in args.names:
            benchmark = importlib.import_module(known[name]).benchmark(args.quick)
            rows += rows_of(name, measure(benchmark, {"A": args.a, "B": args.b}, args.rounds), args.tolerance)
    except runner.PeerFailed as error:
        sys.exit(f"compare.sh: {error}")
    title = f"{'':3}  {'row':44}  {'number':8}  {'A':>10}  {'B':>10}  {'B/A':>6}  {'95 % interval':>15}"
    print(title)
    for row in rows:
        what = f"{row['row']}{', ' if row['case'] else ''}{row['case']}"
        print(
            f"{row['benchmark']:3}  {what[:44]:44}  {row['number']:8}  {row['A']:10.4g}  {row['B']:10.4g}  {row['ratio']:6.3f}  "
            f"{row['low']:6.3f} to {row['high']:5.3f}  {row['verdict'] if row['verdict'] != 'same' else ''}".rstrip()
        )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    slower = sum(row["verdict"] == "slower" for row in rows)
    faster = sum(row["verdict"] == "faster" for row in rows)
    print(f"{len(rows)} numbers: {slower} slower, {faster} faster, by more than {100 * args.tolerance:g} % and the noise")
    if not rows:
        sys.exit("compare.sh: the two builds have no number in common")
    sys.exit(1 if slower else 0)


main()
