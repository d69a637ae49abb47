"""Results as data and as Markdown."""

import json
from pathlib import Path

STATISTICS = {"wall_s": min, "cpu_s": min, "train_s": min, "peak_mib": max, "device_peak_mib": max}


def summary(samples: list[dict]) -> dict:
    """The least of the times, the most of the memory; a seeded result is the same each time, the last one stands."""
    found = {key: best([s[key] for s in samples]) for key, best in STATISTICS.items() if all(key in s for s in samples)}
    return found | {"result": samples[-1]["result"]}


def record(technique, sides: dict[str, dict], conditions: dict) -> dict:
    """All that is known of one technique; `sides` has commands and samples of `off` and `on`."""
    row = {"title": technique.title, "line": technique.line, "always_on": technique.always, "note": technique.note}
    row |= {"work": technique.work.title, "metric": technique.result, "conditions": conditions}
    for side, data in sides.items():
        row[side] = data | {"summary": summary(data["samples"])}
    off, on = (row[side]["summary"] for side in ("off", "on"))
    row["ratio"] = {key: round(off[key] / on[key], 3) for key in STATISTICS if key in off and key in on and on[key]}
    return row


def unmeasured(technique, why: str) -> dict:
    return {"title": technique.title, "line": technique.line, "always_on": technique.always, "note": technique.note, "unmeasured": why}


def write_json(path: Path, machine: dict, rows: dict):
    path.write_text(json.dumps({"machine": machine, "techniques": rows}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows] + [""]


def _pair(row, key, digits):
    off, on = row["off"]["summary"], row["on"]["summary"]
    return f"{off[key]:.{digits}f} → {on[key]:.{digits}f}"


def _result(row):
    values = [row[side]["summary"]["result"] for side in ("off", "on")]
    if None in values:
        return ""
    same = values[0] == values[1]
    return f"{row['metric']} {values[0]:.4f}, the same" if same else f"{row['metric']} {values[0]:.4f} → {values[1]:.4f}"


def _memory(row):
    text = _pair(row, "peak_mib", 0)
    return text + (f"; device {_pair(row, 'device_peak_mib', 0)}" if "device_peak_mib" in row["off"]["summary"] else "")


def _cells(row):
    line = f"`{row['line']}`" if row["line"] and row["line"] != "always" else row["line"]
    if "unmeasured" in row:
        return [row["title"], line, row["unmeasured"], "", "", "", "", ""]
    ratio = row["ratio"]
    return [
        row["title"], line, _pair(row, "cpu_s", 2), f"{ratio['cpu_s']:.2f}", _pair(row, "wall_s", 2), f"{ratio['wall_s']:.2f}", _memory(row), _result(row),
    ]  # fmt: skip


def write_markdown(path: Path, machine: dict, rows: dict):
    lines = [
        "# Results of `benchmarks/techniques.sh`",
        "",
        "Each technique: `trainer fit` without it and with it, in turn, whole processes with their start and their validation. The least of the "
        "times (CPU time does not count what else the machine does), the most of the resident memory; × is how many times the time without is "
        "that with. techniques.json has every sample and command.",
        "",
    ]
    lines += _table(["machine", ""], [[key, value] for key, value in machine.items()])
    lines += _table(["technique", "switched on by", "CPU s", "×", "wall s", "×", "peak MiB", "result"], [_cells(row) for row in rows.values()])
    lines += ["What was run:", ""]
    for row in (row for row in rows.values() if "unmeasured" not in row):
        where = row["conditions"]
        lines.append(
            f"- {row['title']}: {row['work']}{'; ' + row['note'] if row['note'] else ''}. {where['date']}, commit {where['commit']}, "
            f"{where['repeats']} times each, load average {where['load_before']} to {where['load_after']}."
        )
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
