"""Many commands of `trainer` from one process (tests/support/fork_server.cpp)."""
import ctypes
import os
import pathlib
import socket
import subprocess
import tempfile

PR_SET_CHILD_SUBREAPER = 36


class ForkServer:
    def __init__(self, program):
        # The place of this process among others is not that of the commands.
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(("FULGUR_", "SLURM_"))}
        # The destructors of LibTorch touch all memory that the processes share.
        self.environment |= {"OMP_NUM_THREADS": "1", "FULGUR_FAST_EXIT": "1"}
        self.socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.server = subprocess.Popen([program, "--serve", str(other.fileno())], pass_fds=[other.fileno()], env=self.environment)
        other.close()
        self.folder = tempfile.TemporaryDirectory()
        # The processes become children of this one.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)

    def run(self, *arguments, env=None, folder="."):
        """As subprocess.run([trainer, *arguments], cwd=folder, capture_output=True, text=True)."""
        start, out, err = (pathlib.Path(self.folder.name) / name for name in ("start", "out", "err"))
        words = ["trainer", *map(str, arguments)]
        variables = [f"{key}={value}" for key, value in {**self.environment, **(env or {})}.items()]
        fields = [out, err, os.path.abspath(folder), 0, len(words), *words, *variables]
        start.write_bytes(b"".join(os.fsencode(str(field)) + b"\0" for field in fields))
        self.socket.send(os.fsencode(start))
        answer = self.socket.recv(64)
        child = int.from_bytes(answer, "little", signed=True)
        if not answer or child <= 0:
            raise SystemExit("fork_server.py: the server did not start the program")
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return subprocess.CompletedProcess(words, code, *(file.read_text("utf-8", "replace") for file in (out, err)))
