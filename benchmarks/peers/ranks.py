"""Starts a command as several ranks on this machine and ends as the first that fails:

    ranks.py 2 COMMAND [ARGUMENT …]

They find rank, number and meeting place where torchrun would have put them.
"""

import os
import socket
import subprocess
import sys
import time


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def main():
    count, command = int(sys.argv[1]), sys.argv[2:]
    place = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [subprocess.Popen(command, env={**os.environ, **place, "RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(count)]
    try:
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):
                break
            time.sleep(0.05)
        return next((rank.returncode for rank in ranks if rank.returncode), 0)
    finally:
        for rank in ranks:
            rank.kill()


sys.exit(main())
