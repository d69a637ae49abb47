"""What a benchmark is. Each file of suite/ makes one with a function `benchmark(quick)`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Peer:
    """One process of each round. `{bin}`, `{python}`, `{peers}`, `{suite}`, `{inputs}`, `{scratch}` and `{report}` are filled
    into its command; what it writes to `{report}` is `{"samples": […]}` (see `Results`)."""

    name: str
    title: str
    command: list[str]
    note: str = ""
    terminal: bool = False  # stderr and stdout are a terminal, as a user has it
    row: str = ""  # of the tables, where several processes share one; default: its name
    threads: int = 1  # in OMP_NUM_THREADS and MKL_NUM_THREADS

    def __post_init__(self):
        self.row = self.row or self.name


@dataclass
class Metric:
    """A column: the samples' value `key`, of which the least is the best, shown as `of(value, case)`."""

    key: str
    title: str
    of: Callable[[float, str], float] = lambda value, case: value
    digits: int = 2


@dataclass
class Target:
    """A number that the results come to and, where there is one, what it is to reach."""

    title: str
    value: Callable  # (results, statistic) -> number; the statistic is "min" or "median"
    aim: float | None = None
    at_least: bool = True
    unit: str = "×"
    judged: str = "min"  # which statistic the aim is for

    @classmethod
    def ratio(cls, title, slow, fast, key, aim=None, case="", at_least=True):
        """How many times `key` of the row `slow` is that of the row `fast`."""
        return cls(title, lambda results, statistic: results.ratio(slow, fast, key, statistic, case), aim, at_least)

    def reached(self, value: float) -> bool:
        return self.aim is None or (value >= self.aim if self.at_least else value <= self.aim)


@dataclass
class Check:
    title: str
    good: bool
    detail: str


@dataclass
class Benchmark:
    name: str
    title: str
    about: str
    peers: list[Peer]
    metrics: list[Metric]  # the first one is plotted where `plotted` names no other
    targets: list[Target]
    rounds: int
    warmup_rounds: int = 0
    warmup_samples: int = 0  # of each process, for reports with `samples`
    make_inputs: Callable[[Path], None] = lambda folder: None
    check: Callable[["Results"], list[Check]] = lambda results: []
    rows: dict[str, str] = field(default_factory=dict)  # titles of rows that are not peers
    plotted: dict[str, str] = field(default_factory=dict)  # titles of metrics by case


class Results:
    """Samples by case and row, and the reports as they came.

    A report's `samples` belong to the case "" and the row of its peer; `cases` are several cases of that row, `rows`
    several rows of the case "". A sample maps metric keys to numbers."""

    def __init__(self, benchmark: Benchmark):
        self.benchmark = benchmark
        self.cases: dict[str, dict[str, list[dict]]] = {}
        self.reports: dict[str, list[dict]] = {peer.name: [] for peer in benchmark.peers}

    def add(self, peer: Peer, report: dict):
        self.reports[peer.name].append(report)
        skipped = self.benchmark.warmup_samples
        if "samples" in report:
            self._row("", peer.row).extend(report["samples"][skipped:])
        for case, samples in report.get("cases", {}).items():
            self._row(case, peer.row).extend(samples)
        for row, samples in report.get("rows", {}).items():
            self._row("", row).extend(samples)

    def _row(self, case: str, row: str) -> list[dict]:
        return self.cases.setdefault(case, {}).setdefault(row, [])

    def statistic(self, row: str, key: str, statistic: str, case: str = "") -> float:
        values = sorted(s[key] for s in self.cases[case][row] if key in s)
        if statistic == "min":
            return values[0]
        middle = len(values) // 2
        return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2

    def has(self, row: str, key: str, case: str = "") -> bool:
        return any(key in s for s in self.cases.get(case, {}).get(row, []))

    def ratio(self, slow: str, fast: str, key: str, statistic: str, case: str = "") -> float:
        return self.statistic(slow, key, statistic, case) / self.statistic(fast, key, statistic, case)
