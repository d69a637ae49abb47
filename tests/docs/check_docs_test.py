#!/usr/bin/env python3
"""Breaks each rule of check_pages.py, check_blocks.py and docs/site/check_site.py once in a separate tree and expects it to be reported; keeps each
once and expects silence.

    check_docs_test.py FORK_SERVER
"""
import os
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_blocks  # noqa: E402
import check_pages  # noqa: E402
import check_site  # noqa: E402 (check_pages.py adds docs/site to the path)
import extract_blocks  # noqa: E402

FILES = {
    "README.md": "# A\n\n## Some heading: two\n",
    "CONTRIBUTING.md": "# C\n",
    "docs/a.md": "# A\n",
    "docs/site/mkdocs.yml": "nav:\n  - Start:\n      - index.md\n      - contributing.md\n      - The page: a.md\n",
    "CMakePresets.json": '{"configurePresets": [{"name": "release"}]}',
    "CMakeLists.txt": "add_executable(tool tool.cpp)\n",
    "cmake/F.cmake": "function(fulgur_own a)\nendfunction()\n",
    "scripts/a.sh": "case $1 in --fast) ;; esac\n",
    "configs/a.yaml": check_blocks.BASE,
}


def fence(language, text):
    return f"# A\n\n```{language}\n{text}\n```\n"


# (file, text, words that the report must have; None: no report)
PAGES = [
    ("docs/b.md", "# B\n", "docs/b.md:1: is not in the navigation"),
    ("docs/site/mkdocs.yml", "nav:\n  - index.md\n  - contributing.md\n  - a.md\n  - b.md\n", "there is no page docs/b.md"),
    ("docs/site/mkdocs.yml", "nav:\n  - index.md\n  - contributing.md\n  - a.md\n  - a.md\n", "a.md is in the navigation twice"),
    ("docs/a.md", "# A\n\n[x](b.md)\n", "docs/a.md:3: there is no docs/b.md"),
    ("docs/a.md", "# A\n\ntext [x\ny](b.md)\n", "docs/a.md:3: there is no docs/b.md"),
    ("docs/a.md", "[x](../configs/a.yaml) [y](https://b.org/c.md) `[z](b.md)` \n", None),
    ("docs/a.md", "```text\n[x](b.md)\n```\n", None),
    ("docs/a.md", "[x](../../other/README.md)\n", "there is no ../other/README.md"),
    ("docs/a.md", "# A\n\n[x](../README.md#some-heading)\n", "README.md has no heading for the anchor #some-heading"),
    ("docs/a.md", "# A\n\n## B\n\n## B\n\n[x](../README.md#some-heading-two) [y](#b-1)\n", None),
    ("docs/a.md", "# A\n\n[x](#b)\n", "docs/a.md has no heading for the anchor #b"),
    ("docs/a.md", fence("", "x"), "a block of code names its language"),
    ("docs/a.md", fence("rust", "x"), "got 'rust'"),
]
BLOCKS = [
    (fence("yaml", "trainer: {max_epoch: 1}"), "docs/a.md:4: trainer refuses this config: error: [config] block.yaml:1:11: trainer.max_epoch"),
    (fence("yaml", "trainer: {max_epochs: 1}\nmodel: {class_path: GPT, init_args: {n_head: 4}}"), None),
    (fence("yaml", "link:\n  model.init_args.num_classes: data.classes"), "SyntheticDataModule provides no data.classes"),
    (fence("yaml", "link:\n  model.init_args.num_classes: data.num_classes"), None),
    (fence("yaml", "transforms: [Resizee]"), "unknown image_transform 'Resizee'"),
    (fence("yaml", "  transforms: [RandomHorizontalFlip]"), None),
    (fence("yaml", "space:\n  optimizer.init_args.lrr: [1, 2]"), "trainer refuses this sweep"),
    (fence("yaml", "halving: {factor: 2, min_epoch: 1}"), "trainer refuses this sweep"),
    (fence("yaml", "halving: {factor: 2, min_epochs: 1}"), None),
    (fence("cpp", "int a;"), "no test compiles this block"),
    (fence("python", "a = (1,\n…"), "Python cannot parse this"),
    (fence("python", "a = …"), None),
    (fence("cmake", "add_executable(a a.cpp)\nfulgur_other(a)"), "CMake cannot run this"),
    (fence("cmake", "add_executable(a a.cpp)\nfulgur_own(a)"), None),
    (fence("cmake", "add_executable(a a.cpp"), "CMake cannot run this"),
    (fence("sh", "if true"), "bash cannot parse this"),
    (fence("console", "$ trainer fits --config c.yaml\nfits"), "there is no verb 'fits'"),
    (fence("console", "$ trainer runs --jsn\nfits"), "docs/a.md:4: trainer: runs has no option --jsn"),
    (fence("console", "$ trainer runs --json | grep a\nfits"), None),
    (fence("sh", "trainer runs --filter nonsense"), "docs/a.md:4: trainer ends with 2"),
    (fence("sh", "trainer export fulgur_logs/version_1/checkpoints/best.ckpt --format pt && trainer runs logs --filter 'status=finished'"), None),
    (fence("sh", "trainer fit --config c.yaml --model.hiden 3"), "model.init_args.hiden: unknown key"),
    (fence("sh", "true && A=1 srun -N 2 trainer fit --config configs/a.yaml \\\n  --trainer.max_epoch 3"), "trainer.max_epoch: unknown key"),
    (fence("sh", "trainer test --config c.yaml --resume"), "--resume is for fit"),
    (fence("sh", "nothing --here"), "there is no program nothing"),
    (fence("sh", "scripts/a.sh --slow"), "scripts/a.sh has no option --slow"),
    (fence("sh", "scripts/b.sh"), "there is no program scripts/b.sh"),
    (fence("sh", "scripts/a.sh --fast && cmake --preset release && cmake --build build/release --target tool && build/release/bin/tool"), None),
    (fence("sh", "cmake --preset other"), "there is no preset other"),
    (fence("sh", "cmake --build build/release --target other"), "there is no target other"),
    ("# A\n\n    trainer fits --config c.yaml\n", "there is no verb 'fits'"),
    ("# A\n\n    some drawing\n", "an indented block is commands or messages"),
    ("# A\n\n    error: [a] b\n\n- item\n\n      more of it\n", None),
    ("# A\n\nUse `trainer fits` here.\n", "`trainer fits`: there is no verb 'fits'"),
    ("# A\n\nUse `trainer runs\n--jsn` here.\n", "docs/a.md:3: `trainer runs --jsn`: runs has no option --jsn"),
    ("# A\n\nUse `trainer describe NAME`, `trainer fit --resume` and `trainer tune lr`.\n", None),
]
# Bodies of a page of a site.
SITES = [
    ('<a href="b.html#x">', None),
    ('<a href="b.html#y">', "leads to no anchor: b.html#y"),
    ('<a href="c.html">', "leads to no file: c.html"),
    ('<img src="c.png">', "leads to no file: c.png"),
    ('<a href="https://c.org/c.html">', None),
    ('<img src="https://c.org/c.png">', "is fetched from another machine: https://c.org/c.png"),
    ('<script src="https://c.org/c.js"></script>', "is fetched from another machine"),
    ('<link rel="stylesheet" href="https://c.org/c.css">', "is fetched from another machine"),
]


