"""Results as data and as Markdown."""

import json
from pathlib import Path


def write_json(path: Path, machine: dict, rows: dict):
    path.write_text(json.dumps({"machine": machine, "parity": rows}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows] + [""]


def _cells(row):
    found, itself = row["fulgur"], row["itself"]
    aim = f"≤ {row['bound']:g}" if row["bound"] else ""
    met = {True: "yes", False: "**no**", None: ""}[row["met"]]
    return [
        row["title"],
        row["twin"],
        f"{row['lr']:g}",
        f"{row['first_loss']:.3f} → {row['last_loss']:.3f}",
        f"{found['loss']['relative']:.1e}",
        f"{itself['loss']['relative']:.1e}",
        f"{found['weights']:.1e}",
        f"{found['averaged']:.1e}",
        aim,
        met,
    ]


def write_markdown(path: Path, machine: dict, rows: dict, about: str):
    lines = ["# Results of `benchmarks/parity/run.sh`", "", about, ""]
    lines += _table(["machine", ""], [[key, value] for key, value in machine.items()])
    header = ["model", "twin", "learning rate", "loss", "losses apart", "PyTorch from itself", "weights apart", "averages apart"]
    for precision in dict.fromkeys(row["precision"] for row in rows.values()):
        of_it = [row for row in rows.values() if row["precision"] == precision]
        lines += [f"## {precision}", ""]
        lines += _table([*header, "aim", "met"], [_cells(row) for row in of_it])
    notes = {row["title"]: row["note"] for row in rows.values() if row["note"]}
    lines += [f"- {title}: {note}." for title, note in notes.items()]
    dates, commits = (sorted({row[key] for row in rows.values()}) for key in ("date", "commit"))
    lines += ["", f"{dates[0]} to {dates[-1]}, commit {', '.join(commits)}."]
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
