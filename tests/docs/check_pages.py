#!/usr/bin/env python3
"""Checks README, CONTRIBUTING, docs/ and the READMEs of examples/ without building the site.

    check_pages.py ROOT      prints one line per breach, FILE:LINE: RULE; exits 1 if there is any

Each page of docs/ is in the navigation of docs/site/mkdocs.yml, once; relative links and anchors lead to something that
exists; each block of code names its language.
"""
import os
import pathlib
import posixpath
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/site"))
from markdown_pages import Page, pages_of_project  # noqa: E402

# Languages of blocks. `text` is what is not checked: output, drawings, formulas.
LANGUAGES = {"cpp", "yaml", "python", "cmake", "sh", "bash", "console", "text"}
# Pages of the site that have other names in the project.
RENAMED = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}


def check_navigation(root, pages, report):
    lines = (root / "docs/site/mkdocs.yml").read_text("utf-8").split("\n")
    begin = lines.index("nav:")
    seen = {}
    for number, line in enumerate(lines[begin + 1:], begin + 2):
        match = re.match(r" +- (?:[^:']+: )?([\w/]+\.md)$", line)
        if not match:
            continue
        name = RENAMED.get(match[1], "docs/" + match[1])
        if name in seen:
            report("docs/site/mkdocs.yml", number, f"{match[1]} is in the navigation twice")
        if not (root / name).exists():
            report("docs/site/mkdocs.yml", number, f"there is no page {name}")
        seen[name] = number
    for name in pages:
        if not name.startswith("examples/") and name not in seen:
            report(name, 1, "is not in the navigation of docs/site/mkdocs.yml")


def check_links(root, pages, report):
    others = {}  # pages that are linked, but not checked
    for name, page in pages.items():
        for link in page.links:
            target, _, anchor = link.target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), target)) if target else name
            if not (root / path).exists() or path.startswith(".."):
                report(name, link.line, f"there is no {path}, to which a link leads")
            elif anchor and path.endswith(".md"):
                other = pages.get(path) or others.setdefault(path, Page(path, (root / path).read_text("utf-8")))
                if anchor not in other.anchors:
                    report(name, link.line, f"{path} has no heading for the anchor #{anchor}")


def check_languages(pages, report):
    for page in pages.values():
        for block in page.blocks:
            if block.fenced and block.language not in LANGUAGES:
                report(page.name, block.line, f"a block of code names its language: {', '.join(sorted(LANGUAGES))}; got '{block.language}'")


def check(root):
    root = pathlib.Path(root)
    breaches = []

    def report(name, line, rule):
        breaches.append(f"{name}:{line}: {rule}")

    pages = pages_of_project(root)
    check_navigation(root, pages, report)
    check_links(root, pages, report)
    check_languages(pages, report)
    return len(pages), breaches


def main():
    if len(sys.argv) != 2 or not os.path.isfile(os.path.join(sys.argv[1], "README.md")):
        sys.exit("usage: check_pages.py ROOT (a folder with README.md)")
    count, breaches = check(sys.argv[1])
    print("\n".join(breaches) if breaches else f"{count} pages, no breach")
    sys.exit(1 if breaches or not count else 0)


if __name__ == "__main__":
    main()
