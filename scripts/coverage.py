"""Adds up gcov's counts over a build; called by scripts/coverage.sh.

    coverage.py --build DIR --root DIR [--details FILE] [--least PERCENT]

A line counts once, whatever objects contain it, and has been run if it has been in any of them. Counted are the sources
and headers of the product: FOLDER/src, FOLDER/include, FOLDER/internal and apps/.
"""

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PRODUCT = re.compile(r"^(?:apps/.*|[a-z_]+/(?:src|include|internal)/.*)\.(?:cpp|h)$")
NOT_PRODUCT = ("tests/", "benchmarks/", "examples/", "simulated_cuda/", "build/")


def count_file(data, root, gcov):
    """The lines of the product in one file of counts: {(file, line): whether it was run}."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([gcov, "--json-format", "--object-file", data, data], cwd=folder, capture_output=True)
        if done.returncode != 0:
            sys.exit(f"coverage.py: {gcov} failed for {data}: {done.stderr.decode(errors='replace')[-500:]}")
        lines = {}
        for report in Path(folder).glob("*.gcov.json.gz"):
            with gzip.open(report, "rt", encoding="utf-8") as file:
                found = json.load(file)
            for source in found["files"]:
                path = os.path.join(found.get("current_working_directory", ""), source["file"])
                name = os.path.relpath(os.path.realpath(path), root)
                if name.startswith(NOT_PRODUCT) or not PRODUCT.match(name):
                    continue
                for line in source["lines"]:
                    key = name, line["line_number"]
                    lines[key] = lines.get(key, False) or line["count"] > 0
        return lines


def ranges(numbers):
    """`3-5, 9`."""
    parts = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts)


def percent(run, all_lines):
    return 100 * run / all_lines


def main():
    parser = argparse.ArgumentParser(prog="coverage.py")
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--details", type=Path)
    parser.add_argument("--least", type=float, default=0)
    parser.add_argument("--gcov", default=os.environ.get("GCOV", "gcov"))
    args = parser.parse_args()
    root = os.path.realpath(args.root)
    # Objects that no process has run have notes without counts: their lines count as not run.
    counts = sorted(os.path.realpath(path) for path in args.build.rglob("*.gcda"))
    if not counts:
        sys.exit(f"coverage.py: no counts (*.gcda) in {args.build}; did the tests run?")
    notes = sorted(os.path.realpath(path) for path in args.build.rglob("*.gcno"))
    without = [note for note in notes if not os.path.exists(note[: -len("gcno")] + "gcda")]
    lines = {}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for found in pool.map(lambda path: count_file(path, root, args.gcov), counts + without):
            for key, was_run in found.items():
                lines[key] = lines.get(key, False) or was_run
    if not lines:
        sys.exit(f"coverage.py: no line of the product in the counts of {args.build}")
    folders, files = {}, {}
    for (name, line), was_run in lines.items():
        folder = folders.setdefault(name.split("/")[0], [0, 0])
        folder[0] += was_run
        folder[1] += 1
        if not was_run:
            files.setdefault(name, set()).add(line)
    for folder, (run, all_lines) in sorted(folders.items()):
        print(f"{folder:16} {percent(run, all_lines):5.1f} %  {run} of {all_lines}")
    run = sum(lines.values())
    print(f"lines of the product that tests run: {percent(run, len(lines)):.1f} % ({run} of {len(lines)})")
    if args.details:
        text = "".join(f"{name}: {ranges(missed)}\n" for name, missed in sorted(files.items()))
        args.details.write_text(text, encoding="utf-8")
    if percent(run, len(lines)) < args.least:
        sys.exit(f"coverage.py: less than {args.least:g} %")


if __name__ == "__main__":
    main()
