"""Runs the GPU benchmarks and writes results.json and results.md; called by benchmarks/gpu.sh. Needs Python's own library only:
where torch or Lightning is not there, the peers' rows say so."""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

import cases
import report

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# In a pack the programs lie in its root.
PROGRAMS = ROOT if (ROOT / "gpu_bench").exists() else ROOT / "build/release/bin"
NOT_BEGUN = "the time was up"
CRASHED = "ended by signal"


def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def versions(python):
    """Versions of the Python that peers run in, and where its torch lies."""
    code = (
        "import importlib.metadata as m, importlib.util as u, json, platform\n"
        "def v(n):\n try: return m.version(n)\n except m.PackageNotFoundError: return 'not there'\n"
        "s = u.find_spec('torch')\n"
        "print(json.dumps({'Python': platform.python_version(), 'torch': v('torch'), 'lightning': v('lightning'), 'triton': v('triton'), 'at': s.origin if s else ''}))"
    )
    found = output(python, "-c", code)
    return json.loads(found) if found else {"Python": "not there", "torch": "not there", "lightning": "not there", "triton": "not there", "at": ""}


def describe(device, python):
    machine = {}
    if device == "cuda":
        line = output("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader").splitlines()
        fields = [part.strip() for part in line[0].split(",")] if line else ["?", "?", "?"]
        machine = dict(zip(("device", "driver", "device memory"), fields))
    try:
        cpu = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        cpu = None
    machine |= {"CPU": cpu.group(1) if cpu else "?", "cores": str(len(os.sched_getaffinity(0)))}
    if device == "cpu":
        machine = {"device": "cpu"} | machine
    found = versions(python)
    at = found.pop("at")
    return machine | found, Path(at).parent if at else None


