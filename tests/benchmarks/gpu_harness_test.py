#!/usr/bin/env python3
"""What benchmarks/gpu.sh does with what programs report: with programs of its own in the places of gpu_bench and Python, so that it
needs no GPU, no torch and no time."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Reports for each case what the file `answer` beside it says: samples and parameters, or `sleep` behind the first case.
PROGRAM = """#!{python}
import json, os, sys, time
here = os.path.dirname(os.path.abspath(__file__))
if sys.argv[1] == "-c":
    print(json.dumps({{"Python": "3", "torch": "none", "lightning": "none", "triton": "none", "at": ""}}))
    sys.exit()
answer = json.load(open(os.path.join(here, "answer")))
given = dict(zip(sys.argv[1:], sys.argv[2:]))
if "signal" in answer:
    os.kill(os.getpid(), answer["signal"])
if "says" in answer:
    sys.exit(answer["says"])
report = []
for case in json.load(open(given["--plan"])):
    report.append({{"id": case["id"], **answer}})
    json.dump(report, open(given["--report"], "w"))
    if answer.get("sleep"):
        time.sleep(answer["sleep"])
"""
GOOD = {"samples": [{"step_s": 0.002}, {"step_s": 0.004}, {"step_s": 0.001}], "parameters": 7, "losses": [2.0, 1.5]}


class Harness(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.at = Path(self.folder.name)
        for name in ("bin/gpu_bench", "python/python"):
            path = self.at / name
            path.parent.mkdir()
            path.write_text(PROGRAM.format(python=sys.executable))
            path.chmod(0o755)
        self.answer("bin", GOOD)
        self.answer("python", GOOD)

    def tearDown(self):
        self.folder.cleanup()

    def answer(self, where, values):
        (self.at / where / "answer").write_text(json.dumps(values))

    def run_gpu(self, *arguments):
        env = dict(os.environ, FULGUR_BENCHMARK_PYTHON=sys.executable, PYTHONDONTWRITEBYTECODE="1")
        command = [ROOT / "benchmarks/gpu.sh", "--device", "cpu", "--bin", self.at / "bin", "--python", self.at / "python/python", "--out", self.at / "out"]
        done = subprocess.run([*map(str, command), *arguments], env=env, capture_output=True, text=True)
        results = json.loads((self.at / "out/results.json").read_text()) if (self.at / "out/results.json").exists() else {}
        text = (self.at / "out/results.md").read_text() if results else ""
        return done, results.get("benchmarks", {}), text

    def test_rows_have_best_and_median_of_all_rounds(self):
        (self.at / "bin/commit").write_text("0123abcd\n")
        done, benchmarks, text = self.run_gpu("G1", "--rounds", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {row["title"]: row for row in benchmarks["G1"]["tables"][0]["rows"]}
        self.assertEqual(len(rows["Fulgur"]["samples"]), 6)
        self.assertEqual(rows["Fulgur"]["values"]["µs a step"], {"best": 1000, "median": 2000})
        self.assertEqual(rows["Lightning, all off"]["over"], {"row": "Fulgur, capture", "ratio": 1})
        self.assertIn("Parameter counts and losses agree", text)
        self.assertEqual(benchmarks["G1"]["conditions"]["commit"], "0123abcd")
        self.assertIn("## G3: GPT-2 124M\n\nnot measured", text)

    def test_results_of_other_calls_are_kept_and_those_of_other_machines_are_not(self):
        self.run_gpu("G1")
        _, benchmarks, _ = self.run_gpu("G5")
        self.assertEqual(sorted(benchmarks), ["G1", "G5"])
        stored = json.loads((self.at / "out/results.json").read_text())
        stored["machine"]["CPU"] = "another"
        (self.at / "out/results.json").write_text(json.dumps(stored))
        _, benchmarks, _ = self.run_gpu("G5")
        self.assertEqual(sorted(benchmarks), ["G5"])

    def test_what_takes_too_long_is_ended_and_what_it_measured_is_kept(self):
        self.answer("bin", GOOD | {"sleep": 60})
        done, benchmarks, text = self.run_gpu("G1", "--rounds", "1", "--minutes-each", "0.02")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {row["title"]: row for row in benchmarks["G1"]["tables"][0]["rows"]}
        self.assertEqual(len(rows["Fulgur"]["samples"]), 3)
        self.assertEqual(rows["Fulgur, capture"]["samples"], [])
        self.assertIn("| Fulgur, capture | not measured: it took longer than 1 s |", text)
        self.assertEqual(len(rows["PyTorch by hand"]["samples"]), 3)

    def test_nothing_is_begun_when_the_time_is_up(self):
        self.answer("bin", GOOD | {"sleep": 60})
        _, benchmarks, text = self.run_gpu("G1", "G5", "--minutes", "0.03")
        self.assertIn("not measured: the time was up", text)
        self.assertTrue(all(not row["samples"] for table in benchmarks["G5"]["tables"] for row in table["rows"]))

    def test_a_run_without_any_figure_does_not_replace_what_is_there(self):
        _, before, _ = self.run_gpu("G1")
        self.answer("bin", {"says": "no device 'cuda'"})
        self.answer("python", {"says": "torch is not there"})
        done, after, _ = self.run_gpu("G1")
        self.assertEqual(before, after)
        self.assertEqual(done.returncode, 1)
        self.assertIn("nothing was measured: no device 'cuda'; torch is not there", done.stderr)

    def test_what_is_missing_is_said_in_its_rows(self):
        self.answer("python", {"says": "torch is not there: No module named 'torch'"})
        done, _, text = self.run_gpu("G1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| PyTorch by hand | not measured: torch is not there: No module named 'torch' |", text)

    def test_on_a_gpu_figures_of_the_peers_alone_are_an_error(self):
        self.answer("bin", {"says": "gpu_bench: no device 'cuda'"})
        done, benchmarks, _ = self.run_gpu("G1", "--device", "cuda")
        self.assertEqual(done.returncode, 1)
        self.assertIn("nothing of Fulgur was measured, only its peers: gpu_bench: no device 'cuda'", done.stderr)
        self.assertTrue(any(row["samples"] for row in benchmarks["G1"]["tables"][0]["rows"]))

    def test_a_pack_has_cuda_and_the_scripts_and_runs_where_it_lies(self):
        tree = self.at / "tree"
        shutil.copytree(ROOT / "benchmarks/gpu", tree / "benchmarks/gpu")
        shutil.copy(ROOT / "benchmarks/gpu.sh", tree / "benchmarks/gpu.sh")
        for folder in ("bin", "lib"):
            (tree / "build/release" / folder).mkdir(parents=True)
        shutil.copy(shutil.which("true"), tree / "build/release/bin/gpu_bench")
        pack = [tree / "benchmarks/gpu.sh", "--pack", self.at / "pack"]
        done = subprocess.run([*map(str, pack)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no lib/libfulgur_cuda.so", done.stderr)
        self.assertFalse((self.at / "pack").exists())
        (tree / "build/release/lib/libfulgur_cuda.so").write_text("")
        done = subprocess.run([*map(str, pack)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.at / "pack/libfulgur_cuda.so").exists())
        # From here on only the pack is there.
        shutil.rmtree(tree)
        shutil.copy(self.at / "bin/gpu_bench", self.at / "pack/gpu_bench")
        shutil.copy(self.at / "bin/answer", self.at / "pack/answer")
        env = dict(os.environ, FULGUR_BENCHMARK_PYTHON=sys.executable, PYTHONDONTWRITEBYTECODE="1")
        command = ["bash", self.at / "pack/benchmarks/gpu.sh", "G1", "--device", "cpu", "--python", self.at / "python/python", "--out", self.at / "out"]
        done = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("G1: 9 of 9 rows measured", done.stdout)

    def test_other_parameter_counts_are_an_error(self):
        self.answer("python", GOOD | {"parameters": 8})
        done, _, text = self.run_gpu("G5")
        self.assertEqual(done.returncode, 1)
        self.assertIn("Fulgur has 7 parameters but Python, foreach has 8 parameters", done.stderr)
        self.assertIn("**failed**", text)

    def test_losses_that_are_not_comparable_are_an_error(self):
        for losses in ([2.1, 1.5], [2.0, 1.0], [2.0, float("nan")], [None, 1.5]):
            self.answer("python", GOOD | {"losses": losses})
            self.assertEqual(self.run_gpu("G1")[0].returncode, 1, losses)

    def test_a_case_that_fails_is_an_error(self):
        self.answer("bin", {"failed": "CUDA out of memory"})
        done, _, text = self.run_gpu("G10", "--rounds", "1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("not measured: failed: CUDA out of memory", text)

    def test_a_program_that_crashes_is_an_error(self):
        self.answer("bin", {"signal": 11})
        done, _, text = self.run_gpu("G1", "--rounds", "1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("| Fulgur | not measured: ended by signal 11", text)
        self.assertNotIn("losses agree", text)

    def test_an_unknown_name_is_refused(self):
        done, _, _ = self.run_gpu("G42")
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no G42", done.stderr)


if __name__ == "__main__":
    unittest.main()
