#!/usr/bin/env python3
"""Writes the C++ blocks of README and docs/ as files that tests/docs/blocks.cpp includes.

    extract_blocks.py ROOT FOLDER

FOLDER gets a file PAGE.HEADING.NUMBER.inc for each block, and includes.inc with the headers of all of them. A line of `…`
or `// …`, which stands for code of the reader, becomes the macro FULGUR_ELLIPSIS; a `…` inside a line becomes {}. A file is
only written if its text changes.
"""
import os
import pathlib
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/site"))
from markdown_pages import pages_of_project  # noqa: E402

INCLUDE = re.compile(r'^#include [<"](.*)[>"]$')


def without_ellipses(line):
    if line.strip().startswith(("…", "// …")):
        return "FULGUR_ELLIPSIS"
    code, mark, comment = line.partition("//")
    return code.replace("…", "{}") + mark + comment


def extracted(root):
    """Text by file name."""
    files, includes = {}, set()
    for page in pages_of_project(root).values():
        for block in page.blocks:
            if block.language != "cpp":
                continue
            lines = []
            for line in block.text.rstrip("\n").split("\n"):
                header = INCLUDE.match(line)
                if header:
                    includes.add(f"#include <{header[1]}>")
                lines.append("" if header else without_ellipses(line))
            files[block.name + ".inc"] = f'#line {block.line} "{block.page}"\n' + "\n".join(lines) + "\n"
    files["includes.inc"] = "\n".join(sorted(includes)) + "\n"
    return files


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: extract_blocks.py ROOT FOLDER")
    folder = pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    files = extracted(sys.argv[1])
    for old in folder.glob("*.inc"):
        if old.name not in files:
            old.unlink()
    for name, text in files.items():
        if not (folder / name).exists() or (folder / name).read_text("utf-8") != text:
            (folder / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
