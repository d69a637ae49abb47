#!/usr/bin/env python3
"""Measures which library multiplies float32 matrices faster on this processor, for the table in
core/src/device/cpu_matmul.cpp.

    cmake --build build/release --target cpu_matmul
    scripts/measure_matmul.py build/release/bin/cpu_matmul [RUNS]

Runs the benchmark RUNS times (5 if it is not given), takes the median gain of each product, prints the row of this
processor, and lists the products for which the rule of shapes (MatmulShapes in cpu_matmul_rule.h) chooses the slower
library.
"""

import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile

# oneDNN must gain this much: below it, the noise of a measurement decides.
LEAST_GAIN = 1.05


def reports_of(program, runs):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "report.json"
        for _ in range(runs):
            subprocess.run([program, "--report", str(path)], check=True, stdout=subprocess.DEVNULL)
            yield json.loads(path.read_text())


def products_of(reports):
    """Each product once, with the medians over the runs."""
    for rows in zip(*(report["rows"] for report in reports)):
        first = rows[0]
        work = 2e-9 * first["batch"] * first["m"] * first["n"] * first["k"]
        yield {
            **first,
            "gain": statistics.median(row["libtorch_s"] / row["onednn_s"] for row in rows),
            "libtorch_gf": statistics.median(work / row["libtorch_s"] for row in rows),
            "onednn_gf": statistics.median(work / row["onednn_s"] for row in rows),
        }


def mean_gain(products):
    return math.exp(statistics.fmean(math.log(product["gain"]) for product in products))


def row_of(report, taken):
    faster = "onednn" if mean_gain(taken) >= LEAST_GAIN else "mkl"
    rates = {
        key: f"{min(product[key] for product in taken):.0f} to {max(product[key] for product in taken):.0f}"
        for key in ("libtorch_gf", "onednn_gf")
    }
    vendor, avx512 = report["vendor"], str(report["avx512"]).lower()
    shapes = f"{{.least_work = {report['least_work']}, .least_size = {report['least_size']}}}"
    return (
        f"    // MKL {rates['libtorch_gf']}, oneDNN {rates['onednn_gf']}\n"
        f"    {{CpuKind::Vendor::{vendor}, {avx512}, {report['family']}, {{CpuMatmul::{faster}, {shapes}}}}},"
    )


def describe(product):
    sizes = " x ".join(str(product[size]) for size in ("batch", "m", "n", "k"))
    return f"  {product['what']:8} {sizes}: {product['gain']:.2f} x"


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    reports = list(reports_of(sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 5))
    products = list(products_of(reports))
    taken = [product for product in products if product["taken"]]
    block = statistics.median(report["block_s"][0] / report["block_s"][1] for report in reports)
    small = statistics.median(1e9 * (report["small_call_s"][1] - report["small_call_s"][0]) for report in reports)
    print(f"gain of oneDNN over the products that it gets: {mean_gain(taken):.2f} x; step of a GPT block: {block:.2f} x")
    print(f"what a small product costs more: {small:.0f} ns")
    print("the row of this processor, in GFLOP/s of one thread:")
    print(row_of(reports[0], taken))
    slower = [product for product in taken if product["gain"] < 1]
    print(f"products that oneDNN gets and computes more slowly ({len(slower)} of {len(taken)}):")
    print("\n".join(map(describe, slower)) or "  none")
    missed = [product for product in products if not product["taken"] and product["gain"] > LEAST_GAIN]
    print(f"products that oneDNN would compute faster, but does not get ({len(missed)}):")
    print("\n".join(map(describe, missed)) or "  none")


if __name__ == "__main__":
    main()
