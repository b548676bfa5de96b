"""Which sockets the processes of a program listen on, and since when they run, as the kernel tells it under /proc."""

import ipaddress
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class Listener:
    """One open door."""

    address: str
    port: int

    @property
    def loopback(self) -> bool:
        """True when nobody outside this machine can reach it."""
        return ipaddress.ip_address(self.address).is_loopback


def of_program(folder: Path) -> list[Listener] | None:
    """Of all processes whose command lies in a folder; None when there is none, or none that may be looked at."""
    inodes = {inode for process in _processes(folder) for inode in _sockets(process)}
    if not inodes:
        return None
    return [door for family in ("tcp", "tcp6") for inode, door in _doors(family) if inode in inodes]


def began(folder: Path) -> float:
    """When `falaj up` began, in seconds since 1970; 0 when it does not run. Attempts below it may be older."""
    booted = next(line for line in Path("/proc/stat").read_text(encoding="ascii").splitlines() if line[:5] == "btime")
    ticks = [tick for process in _processes(folder) if b"up" in _command(process) and (tick := _start(process))]
    return int(booted.split()[1]) + min(ticks) / os.sysconf("SC_CLK_TCK") if ticks else 0.0


def _start(process: Path) -> int:
    """In ticks since the machine started: the twentieth word after the command, which may itself hold anything."""
    try:
        return int((process / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return 0


def _processes(folder: Path) -> Iterator[Path]:
    start = f"{folder}/".encode()
    numbers = (process for process in Path("/proc").iterdir() if process.name.isdecimal())
    return (process for process in numbers if any(word.startswith(start) for word in _command(process)[:2]))


def _command(process: Path) -> list[bytes]:
    """What interprets the program, the program, its first word; nothing of a process that has just ended."""
    try:
        return (process / "cmdline").read_bytes().split(b"\0")[:3]
    except OSError:
        return []


def _sockets(process: Path) -> Iterator[str]:
    try:
        for link in (process / "fd").iterdir():
            target = str(link.readlink())
            if target.startswith("socket:["):
                yield target[8:-1]
    except OSError:
        return


def _doors(family: str) -> Iterator[tuple[str, Listener]]:
    try:
        lines = Path(f"/proc/net/{family}").read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split()
        if fields[3] == _LISTEN:
            host, _, port = fields[1].partition(":")
            yield fields[9], Listener(_address(host), int(port, 16))


def _address(text: str) -> str:
    """The kernel writes words of four bytes in the machine's own order."""
    raw = bytes.fromhex(text)
    if sys.byteorder == "little":
        raw = b"".join(raw[start : start + 4][::-1] for start in range(0, len(raw), 4))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
