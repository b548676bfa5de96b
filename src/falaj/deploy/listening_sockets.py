"""Which sockets the processes of a program listen on, and since when they run, as the kernel tells it under /proc."""

import ipaddress
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LISTEN_STATE = "0A"


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """One open door."""

    address: str
    port: int

    @property
    def loopback(self) -> bool:
        """True when nobody outside this machine can reach it."""
        return ipaddress.ip_address(self.address).is_loopback


def find_program_sockets(folder: Path) -> list[ListeningSocket] | None:
    """Of all processes whose command lies in a folder; None when there is none, or none that may be looked at."""
    inodes = {inode for process in _list_program_processes(folder) for inode in _list_socket_inodes(process)}
    if not inodes:
        return None
    return [
        listening_socket
        for family in ("tcp", "tcp6")
        for inode, listening_socket in _list_listening_sockets(family)
        if inode in inodes
    ]


def get_start_time(folder: Path) -> float:
    """When `falaj up` began, in seconds since 1970; 0 when it does not run. Attempts below it may be older."""
    boot_line = next(
        line for line in Path("/proc/stat").read_text(encoding="ascii").splitlines() if line[:5] == "btime"
    )
    start_ticks = [
        start_tick
        for process in _list_program_processes(folder)
        if b"up" in _read_command(process) and (start_tick := _read_start_ticks(process))
    ]
    return int(boot_line.split()[1]) + min(start_ticks) / os.sysconf("SC_CLK_TCK") if start_ticks else 0.0


def _read_start_ticks(process: Path) -> int:
    """In ticks since the machine started: the twentieth word after the command, which may itself hold anything."""
    try:
        return int((process / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return 0


def _list_program_processes(folder: Path) -> Iterator[Path]:
    path_prefix = f"{folder}/".encode()
    processes = (process for process in Path("/proc").iterdir() if process.name.isdecimal())
    return (
        process
        for process in processes
        if any(command_word.startswith(path_prefix) for command_word in _read_command(process)[:2])
    )


def _read_command(process: Path) -> list[bytes]:
    """What interprets the program, the program, its first word; nothing of a process that has just ended."""
    try:
        return (process / "cmdline").read_bytes().split(b"\0")[:3]
    except OSError:
        return []


def _list_socket_inodes(process: Path) -> Iterator[str]:
    try:
        for link in (process / "fd").iterdir():
            target = str(link.readlink())
            if target.startswith("socket:["):
                yield target[8:-1]
    except OSError:
        return


def _list_listening_sockets(family: str) -> Iterator[tuple[str, ListeningSocket]]:
    try:
        lines = Path(f"/proc/net/{family}").read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split()
        if fields[3] == _LISTEN_STATE:
            host, _, port = fields[1].partition(":")
            yield fields[9], ListeningSocket(_parse_address(host), int(port, 16))


def _parse_address(text: str) -> str:
    """The kernel writes words of four bytes in the machine's own order."""
    address_bytes = bytes.fromhex(text)
    if sys.byteorder == "little":
        address_bytes = b"".join(address_bytes[start : start + 4][::-1] for start in range(0, len(address_bytes), 4))
    return socket.inet_ntop(socket.AF_INET if len(address_bytes) == 4 else socket.AF_INET6, address_bytes)
