"""Results as a plot: one column of each benchmark, one panel per case."""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot, ticker  # noqa: E402

OURS, OTHERS = "#c2185b", "#78909c"
COLUMNS = 2


def _panels(name, data):
    for case in data["cases"]:
        column = next(c for c in data["columns"] if c["title"] == case["plotted"])
        bars = [
            (row["title"], row["values"][column["title"]]["min"])
            for row in case["rows"]
            if column["title"] in row["values"]
        ]
        if bars:
            yield f"{name} {case['case'] or data['title']}: {column['title']}", bars, column["digits"]


def write_svg(path: Path, benchmarks: dict):
    grid = []
    for name in sorted(benchmarks):  # each benchmark begins a line
        panels = list(_panels(name, benchmarks[name]))
        grid += [panels[i : i + COLUMNS] for i in range(0, len(panels), COLUMNS)]
    if not grid:
        return
    pyplot.rcParams.update(
        {"font.size": 9, "svg.hashsalt": "fulgur", "svg.fonttype": "none", "font.family": "sans-serif"}
    )
    heights = [max(len(bars) for _, bars, _ in row) + 2.0 for row in grid]
    figure, axes = pyplot.subplots(
        len(grid),
        COLUMNS,
        figsize=(7.2 * COLUMNS, 0.27 * sum(heights)),
        squeeze=False,
        height_ratios=heights,
        layout="constrained",
    )
    for axis in axes.flat:
        axis.set_visible(False)
    for row, line in zip(axes, grid):
        for axis, (title, bars, digits) in zip(row, line):
            axis.set_visible(True)
            names, values = [b[0] for b in bars], [b[1] for b in bars]
            drawn = axis.barh(
                names, values, color=[OURS if n.startswith("Fulgur") else OTHERS for n in names], height=0.7
            )
            axis.bar_label(drawn, labels=[f"{v:,.{digits}f}" for v in values], padding=3)
            axis.set_title(title, fontsize=10, loc="left")
            axis.invert_yaxis()
            axis.xaxis.set_major_locator(ticker.MaxNLocator(5))
            axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
            axis.margins(x=0.18)
            axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
