"""Compiles a file in which each of several classes has a mistake, and checks what the compiler says about each.

    compiler_says.py EXPECTED… -- COMMAND…

Each EXPECTED is a regular expression that the output must match in a line with `error: `."""
import re
import subprocess
import sys


def main() -> int:
    end = sys.argv.index("--")
    expected, command = sys.argv[1:end], sys.argv[end + 1:]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    errors = [line for line in run.stderr.splitlines() if "error: " in line]
    missing = [words for words in expected if not any(re.search(words, line) for line in errors)]
    if run.returncode == 0 or missing:
        print(run.stderr)
        print("the compiler accepts the file" if run.returncode == 0 else "", *[f"not said: {words}" for words in missing], sep="\n")
        return 1
    return 0


sys.exit(main())
