"""Results as data and as Markdown."""

import json
from pathlib import Path

from spec import Benchmark, Check, Results


def _kept(samples):
    """Few samples as they came; of many the file keeps their number only."""
    return [{key: float(f"{value:.6g}") for key, value in s.items()} for s in samples] if len(samples) <= 50 else []


def record(benchmark: Benchmark, results: Results, checks: list[Check], conditions: dict) -> dict:
    """All that is known of one benchmark, as it goes into results.json; the other reports are made from it."""
    titles = {peer.row: peer.title for peer in benchmark.peers} | benchmark.rows
    cases = []
    for case, rows in results.cases.items():
        listed = []
        for row in [name for name in titles if name in rows]:
            values = {
                metric.title: {
                    s: round(metric.of(results.statistic(row, metric.key, s, case), case), metric.digits + 2)
                    for s in ("min", "median")
                }
                for metric in benchmark.metrics
                if results.has(row, metric.key, case)
            }
            listed.append(
                {
                    "row": row,
                    "title": titles[row],
                    "values": values,
                    "count": len(rows[row]),
                    "samples": _kept(rows[row]),
                }
            )
        cases.append({"case": case, "plotted": benchmark.plotted.get(case, benchmark.metrics[0].title), "rows": listed})
    targets = []
    for target in benchmark.targets:
        least, median = target.value(results, "min"), target.value(results, "median")
        targets.append(
            {
                "title": target.title,
                "min": round(least, 3),
                "median": round(median, 3),
                "unit": target.unit,
                "aim": target.aim,
                "at_least": target.at_least,
                "reached": target.reached(least if target.judged == "min" else median),
            }
        )
    return {
        "title": benchmark.title,
        "about": benchmark.about,
        "conditions": {**conditions, "rounds": benchmark.rounds},
        "columns": [{"title": metric.title, "digits": metric.digits} for metric in benchmark.metrics],
        "cases": cases,
        "targets": targets,
        "checks": [vars(check) for check in checks],
        "notes": {peer.title: peer.note for peer in benchmark.peers if peer.note},
    }


def write_json(path: Path, machine: dict, benchmarks: dict):
    path.write_text(
        json.dumps({"machine": machine, "benchmarks": benchmarks}, indent=1, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )


def _number(value, digits):
    return f"{value:,.{digits}f}"


def _table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows] + [""]


def _aim(target, is_quick):
    if target["aim"] is None or is_quick:
        return "", ""
    sign = "≥" if target["at_least"] else "≤"
    return f"{sign} {target['aim']:g} {target['unit']}", "yes" if target["reached"] else "**no**"


def _section(name, data):
    conditions = data["conditions"]
    lines = [
        f"## {name}: {data['title']}",
        "",
        data["about"],
        "",
        f"{conditions['date']}, commit {conditions['commit']}, load average {conditions['load_before']} before and "
        f"{conditions['load_after']} after, {conditions['rounds']} rounds."
        + (" **`--quick`: little work, the figures mean nothing, and no aim is judged.**" if conditions["quick"] else ""),
        "",
    ]
    rows = []
    for target in data["targets"]:
        aim, reached = _aim(target, conditions["quick"])
        rows.append(
            [
                target["title"],
                f"{target['min']:.2f} {target['unit']}",
                f"{target['median']:.2f} {target['unit']}",
                aim,
                reached,
            ]
        )
    lines += _table(["", "of the least", "of the medians", "aim", "reached"], rows)
    for case in data["cases"]:
        columns = [c for c in data["columns"] if any(c["title"] in row["values"] for row in case["rows"])]
        header = [case["case"]] + [f"{c['title']}, {s}" for c in columns for s in ("best", "median")]
        rows = []
        for row in case["rows"]:
            cells = [row["title"]]
            for c in columns:
                value = row["values"].get(c["title"])
                cells += [_number(value[s], c["digits"]) if value else "" for s in ("min", "median")]
            rows.append(cells)
        lines += _table(header, rows)
    if data["notes"]:
        lines += [f"- {title}: {note}" for title, note in data["notes"].items()] + [""]
    if data["checks"]:
        lines += ["Checked:", ""]
        lines += [f"- {'' if c['good'] else '**failed** '}{c['title']}: {c['detail']}" for c in data["checks"]] + [""]
    return lines


def write_markdown(path: Path, machine: dict, benchmarks: dict):
    lines = [
        "# Results of `benchmarks/run.sh`",
        "",
        "Peers run in turn, each as a separate process; the best and the median over all rounds. CPU time is that of the process, "
        "which does not count what else the machine does. A ratio is of CPU times, and a peer has one thread, unless the benchmark says "
        "otherwise.",
        "",
    ]
    lines += _table(["machine", ""], [[key, value] for key, value in machine.items()])
    for name in sorted(benchmarks):
        lines += _section(name, benchmarks[name])
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
