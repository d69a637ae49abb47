"""Runs the techniques and writes techniques.json and techniques.md; called by benchmarks/techniques.sh."""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent
sys.path.append(str(FOLDER / "harness"))  # behind this folder, which has a report.py of its own

import machine  # noqa: E402
import measure  # noqa: E402
import report  # noqa: E402
from rows import ROWS  # noqa: E402
from works import write_text  # noqa: E402


def arguments():
    known = {row.name: row for row in ROWS}
    parser = argparse.ArgumentParser(prog="benchmarks/techniques.sh")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to run: {', '.join(known)}; default all")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side, in turn; default 3")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results; others that are there are kept")
    parser.add_argument("--quick", action="store_true", help="one run of little work: shows that all runs, the figures mean nothing")
    parser.add_argument("--build", type=Path, required=True, help=argparse.SUPPRESS)
    args = parser.parse_args()
    for name in args.names:
        if name not in known:
            parser.error(f"there is no {name}; there are {', '.join(known)}")
    if args.repeats < 1:
        parser.error("--repeats must be at least 1")
    args.techniques = [known[name] for name in args.names] if args.names else ROWS
    return args


def run_one(technique, args, places, work):
    conditions = {"date": machine.now(), "commit": machine.commit(FOLDER.parent), "repeats": args.repeats, "quick": args.quick}
    conditions["load_before"] = machine.load_average()
    env = measure.environment(places, technique.work)
    sides = {
        side: {"command": measure.command(places, technique.work, options, args.quick), "samples": []}
        for side, options in (("off", technique.off), ("on", technique.on))
    }
    for _ in range(args.repeats):
        for side in sides.values():
            side["samples"].append(measure.measure(side["command"], env, technique.result, work))
    conditions["load_after"] = machine.load_average()
    for side in sides.values():
        side["command"] = measure.shown(side["command"], technique.work, FOLDER.parent)
    return report.record(technique, sides, conditions)


def earlier(out, described):
    """Rows that are in `out` already, where they were measured on this machine."""
    try:
        found = json.loads((out / "techniques.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found["techniques"] if found["machine"] == described else {}


def write(out, described, rows):
    ordered = {row.name: rows[row.name] for row in ROWS if row.name in rows}
    out.mkdir(parents=True, exist_ok=True)
    report.write_json(out / "techniques.json", described, ordered)
    report.write_markdown(out / "techniques.md", described, ordered)


def main():
    # Ends as an error does: no run continues, and no folder remains.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args = arguments()
    if args.quick:
        args.repeats = 1
    described = machine.describe(args.build)
    rows = earlier(args.out, described)
    work = Path(tempfile.mkdtemp(prefix="fulgur-techniques-"))
    build = args.build.resolve()
    places = {
        "trainer": str(build / "bin" / "trainer"),
        "plugin": str(build / "lib" / "libtechniques_plugin.so"),
        "configs": str(FOLDER.parent / "configs"),
        "text": str(work / "text.txt"),
    }
    gpu = measure.has_gpu()
    try:
        write_text(work / "text.txt")
        for technique in args.techniques:
            why = technique.unavailable(gpu)
            rows[technique.name] = report.unmeasured(technique, why) if why else run_one(technique, args, places, work)
            ratio = rows[technique.name].get("ratio")
            told = why or f"CPU {ratio['cpu_s']:.2f} x, wall {ratio['wall_s']:.2f} x"
            print(f"{technique.name}: {told}", flush=True)
            write(args.out, described, rows)
    except measure.RunFailed as error:
        sys.exit(f"techniques.sh: {error}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(f"results: {args.out}/techniques.json, techniques.md")


main()
