"""Where this process listens for connections, as the kernel says."""

import contextlib
import os
import socket
from pathlib import Path

_LISTENING = "0A"


def addresses() -> list[str]:
    """HOST:PORT of each of its listening sockets of TCP; an IPv4 address within IPv6 is written as IPv4."""
    own = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            own.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == _LISTENING and f"socket:[{words[9]}]" in own:
                host, _, port = words[1].partition(":")
                found.append(f"{_host(host)}:{int(port, 16)}")
    return found


def _host(digits: str) -> str:
    """The kernel writes the words of an address in the order of this machine."""
    words = [int(digits[at : at + 8], 16).to_bytes(4, "little") for at in range(0, len(digits), 8)]
    if len(words) == 4 and words[:3] == [b"\0" * 4, b"\0" * 4, b"\0\0\xff\xff"]:
        words = words[3:]
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))
