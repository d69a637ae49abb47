"""What the Python peers share: conditions, clocks, the report."""

import json
import os
import time

import torch


def prepare():
    """The conditions of every measurement."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.set_flush_denormal(True)


def cpu_of(process):
    """CPU seconds of another process, in steps of 10 ms."""
    with open(f"/proc/{process}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Laps:
    """Stamps between which a piece of work lies; the first one opens it. CPU time is of all threads of this process."""

    def __init__(self):
        self.stamps = []

    def stamp(self):
        self.stamps.append((time.process_time(), time.perf_counter()))

    def samples(self):
        pairs = zip(self.stamps, self.stamps[1:])
        return [{"cpu_s": b[0] - a[0], "wall_s": b[1] - a[1]} for a, b in pairs]


def write_report(path, report):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(report, file)
    # Nothing that was measured is left; the interpreter's end takes a second.
    os._exit(0)
