"""A real balancer: HAProxy from Debian's package, passing TLS through and asking servers whether they may be asked."""

import csv
import io
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from tests.servers.process import Missing, Server, find_program, free_ports, listens

_INSTALL = "HAProxy is missing: apt-get install haproxy, or run `make components` as root"
_COMMON = """
global
  stats socket {folder}/socket mode 600 level admin
  maxconn 8000
defaults
  mode tcp
  timeout connect 5s
  timeout check 5s
  timeout client 120s
  timeout server 120s
  option redispatch
  retries 3
"""
_PART = """
listen {name}
  bind 127.0.0.1:{port}
  balance roundrobin
  option httpchk
  http-check send meth GET uri {path} ver HTTP/1.1 hdr Host {host}
  http-check expect status 200
  default-server check {tls} inter 2s fastinter 300ms downinter 500ms fall 2 rise 1
"""


@dataclass(frozen=True, slots=True)
class Pool:
    """Servers behind one port: host:port of each by name, and the path that says whether one may be asked."""

    path: str
    servers: Mapping[str, str]
    secure: bool = True


class HaproxyServer(Server):
    """One balancer before pools, by name. `address(pool)` is where callers go."""

    def __init__(self, pools: Mapping[str, Pool], ports: Mapping[str, int] | None = None) -> None:
        self._program = program()
        super().__init__()
        self._pools = dict(pools)
        self.ports = dict(ports or {})

    def prepare(self) -> None:
        self.ports = self.ports or dict(zip(self._pools, free_ports(), strict=False))
        text = _COMMON.format(folder=self.folder)
        for name, pool in self._pools.items():
            tls = "check-ssl verify none" if pool.secure else ""
            text += _PART.format(name=name, port=self.ports[name], path=pool.path, host=self.address(name), tls=tls)
            text += "".join(f"  server {one} {at}\n" for one, at in pool.servers.items())
        (self.folder / "haproxy.cfg").write_text(text)

    def launch(self, log: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([self._program, "-db", "-f", "haproxy.cfg"], stdout=log, stderr=log, cwd=self.folder)

    def ready(self) -> bool:
        return all(listens(port) for port in self.ports.values())

    def address(self, pool: str) -> str:
        return f"127.0.0.1:{self.ports[pool]}"

    def up(self, pool: str) -> set[str]:
        """The servers that callers are led to now."""
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self.folder / "socket"))
            line.sendall(b"show stat\n")
            told = b"".join(iter(lambda: line.recv(65536), b"")).decode()
        rows = csv.DictReader(io.StringIO(told.removeprefix("# ")))
        return {
            row["svname"] for row in rows if row["pxname"] == pool and row["status"] == "UP" and row["svname"][0] != "B"
        }


def program() -> str:
    """The path of haproxy; Missing if there is none."""
    try:
        return find_program("haproxy")
    except Missing as missing:
        raise Missing(_INSTALL) from missing
