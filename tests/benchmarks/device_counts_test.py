#!/usr/bin/env python3
"""benchmarks/device_counts.sh: what one row of Fulgur counts on simulated CUDA, and what it says of rows that it cannot count.

    device_counts_test.py FOLDER_OF_GPU_BENCH FOLDER_OF_SIMULATED_CUDA
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks/gpu"))
import device_counts  # noqa: E402

PROGRAMS = SIMULATOR = None


class Counts(unittest.TestCase):
    def count(self, *arguments, bin=None):
        with tempfile.TemporaryDirectory() as out:
            command = [sys.executable, ROOT / "benchmarks/gpu/device_counts.py", "mlp", "--bin", bin or PROGRAMS, "--out", out, *arguments]
            env = dict(os.environ, FULGUR_SIMULATED_CUDA_DIR=SIMULATOR, PYTHONDONTWRITEBYTECODE="1")
            done = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True)
            rows = json.loads((Path(out) / "device_counts.json").read_text())["tables"][0]["rows"]
            return done, {row["title"]: row for row in rows}

    def test_a_captured_step_is_one_graph_launch_and_waits_for_nothing(self):
        done, rows = self.count("--rows", "^Fulgur(, capture)?$")
        self.assertEqual(done.returncode, 0, done.stderr)
        header = next(line for line in done.stdout.splitlines() if line.startswith("| a step of"))
        self.assertEqual(header, "| a step of | " + " | ".join(device_counts.COLUMNS) + " |")
        eager, graph = rows["Fulgur"]["counts"], rows["Fulgur, capture"]["counts"]
        self.assertEqual((graph["graph_launches"], graph["launches"]), (1, 0))
        # Eleven layers: a product forward, two backward, but one in the first. Libraries multiply; the batch is two tensors.
        self.assertEqual((eager["graph_launches"], eager["library_launches"]), (0, 3 * 11 - 1))
        for counts in (eager, graph):
            self.assertEqual(device_counts.waits_of(counts), 0)
            self.assertEqual((counts["copies_to_device"], counts["bytes_to_device"]), (2, 64 * 256 * 4 + 64 * 8))
            self.assertEqual((counts["mallocs"], counts["host_mallocs"]), (0, 0))

    def test_a_row_that_cannot_be_counted_ends_it_with_1(self):
        with tempfile.TemporaryDirectory() as nowhere:
            done, rows = self.count("--rows", "^Fulgur$", bin=nowhere)
        self.assertEqual(done.returncode, 1)
        self.assertIn("Fulgur was not counted: gpu_bench is not there", done.stderr)
        self.assertIn("| Fulgur | not counted: gpu_bench is not there", done.stdout)
        self.assertNotIn("counts", rows["Fulgur"])

    def test_losses_that_differ_are_told(self):
        table = next(table for table in device_counts.tables() if table.name == "mlp")
        good = {"change": {}, "parameters": 7, "losses": [2.0, 1.5]}
        results = {row.title: good for row in table.rows}
        self.assertEqual(device_counts.losses_differ(table, results), [])
        for bad in ({"losses": [2.0, 1.6]}, {"losses": [2.0, None]}, {"losses": [float("nan"), 1.5]}, {"parameters": 8}):
            wrong = device_counts.losses_differ(table, results | {device_counts.FUSED: good | bad})
            self.assertEqual(len(wrong), 1, bad)
            self.assertIn(device_counts.FUSED, wrong[0])


if __name__ == "__main__":
    PROGRAMS, SIMULATOR = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
