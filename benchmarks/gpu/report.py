"""Results of benchmarks/gpu.sh as Markdown; what was not measured says why."""

import json
import math


def _median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def summarize(row, columns):
    """Best and median of each column that the row has."""
    values = {}
    for column in columns:
        found = [column.of(sample[column.key], row["case"]) for sample in row["samples"] if column.key in sample]
        if found:
            values[column.title] = {
                "best": round(max(found) if column.most else min(found), column.digits + 2),
                "median": round(_median(found), column.digits + 2),
            }
    return values


def record(benchmark, rows):
    """What results.json keeps of a benchmark. `rows`: {(table, row title): {"samples", …}}."""
    tables = []
    for table in benchmark.tables:
        kept = []
        for row in table.rows:
            found = rows[table.title, row.title] | {"case": row.case}
            kept.append({"title": row.title, "values": summarize(found, table.columns), **{k: v for k, v in found.items() if k != "case"}})
        medians = {row["title"]: _median([s["step_s"] for s in row["samples"]]) for row in kept if row["samples"]}
        for entry, row in zip(table.rows, kept):
            over = entry.over or table.over
            if row["title"] in medians and over in medians and over != row["title"]:
                row["over"] = {"row": over, "ratio": round(medians[row["title"]] / medians[over], 4)}
        columns = [{"title": c.title, "digits": c.digits} for c in table.columns]
        tables.append({"title": table.title, "columns": columns, "rows": kept})
    return {"title": benchmark.title, "about": benchmark.about, "tables": tables}


def checks(benchmark, rows):
    """Breaches, as sentences: other parameter counts, losses that are not comparable."""
    wrong = []
    for table in benchmark.tables:
        counts, firsts, lasts = {}, {}, {}
        for row in table.rows:
            found = rows[table.title, row.title]
            if not found["samples"]:
                continue
            group = row.case.get("bias", False)  # the only thing by which a table's rows may differ in parameters
            counts.setdefault(group, {}).setdefault(found["parameters"], row.title)
            if len(found.get("losses", [])) == 2:
                # JSON has no NaN: C++ writes null.
                first_loss, last_loss = (math.nan if loss is None else loss for loss in found["losses"])
                firsts.setdefault(group, []).append((first_loss, row.title))
                lasts.setdefault(group, []).append((last_loss, row.title))
        for group in counts.values():
            if len(group) > 1:
                wrong.append(f"{benchmark.name}, {table.title}: " + " but ".join(f"{title} has {count:,} parameters" for count, title in group.items()))
        if not benchmark.compare_losses:
            continue
        for group, first in firsts.items():
            scale = max(abs(value) for value, _ in first)
            # The same weights and batches: the first loss is that of the precision; later ones drift with the kernels' rounding.
            for what, values, allowed in (("first", first, 0.02), ("last", lasts[group], 0.2)):
                broken = [title for value, title in values if not math.isfinite(value)]
                if broken:
                    wrong.append(f"{benchmark.name}, {table.title}: the {what} loss of {', '.join(broken)} is not finite")
                    continue
                low, high = min(values), max(values)
                if high[0] - low[0] > allowed * scale:
                    wrong.append(f"{benchmark.name}, {table.title}: the {what} loss is {low[0]:.4g} of {low[1]} and {high[0]:.4g} of {high[1]}")
    return wrong


def _cell(row, column, statistic):
    value = row["values"].get(column["title"])
    return f"{value[statistic]:,.{column['digits']}f}" if value else ""


def _table(table):
    columns = table["columns"]
    header = [table["title"]] + [f"{c['title']}, {s}" for c in columns for s in ("best", "median")] + ["time of a step"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in table["rows"]:
        cells = [row["title"]]
        if row["samples"]:
            over = row.get("over")
            cells += [_cell(row, c, s) for c in columns for s in ("best", "median")] + [f"{over['ratio']:.3f} × {over['row']}" if over else ""]
        else:
            cells += [f"not measured: {row['reason']}".replace("|", "\\|")] + [""] * (2 * len(columns))
        lines.append("| " + " | ".join(cells) + " |")
    return lines + [""]


def write(out, machine, kept, known):
    """results.json and results.md, of the benchmarks in the order of `known`."""
    (out / "results.json").write_text(json.dumps({"machine": machine, "benchmarks": kept}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    lines = [
        "# Results of `benchmarks/gpu.sh`",
        "",
        "Processes of Fulgur and of Python run in turn, each started separately; best and median over all stretches of all rounds, wall time, the device waited "
        "for at the ends of a stretch only. The last column compares medians of the time of a step.",
        "",
        "| machine | |",
        "|---|---|",
        *(f"| {key} | {value} |" for key, value in machine.items()),
        "",
    ]
    for name in known:
        if name not in kept:
            lines += [f"## {name}: {known[name].title}", "", "not measured", ""]
            continue
        data = kept[name]
        conditions = data["conditions"]
        lines += [f"## {name}: {data['title']}", "", data["about"], ""]
        quick = ", **`--quick`: the figures mean nothing**" if conditions["quick"] else ""
        lines += [f"{conditions['date']}, commit {conditions['commit']}, {conditions['rounds']} rounds, `{conditions['command']}`{quick}.", ""]
        for table in data["tables"]:
            lines += _table(table)
        if data["wrong"]:
            lines += [f"- **failed**: {line}" for line in data["wrong"]] + [""]
        elif any(row["samples"] for table in data["tables"] for row in table["rows"]):
            lines += ["Parameter counts and losses agree.", ""]
    (out / "results.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
