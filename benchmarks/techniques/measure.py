"""One `trainer fit`: its times, its memory, its result."""

import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from technique import Work


class RunFailed(Exception):
    pass


def has_gpu():
    return Path("/proc/driver/nvidia/version").exists()


def command(places: dict[str, str], work: Work, options: list[str], quick: bool) -> list[str]:
    """`{scratch}` and `{report}` are left open."""
    kept = {"scratch": "{scratch}", "report": "{report}"}
    # Last wins; what a technique says comes behind what the work says, but for a quick run's few batches.
    words = [*work.options, *options, *(work.quick if quick else []), "--report", "{report}"]
    if "--trainer.accelerator" not in options:
        words += ["--trainer.accelerator", "cpu"]
    return [places["trainer"], "fit", *(word.format(**places, **kept) for word in words)]


def shown(words: list[str], work: Work, root: Path) -> str:
    """The command as it is typed in the repository, on a text of the user's own."""
    return ("FULGUR_TEXT=text.txt " if work.text else "") + shlex.join(words).replace(f"{root}/", "")


def environment(places, work):
    env = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    env.pop("GLIBC_TUNABLES", None)  # malloc's settings are one of the techniques
    return env | ({"FULGUR_TEXT": places["text"]} if work.text else {})


def measure(words: list[str], env: dict[str, str], result: str, folder: Path) -> dict:
    """CPU seconds of the process and those that it started, their peak of resident memory, the last value of `result`."""
    scratch = Path(tempfile.mkdtemp(dir=folder))
    report, log = scratch / "report.json", scratch / "log"
    filled = [word.format(scratch=scratch, report=report) for word in words]
    try:
        with open(log, "wb") as file:
            began = time.monotonic()
            process = subprocess.Popen(filled, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
            try:
                _, status, usage = os.wait4(process.pid, 0)
            except BaseException:
                process.kill()
                raise
            wall = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)  # it was waited for here, not by Popen
        if process.returncode != 0 or not report.exists():
            raise RunFailed(f"code {process.returncode}: {' '.join(filled)}\n{log.read_text(errors='replace')[-3000:]}")
        told = json.loads(report.read_text(encoding="utf-8"))
        sample = {
            "wall_s": round(wall, 3),
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
            "train_s": round(told["train_seconds"], 3),
            "peak_mib": round(usage.ru_maxrss / 1024, 1),
            "result": told["metrics"].get(result),
        }
        on_device = [peak["bytes"] for peak in told["peak_memory"] if peak["device"] != "cpu"]
        return sample | ({"device_peak_mib": round(max(on_device) / 2**20, 1)} if on_device else {})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
