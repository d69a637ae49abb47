"""Pages of Markdown: their headings with anchors, their links, and their blocks of code."""
import dataclasses
import pathlib
import re

FENCE = re.compile(r"^( *)(`{3,})([^`\n]*)$")
HEADING = re.compile(r"^(#{1,6}) +(.*?)(?: +#+)?$")
LIST_ITEM = re.compile(r"^ *(?:[-*+]|\d+[.)]) ")
# [text](target), with one level of brackets in the text: images in links, code with [ ].
LINK = re.compile(r"(!?)\[((?:[^\[\]`]|`[^`]*`|\[[^\]]*\])*)\]\(([^()\s]+(?:\([^()\s]*\))?)\)")
CODE_SPAN = re.compile(r"(`+)(.+?)\1", re.DOTALL)


@dataclasses.dataclass
class Block:
    """A block of code. `language` is that of its fence; an indented block has none."""
    page: str
    line: int  # of its first line of code
    language: str
    text: str
    name: str  # PAGE.HEADING.NUMBER, where the number counts the blocks of this language below the heading
    fenced: bool

    @property
    def place(self):
        return f"{self.page}:{self.line}"


@dataclasses.dataclass
class Link:
    line: int
    target: str


class Page:
    """`name` is the path of the page in the project."""

    def __init__(self, name, text):
        self.name = name
        self.blocks, self.links, self.anchors, self.spans = [], [], set(), []
        self.title = None
        self._read(text)

    def _read(self, text):
        lines = text.split("\n")
        prose = []  # (number, line) outside of blocks
        heading, counts = "top", {}
        index, after_blank, in_list = 0, True, False

        def add(first, language, code, fenced):
            key = (heading, language)
            counts[key] = counts.get(key, 0) + 1
            stem = pathlib.PurePosixPath(self.name).stem
            name = f"{stem}.{heading.replace('-', '_')}.{counts[key]}"
            self.blocks.append(Block(self.name, first, language, code, name, fenced))

        while index < len(lines):
            line = lines[index]
            fence = FENCE.match(line)
            if fence:
                margin, ticks, language = len(fence[1]), fence[2], (fence[3].split() or [""])[0]
                end = index + 1
                while end < len(lines) and lines[end].strip() != ticks:
                    end += 1
                code = [one[margin:] if one[:margin].strip() == "" else one for one in lines[index + 1:end]]
                add(index + 2, language, "\n".join(code) + "\n", True)
                index, after_blank = end + 1, False
                continue
            if line.startswith("    ") and line.strip() and after_blank and not in_list:
                end = index
                while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                    end += 1
                add(index + 1, "", "\n".join(one[4:] for one in lines[index:end]).rstrip() + "\n", False)
                index = end
                continue
            title = HEADING.match(line)
            if title:
                heading = self._anchor(title[2])
                if self.title is None and len(title[1]) == 1:
                    self.title = title[2]
            if line.strip():
                if LIST_ITEM.match(line):
                    in_list = True
                elif after_blank and not line.startswith(" "):
                    in_list = False
            after_blank = not line.strip()
            prose.append((index + 1, line))
            index += 1
        # Links and spans of code may continue on the next line of a paragraph.
        paragraph = []
        for number, line in prose + [(0, "")]:
            if line.strip():
                paragraph.append((number, line))
                continue
            joined = "\n".join(one for _, one in paragraph)
            without_code = CODE_SPAN.sub(lambda found: re.sub(r"[^\n]", "x", found[0]), joined)
            for match in LINK.finditer(without_code):
                self.links.append(Link(paragraph[joined.count("\n", 0, match.start())][0], match[3]))
            for match in CODE_SPAN.finditer(joined):
                self.spans.append((paragraph[joined.count("\n", 0, match.start())][0], " ".join(match[2].split())))
            paragraph = []

    def _anchor(self, heading):
        slug = slugify(heading)
        anchor, number = slug, 0
        while anchor in self.anchors:
            number += 1
            anchor = f"{slug}-{number}"
        self.anchors.add(anchor)
        return anchor


def slugify(heading, separator="-"):
    """The anchor of a heading, as GitHub makes it."""
    text = LINK.sub(r"\2", heading)
    text = re.sub(r"[^\w\- ]", "", text.strip().lower())
    return text.replace(" ", separator)


def pages_of_project(root):
    """README, CONTRIBUTING, the pages of docs/ and the READMEs of the examples, by path. (The changelog names files as
    they were.)"""
    root = pathlib.Path(root)
    paths = [root / "README.md", root / "CONTRIBUTING.md", *sorted(root.glob("docs/*.md")), *sorted(root.glob("examples/*/README.md"))]
    return {path.relative_to(root).as_posix(): Page(path.relative_to(root).as_posix(), path.read_text("utf-8")) for path in paths}