def tree(folder, changed):
    for name, text in {**FILES, **changed}.items():
        path = pathlib.Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return pathlib.Path(folder)


def judged(what, breaches, words, failures):
    if words is None and breaches:
        failures.append(f"{what!r}: expected no report, got {breaches}")
    elif words is not None and not any(words in breach for breach in breaches):
        failures.append(f"{what!r}: expected '{words}', got {breaches}")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: check_docs_test.py FORK_SERVER")
    failures = []
    for name, text, words in PAGES:
        with tempfile.TemporaryDirectory() as folder:
            judged((name, text), check_pages.check(tree(folder, {name: text}))[1], words, failures)
    for text, words in SITES:
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "index.html").write_text(text, "utf-8")
            (pathlib.Path(folder) / "b.html").write_text('<h1 id="x">', "utf-8")
            judged(text, check_site.check(pathlib.Path(folder))[1], words, failures)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = check_blocks.Trainer(os.path.abspath(sys.argv[1]), None, scratch)
        for text, words in BLOCKS:
            with tempfile.TemporaryDirectory() as folder:
                root = tree(folder, {"docs/a.md": text})
                pages = check_blocks.pages_of_project(root)
                checker = check_blocks.Checker(root, trainer, pathlib.Path(scratch), pages)
                checker.check()
                judged(text, checker.breaches, words, failures)
    with tempfile.TemporaryDirectory() as folder:
        files = extract_blocks.extracted(tree(folder, {"docs/a.md": "# A\n\n## B c\n\n" + fence("cpp", '#include <a.h>\nf(…);  // a … b\n// … more\n')[5:]}))
        expected = {"a.b_c.1.inc": '#line 6 "docs/a.md"\n\nf({});  // a … b\nFULGUR_ELLIPSIS\n', "includes.inc": "#include <a.h>\n"}
        if files != expected:
            failures.append(f"extract_blocks.py: expected {expected}, got {files}")
    print("\n".join(failures) if failures else f"{len(PAGES) + len(BLOCKS) + len(SITES) + 1} cases")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
