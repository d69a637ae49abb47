"""Many commands of `trainer` from one process (fork_server.cpp)."""
import json
import os
import pathlib
import subprocess
import tempfile


class ForkServer:
    def __init__(self, program):
        # The place of this process among others is not that of the commands.
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("FULGUR_", "SLURM_"))}
        self.server = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                       env={**environment, "OMP_NUM_THREADS": "1"})
        self.folder = tempfile.TemporaryDirectory()

    def run(self, *arguments, env=None, folder="."):
        """As subprocess.run([trainer, *arguments], cwd=folder, capture_output=True, text=True)."""
        files = [pathlib.Path(self.folder.name) / name for name in ("out", "err")]
        command = {"argv": ["trainer", *map(str, arguments)], "folder": os.path.abspath(folder), "environment": env or {},
                   "out": str(files[0]), "err": str(files[1])}
        print(json.dumps(command), file=self.server.stdin, flush=True)
        code = self.server.stdout.readline()
        if not code:
            raise SystemExit(f"fork_server.py: the server ended with {self.server.wait()}")
        return subprocess.CompletedProcess(command["argv"], int(code), *(file.read_text("utf-8", "replace") for file in files))
