#!/usr/bin/env python3
"""Puts the pages of the site together, without the API, as scripts/site.sh does; MkDocs need not be installed.

    stage_test.py ROOT FOLDER FORK_SERVER
"""
import os
import pathlib
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../docs/site")]
import reference_pages  # noqa: E402
import stage_pages  # noqa: E402
from fork_server import ForkServer  # noqa: E402

root, folder, server = sys.argv[1:]
trainer = ForkServer(server)


def call(_, *arguments):
    done = trainer.run(*arguments)
    if done.returncode != 0:
        sys.exit(f"stage_test.py: trainer {' '.join(arguments)} ends with {done.returncode}: {done.stderr}")
    return done.stdout


reference_pages.call = call
sys.argv = ["stage_pages.py", root, folder, folder + ".site", "trainer"]
stage_pages.main()
pages = pathlib.Path(folder) / "pages"
for page in ("index.md", "reference/trainer.md", "reference/callback/ModelCheckpoint.md", "reference/checkpoint_writer/index.md"):
    if not (pages / page).is_file():
        sys.exit(f"stage_test.py: there is no page {page}")
if "| <code>save_<wbr>top_<wbr>k</code> |" not in (pages / "reference/callback/ModelCheckpoint.md").read_text("utf-8"):
    sys.exit("stage_test.py: the options of ModelCheckpoint are missing")
