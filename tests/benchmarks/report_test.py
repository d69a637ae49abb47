#!/usr/bin/env python3
"""What the Markdown of benchmarks/run.sh says of aims: those of a quick run, whose figures mean nothing, are not judged."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "harness"))

import report


def markdown(quick):
    target = {"title": "a over b", "min": 0.5, "median": 0.6, "unit": "×", "aim": 1, "at_least": True, "reached": False}
    conditions = {"date": "", "commit": "", "quick": quick, "load_before": "", "load_after": "", "rounds": 1}
    data = {"title": "", "about": "", "conditions": conditions, "targets": [target], "cases": [], "notes": {}, "checks": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.md"
        report.write_markdown(path, {}, {"C0": data})
        return path.read_text(encoding="utf-8")


class Aims(unittest.TestCase):
    def test_of_a_whole_run_are_judged(self):
        self.assertIn("| a over b | 0.50 × | 0.60 × | ≥ 1 × | **no** |", markdown(False))

    def test_of_a_quick_run_are_not(self):
        text = markdown(True)
        self.assertIn("| a over b | 0.50 × | 0.60 × |  |  |", text)
        self.assertIn("no aim is judged", text)


if __name__ == "__main__":
    unittest.main()
