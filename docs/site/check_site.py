#!/usr/bin/env python3
"""Checks a built site: each link leads to a file and an anchor that exist, and nothing is fetched from another machine.

    check_site.py SITE      prints what is wrong; exits 1 if anything is
"""
import html.parser
import os
import pathlib
import sys
import urllib.parse

FETCHES = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("source", "srcset")}


class Reader(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.fetched = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        for key in ("id", "name"):
            if values.get(key):
                self.ids.add(values[key])
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag == "link" and values.get("href") and values.get("rel") not in ("canonical", "prev", "next"):
            self.fetched.append(values["href"])
        self.fetched += [values[key] for key in ("src", "srcset") if (tag, key) in FETCHES and values.get(key)]


def check(site):
    pages = {path: Reader(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    wrong = []
    for path, page in pages.items():
        name = path.relative_to(site)
        for target in page.links + page.fetched:
            url = urllib.parse.urlsplit(target)
            if url.scheme in ("http", "https") or url.netloc:
                if target in page.fetched:
                    wrong.append(f"{name}: is fetched from another machine: {target}")
                continue
            if url.scheme in ("mailto", "data", "javascript") or path.name == "404.html":
                continue
            file = path if not url.path else pathlib.Path(os.path.normpath(path.parent / urllib.parse.unquote(url.path)))
            if url.path.endswith("/") or file.is_dir():
                file = file / "index.html"
            if not file.exists():
                wrong.append(f"{name}: leads to no file: {target}")
            elif url.fragment and file in pages and urllib.parse.unquote(url.fragment) not in pages[file].ids:
                wrong.append(f"{name}: leads to no anchor: {target}")
    for path in sorted(site.rglob("*.css")):
        if "url(http" in path.read_text("utf-8").replace("'", "").replace('"', ""):
            wrong.append(f"{path.relative_to(site)}: fetches from another machine")
    return len(pages), wrong


def main():
    if len(sys.argv) != 2 or not (pathlib.Path(sys.argv[1]) / "index.html").exists():
        sys.exit("usage: check_site.py SITE (a folder with index.html)")
    count, wrong = check(pathlib.Path(sys.argv[1]).resolve())
    print("\n".join(wrong) if wrong else f"{count} pages, all links lead somewhere")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
