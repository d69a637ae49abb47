"""Where and with what the figures were taken."""

import filecmp
import os
import platform
import re
import subprocess
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path


def _output(*command, cwd=None):
    try:
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _field(path, pattern):
    try:
        found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    except OSError:
        return ""
    return found.group(1).strip() if found else ""


def load_average():
    return round(os.getloadavg()[0], 2)


def now():
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def commit(root: Path):
    changed = _output("git", "status", "--porcelain", "--", ".", ":!benchmarks/results", cwd=root)
    return _output("git", "rev-parse", "--short=12", "HEAD", cwd=root) + ("-dirty" if changed else "")


def _same_libtorch(build: Path):
    """Whether the C++ programs and Python compute with the same library."""
    import torch

    ours = _field(build / "CMakeCache.txt", r"^FULGUR_TORCH_ROOT:PATH=(.*)$")
    try:
        same = filecmp.cmp(
            Path(ours) / "lib/libtorch_cpu.so", Path(torch.__file__).parent / "lib/libtorch_cpu.so", shallow=False
        )
    except OSError:
        return "unknown"
    return "the same file contents" if same else "different builds"


def cpus() -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0))


def has_instructions(flag: str) -> bool:
    """Whether the processor has what /proc/cpuinfo calls `flag`."""
    return flag in (_field("/proc/cpuinfo", r"^flags\s*:\s*(.*)$") or "").split()


def describe(build: Path) -> dict[str, str]:
    """The machine, and what built the programs in `build`."""
    compiler = _field(build / "CMakeCache.txt", r"^CMAKE_CXX_COMPILER:\w+=(.*)$")
    kib = int(_field("/proc/meminfo", r"^MemTotal:\s+(\d+)") or 0)
    model = _field("/proc/cpuinfo", r"^model name\s*:\s*(.*)$") or platform.processor()
    system = _field("/etc/os-release", '^PRETTY_NAME="(.*)"')
    family = _field("/proc/cpuinfo", r"^cpu family\s*:\s*(.*)$")
    number = _field("/proc/cpuinfo", r"^model\s*:\s*(.*)$")
    return {
        "CPU": f"{model} (family {family}, model {number})" if family else model,
        "cores": str(cpus()),
        "memory": f"{kib / 2**20:.0f} GiB",
        "system": f"{system}, Linux {platform.release()}",
        "compiler": (_output(compiler, "--version").splitlines() or ["?"])[0],
        "build type": _field(build / "CMakeCache.txt", r"^CMAKE_BUILD_TYPE:\w+=(.*)$"),
    }


def describe_with_peers(build: Path) -> dict[str, str]:
    """The same, and the Python of the peers, whose interpreter must be this one."""
    return describe(build) | {
        "Python": platform.python_version(),
        "torch": version("torch"),
        "lightning": version("lightning"),
        "libtorch_cpu.so of C++ and Python": _same_libtorch(build),
        "for all peers": "one thread (OMP_NUM_THREADS=1), denormals flushed, a malloc that keeps freed memory (GLIBC_TUNABLES)",
    }
