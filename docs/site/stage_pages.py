#!/usr/bin/env python3
"""Puts together what MkDocs builds the site from.

    stage_pages.py ROOT FOLDER SITE TRAINER [DOXYGEN_XML]

ROOT is the project. FOLDER gets mkdocs.yml and pages/: those of docs/ and README, the options of each component (from
TRAINER), the API (from Doxygen's XML), and the files that pages link to. The site is built into SITE.
"""
import os
import pathlib
import posixpath
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import api_pages  # noqa: E402
import reference_pages  # noqa: E402
from markdown_pages import FENCE, LINK, Page  # noqa: E402

LANGUAGES = {".yaml": "yaml", ".cpp": "cpp", ".h": "cpp", ".py": "python", ".sh": "sh", ".txt": "text", ".cmake": "cmake", ".svg": "xml"}
PICTURES = (".png", ".svg")


class Stage:
    def __init__(self, root, pages):
        self.root, self.pages = root, pages
        self.waiting = []

    def page_of(self, path):
        """The path in the site of `path` in the project, which a page links to."""
        if path == "README.md":
            return "index.md"
        if path in ("CONTRIBUTING.md", "CHANGELOG.md"):
            return path.lower()
        if path.startswith("docs/") and path.endswith(".md") and path.count("/") == 1:
            return path[len("docs/"):]
        if path.endswith(PICTURES):
            name = path.removeprefix("docs/")
        else:
            visible = re.sub(r"(^|/)\.", r"\1dot_", path)  # MkDocs leaves hidden files out
            name = "source/" + (visible if visible.endswith(".md") else visible + ".md")
        self.waiting.append((path, name))
        return name

    def relinked(self, text, path):
        """`text` of the file `path` with links to pages of the site."""
        here = posixpath.dirname(self.page_of(path))
        prose, out, fence = [], [], None

        def flush():
            # The text of a link may continue on the next line.
            out.append(LINK.sub(lambda found: self._link(found, path, here), "\n".join(prose)))
            prose.clear()

        for line in text.split("\n"):
            mark = FENCE.match(line)
            if mark and fence in (None, mark[2]):
                fence = None if fence else mark[2]
            if fence or mark:
                if prose:
                    flush()
                out.append(line)
            else:
                prose.append(line)
        flush()
        return "\n".join(out)

    def _link(self, found, path, here):
        target, _, anchor = found[3].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return found[0]
        named = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if not (self.root / named).exists():
            return found[0]  # MkDocs reports it
        text = found[2]
        if re.fullmatch(r"(docs/)?\w+\.md", text):  # on the site, pages have titles instead of file names
            text = Page(named, (self.root / named).read_text("utf-8")).title or text
        return f"{found[1]}[{text}]({posixpath.relpath(self.page_of(named), here or '.')}{'#' + anchor if anchor else ''})"

    def write(self, name, text):
        file = self.pages / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")

    def add(self, path):
        """The page of the project at `path`."""
        self.write(self.page_of(path), self.relinked((self.root / path).read_text("utf-8"), path))

    def add_linked(self):
        """Files and folders outside of docs/ that pages link to, and those that these link to."""
        done = set()
        while self.waiting:
            path, name = self.waiting.pop()
            if name in done:
                continue
            done.add(name)
            source = self.root / path
            if path.endswith(PICTURES):
                (self.pages / name).parent.mkdir(parents=True, exist_ok=True)
                (self.pages / name).write_bytes(source.read_bytes())
            elif source.is_dir():
                files = sorted(one.relative_to(self.root).as_posix() for one in source.iterdir() if one.is_file())
                readme = path + "/README.md"
                text = self.relinked((self.root / readme).read_text("utf-8"), readme) if readme in files else f"# {path}\n"
                # The links of the README are as from its folder; so are those of this page.
                here = posixpath.dirname(name)
                if readme in files:
                    shift = posixpath.relpath(posixpath.dirname(self.page_of(readme)), here or ".")
                    text = LINK.sub(lambda found: moved(found, shift), text)
                listed = "".join(f"- [{one}]({posixpath.relpath(self.page_of(one), here or '.')})\n" for one in files if one != readme)
                self.write(name, f"{text}\n\n## Files of {path}\n\n{listed}")
            elif path.endswith(".md"):
                self.write(name, self.relinked(source.read_text("utf-8"), path))
            else:
                code = source.read_text("utf-8")
                self.write(name, f"---\nsearch: {{exclude: true}}\n---\n# {path}\n\n````{LANGUAGES.get(source.suffix, 'text')}\n{code.rstrip()}\n````\n")


def moved(found, shift):
    if re.match(r"[a-z]+:|#", found[3]):
        return found[0]
    return f"{found[1]}[{found[2]}]({posixpath.normpath(posixpath.join(shift, found[3]))})"


def config(template, folder, site, navigation):
    """mkdocs.yml with the generated navigation: lines of YAML, by the word that stands for them."""
    out = []
    for line in template.split("\n"):
        mark = re.match(r"( *)- (.*): '(\w+):'$", line)
        if not mark:
            out.append(line)
        elif navigation[mark[3]]:
            out.append(f"{mark[1]}- {mark[2]}:")
            out += [f"{mark[1]}    {entry}" for entry in navigation[mark[3]]]
    return "\n".join(out) + f"docs_dir: {folder / 'pages'}\nsite_dir: {site}\n"


def main():
    if len(sys.argv) not in (5, 6):
        sys.exit("usage: stage_pages.py ROOT FOLDER SITE TRAINER [DOXYGEN_XML]")
    root, folder, site = (pathlib.Path(one).resolve() for one in sys.argv[1:4])
    here = pathlib.Path(__file__).parent
    stage = Stage(root, folder / "pages")
    for path in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *sorted(f"docs/{one.name}" for one in root.glob("docs/*.md"))]:
        stage.add(path)
    stage.add_linked()
    for name in ("site.css", "favicon.svg", "iframe-worker.js"):
        stage.write(f"assets/{name}", (here / name).read_text("utf-8"))
    navigation = {"reference": reference_pages.write(sys.argv[4], stage.write), "api": []}
    if len(sys.argv) == 6:
        navigation["api"] = api_pages.write(pathlib.Path(sys.argv[5]), stage.write)
    (folder / "mkdocs.yml").write_text(config((here / "mkdocs.yml").read_text("utf-8"), folder, site, navigation), "utf-8")


if __name__ == "__main__":
    main()