class Runner:
    """Runs the plan of one process and gives the results by id; a process that ends badly leaves a reason with the cases it had not done."""

    def __init__(self, args, torch_folder, work):
        self.args, self.work = args, work
        self.program = args.bin / "gpu_bench"
        folders = [args.bin, args.bin.parent / "lib"]
        self.waits = next((folder / "libhost_waits.so" for folder in folders if (folder / "libhost_waits.so").exists()), None)
        self.cpp_libraries = [str(folder) for folder in folders if folder.is_dir()]
        # A program that was carried here has no LibTorch but Python's.
        found = output("env", f"LD_LIBRARY_PATH={':'.join(self.cpp_libraries)}", "ldd", str(self.program))
        if self.program.exists() and torch_folder and (not found or "not found" in found):
            self.cpp_libraries.append(str(torch_folder / "lib"))

    def run(self, program, plan, counts_waits, limit_s):
        scratch = Path(tempfile.mkdtemp(dir=self.work))
        try:
            return self._run(program, plan, counts_waits, limit_s, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _run(self, program, plan, counts_waits, limit_s, scratch):
        plan_file, report_file, log = scratch / "plan.json", scratch / "report.json", scratch / "log"
        plan_file.write_text(json.dumps(plan), encoding="utf-8")
        command = [str(self.program)] if program == "fulgur" else [self.args.python, str(HERE / "peers" / "torch_bench.py")]
        if program == "fulgur" and not self.program.exists():
            return {}, "gpu_bench is not there (cmake --build build/release --target gpu_benchmarks)"
        command += ["--device", self.args.device, "--plan", str(plan_file), "--report", str(report_file), "--scratch", str(scratch)]
        env = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
        if program == "fulgur":
            env["LD_LIBRARY_PATH"] = ":".join([*self.cpp_libraries, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
        if counts_waits and self.waits:
            env["LD_PRELOAD"] = str(self.waits)
        with open(log, "wb") as file:
            process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
            try:
                code = process.wait(timeout=limit_s)
                reason = "" if code == 0 else self._last_line(log) or f"{program} ended with code {code}"
                if code < 0:
                    reason = f"{CRASHED} {-code}: {reason}"
            except subprocess.TimeoutExpired:
                reason = f"it took longer than {limit_s:.0f} s"
            finally:
                # DataLoader's workers and Inductor's compilers too.
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
        if self.args.verbose or (reason and "is not there" not in reason):
            sys.stderr.write(log.read_text(errors="replace")[-3000:])
        try:
            found = json.loads(report_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = []
        return {entry["id"]: entry for entry in found}, reason

    @staticmethod
    def _last_line(log):
        lines = log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""


def processes(benchmark):
    """Plans in the order in which they run: Fulgur and Python alternate."""
    plans = {}
    for table in benchmark.tables:
        for row in table.rows:
            entry = row.case | {"id": f"{table.title}\n{row.title}"}
            plans.setdefault((row.process, row.program), []).append(entry)
    return plans


def measure(benchmark, args, runner, deadline):
    rows = {(table.title, row.title): {"samples": [], "reason": NOT_BEGUN} for table in benchmark.tables for row in table.rows}
    for number in range(args.rounds):
        print(f"[{benchmark.name}] round {number + 1} of {args.rounds}", file=sys.stderr)
        for (_, program), plan in processes(benchmark).items():
            left = deadline - time.monotonic()
            if left < 1:
                break
            # What does not run here does not need to be tried again.
            plan = [case for case in plan if rows[tuple(case["id"].split("\n"))]["reason"] in ("", NOT_BEGUN)]
            if not plan:
                continue
            found, reason = runner.run(program, plan, benchmark.counts_waits, min(left, 60 * args.minutes_each))
            for case in plan:
                row, result = rows[tuple(case["id"].split("\n"))], found.get(case["id"])
                if result is None:
                    row["reason"] = row["reason"] if row["samples"] else reason or NOT_BEGUN
                    if reason.startswith(CRASHED):
                        row["failed"] = reason
                    continue
                row["reason"] = result.get("not_measured") or (f"failed: {result['failed']}" if "failed" in result else "")
                row["samples"] += result.get("samples", [])
                row |= {key: result[key] for key in ("parameters", "losses", "failed") if key in result}
    return rows


def earlier(out, machine):
    """Benchmarks that are in `out` already, where they were measured on this machine."""
    try:
        found = json.loads((out / "results.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found["benchmarks"] if found["machine"] == machine else {}


def arguments():
    known = list(cases.benchmarks(True, "cpu"))
    parser = argparse.ArgumentParser(prog="benchmarks/gpu.sh")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to run: {', '.join(known)}; default all")
    parser.add_argument("--bin", type=Path, default=PROGRAMS, help="folder of gpu_bench; default build/release/bin, or the pack that this lies in")
    parser.add_argument("--out", type=Path, default=ROOT / "build/benchmarks-gpu", help="folder for the results; others that are there are kept; default build/benchmarks-gpu")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="little work: shows that all runs, the figures mean nothing")
    parser.add_argument("--minutes", type=float, default=9, help="after which nothing more is begun, and what runs is ended; default 9")
    parser.add_argument("--minutes-each", type=float, default=4, help="of one process; default 4")
    parser.add_argument("--rounds", type=int, help="of each benchmark; default 2")
    parser.add_argument("--python", default=sys.executable, help="of the peers; default: the one that runs this")
    parser.add_argument("--verbose", action="store_true", help="shows what the programs print")
    args = parser.parse_args()
    args.names = [name.upper() for name in args.names] or known
    for name in args.names:
        if name not in known:
            parser.error(f"there is no {name}; there are {', '.join(known)}")
    if args.rounds is None:
        args.rounds = 1 if args.quick else 2
    if args.rounds < 1 or args.minutes <= 0 or args.minutes_each <= 0:
        parser.error("--rounds, --minutes and --minutes-each must be greater than 0")
    args.bin, args.out = args.bin.resolve(), args.out.resolve()
    return args


def built_from(folder):
    """The commit that the programs were packed at, or that of the repository they lie in."""
    try:
        return (folder / "commit").read_text(encoding="utf-8").strip()
    except OSError:
        commit = output("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD") or "unknown"
        return commit + ("-dirty" if output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no") else "")


def command(args):
    """As it was called, but for the folders of one machine."""
    parts = ["benchmarks/gpu.sh", *args.names, "--rounds", str(args.rounds), "--minutes", f"{args.minutes:g}"]
    return " ".join(parts + (["--device", args.device] if args.device != "cuda" else []) + (["--quick"] if args.quick else []))


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args = arguments()
    deadline = time.monotonic() + 60 * args.minutes
    machine, torch_folder = describe(args.device, args.python)
    known = cases.benchmarks(args.quick, args.device)
    kept = earlier(args.out, machine)
    args.out.mkdir(parents=True, exist_ok=True)
    commit = built_from(args.bin)
    wrong, measured, of_fulgur, reasons = [], 0, 0, {}
    work = Path(tempfile.mkdtemp(prefix="fulgur-gpu-"))
    try:
        runner = Runner(args, torch_folder, work)
        for name in args.names:
            rows = measure(known[name], args, runner, deadline)
            of_these = sum(1 for row in rows.values() if row["samples"])
            measured += of_these
            ours = [rows[table.title, row.title] for table in known[name].tables for row in table.rows if row.program == "fulgur"]
            of_fulgur += sum(1 for row in ours if row["samples"])
            reasons |= {row["reason"]: None for row in rows.values() if not row["samples"]}
            print(f"{name}: {of_these} of {len(rows)} rows measured", flush=True)
            if name in kept and not any(row["samples"] for row in rows.values()):
                continue  # what an earlier run measured is better than nothing
            found = report.checks(known[name], rows) + [f"{name}, {table}, {title}: {row['failed']}" for (table, title), row in rows.items() if "failed" in row]
            wrong += found
            conditions = {
                "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
                "commit": commit,
                "quick": args.quick,
                "rounds": args.rounds,
                "command": command(args),
            }
            kept[name] = report.record(known[name], rows) | {"conditions": conditions, "wrong": found}
            report.write(args.out, machine, kept, known)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    report.write(args.out, machine, kept, known)
    print(f"results: {args.out}/results.json, results.md")
    if measured == 0:
        sys.exit("gpu.sh: nothing was measured: " + "; ".join(reasons))
    if args.device == "cuda" and of_fulgur == 0:
        sys.exit("gpu.sh: nothing of Fulgur was measured, only its peers: " + "; ".join(reasons))
    if wrong:
        sys.exit("gpu.sh: peers did not do the same work, or failed:\n  " + "\n  ".join(wrong))


if __name__ == "__main__":
    main()
