"""Two network namespaces with a slow link between them, as two machines at two sites.

The link is two TUN devices, between which this process carries packets: each direction sends at a rate, and a packet arrives
after a delay. (`tc netem` does the same in kernels that have it.) Needs root and /dev/net/tun. Nothing outside is reachable.
"""

import collections
import ctypes
import fcntl
import os
import struct
import subprocess
import threading
import time

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
_MTU = 65000
ADDRESSES = ("10.213.78.1", "10.213.78.2")


class SlowLink:
    """Use as a context manager; `command(node, words)` gives a command that runs in a namespace."""

    def __init__(self, mbit_per_s: float, delay_s: float):
        self.bytes_per_s, self.delay_s = mbit_per_s * 1e6 / 8, delay_s
        self.names = [f"slow-link-{os.getpid()}-{node}" for node in (0, 1)]
        self.ends: list[int] = []
        self.closed = False

    def __enter__(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        for node in (0, 1):
            self._in_namespace(node, self._make_end)
            commands = (
                f"link set lo up; addr add {ADDRESSES[node]}/24 dev slow0; link set slow0 mtu {_MTU} up"
            )
            for command in commands.split(";"):
                subprocess.run(["ip", "-n", self.names[node], *command.split()], check=True)
        for node in (0, 1):
            threading.Thread(target=self._carry, args=(self.ends[node], self.ends[1 - node]), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.closed = True
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)

    def command(self, node: int, words: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self.names[node], *words]

    def bytes_sent(self, node: int) -> int:
        path = "/sys/class/net/slow0/statistics/tx_bytes"
        return int(subprocess.check_output(self.command(node, ["cat", path])))

    def _in_namespace(self, node: int, work):
        """Runs `work` in a thread that has entered the namespace."""
        failures = []

        def enter():
            try:
                with open(f"/run/netns/{self.names[node]}", "rb") as there:
                    if _libc.setns(there.fileno(), _CLONE_NEWNET) != 0:
                        raise OSError(ctypes.get_errno(), "setns")
                work()
            except OSError as error:
                failures.append(error)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]

    def _make_end(self):
        end = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", b"slow0", _IFF_TUN_WITHOUT_HEADER))
        self.ends.append(end)

    def _carry(self, source: int, target: int):
        """One direction: a thread reads, this one writes each packet when it is due."""
        packets: collections.deque = collections.deque()
        there_are = threading.Semaphore(0)

        def read():
            sent = 0.0  # when the last packet has left
            while not self.closed:
                try:
                    packet = os.read(source, 65536)
                except OSError:
                    return
                sent = max(time.monotonic(), sent) + len(packet) / self.bytes_per_s
                packets.append((sent + self.delay_s, packet))
                there_are.release()

        threading.Thread(target=read, daemon=True).start()
        while not self.closed:
            if not there_are.acquire(timeout=1):
                continue
            due, packet = packets.popleft()
            wait = due - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            try:
                os.write(target, packet)
            except OSError:
                if not self.closed:
                    continue
