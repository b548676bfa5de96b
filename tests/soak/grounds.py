"""What is soaked: the embedded platform on a small disk, and two replicas on PostgreSQL, S3 and Valkey."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import falaj
from tests.people import enroll, enroll_tenant
from tests.servers.postgres import PostgresServer
from tests.servers.process import Server, wait_until
from tests.servers.redis import RedisServer
from tests.servers.seaweed import SeaweedServer
from tests.soak.clock import Clock, built
from tests.soak.links import Link, Links
from tests.soak.ups import READY_S, Up

DISK_BYTES = 1 << 30
TEAM = {
    "mona": ("ml-engineer", "data-scientist"),
    "omar": ("auditor",),
    "salem": ("data-steward",),
    "badr": ("approver",),
    "ola": ("operator",),
}


class Ground:
    """Replicas and what they stand on. `tokens` are of the people who work here; `home` is the replicas' folder."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.home = folder / "disk" / "house"
        self.home.parent.mkdir()
        self.scratch = folder / "disk" / "tmp"
        self.ups: list[Up] = []
        self.servers: dict[str, Server] = {}
        self.links: dict[str, list[Link]] = {}
        """By what they lead to; one for each replica, or one for all."""
        self.small_disk = False
        self.tokens: dict[str, str] = {}
        self._library = built(folder)

    @property
    def can_jump(self) -> bool:
        """Whether clocks can be set here."""
        return bool(self._library)

    def at(self, who: str, number: int = 0, timeout_s: float = 30.0) -> Any:
        """The platform as this person sees it, at one of the doors."""
        return falaj.connect(self.ups[number].url, token=self.tokens[who], timeout_s=timeout_s)

    def add(self, env: dict[str, str]) -> Up:
        """One more replica."""
        number = len(self.ups)
        clock = Clock(self._library, self.folder / f"clock-{number}")
        self.scratch.mkdir(exist_ok=True)
        own = {**env, "TMPDIR": str(self.scratch)}
        self.ups.append(Up(self.home, own, clock, self.folder / f"up-{number}.log"))
        self.ups[-1].bearer = self.tokens.get("admin", "")
        self.ups[-1].start()
        self.ups[-1].await_ready()
        return self.ups[-1]

    def found(self) -> None:
        """The first people, and a cluster that takes their jobs."""
        wait_until(lambda: bool(self.ups[0].token()), 30)
        self.tokens["admin"] = self.ups[0].bearer = self.ups[0].token()
        with closing(self.at("admin")) as admin:
            self.tokens["fatima"] = enroll_tenant(admin, "bank", "fatima")
            admin.clusters.change("local", {"tenants": "bank"})
        with closing(self.at("fatima")) as boss:
            for name, roles in TEAM.items():
                self.tokens[name] = enroll(boss, name, roles, jurisdiction="AE", hours=24 * 30)

    def await_ready(self, deadline_s: float = READY_S) -> float:
        """How long until every replica answers, and all it stands on."""
        began = time.monotonic()
        for up in self.ups:
            up.await_ready(deadline_s)
        return time.monotonic() - began


@contextlib.contextmanager
def embedded(folder: Path) -> Iterator[Ground]:
    """`falaj up` on SQLite and folders, on a disk of its own where we may mount one."""
    ground = Ground(folder)
    ground.name = "embedded"
    disk = ground.home.parent
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=755", "soak", str(disk)]
    ground.small_disk = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        ground.add({"FALAJ_SEAL_S": "1"})
        ground.found()
        yield ground
    finally:
        for up in ground.ups:
            up.kill()
        if ground.small_disk:
            # What the verdict speaks of stays in the folder of the run.
            kept = folder / "house"
            with contextlib.suppress(shutil.Error, OSError):
                shutil.copytree(ground.home, kept, symlinks=True, ignore_dangling_symlinks=True)
            subprocess.run(["umount", "-l", str(disk)], check=False)


@contextlib.contextmanager
def replicas(folder: Path) -> Iterator[Ground]:
    """Two replicas; what they stand on keeps on the disk what it acknowledged, and each way there is a link."""
    ground = Ground(folder)
    ground.name = "replicas"
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer(fsync="on", synchronous_commit="on", full_page_writes="on"))
        weed = stack.enter_context(SeaweedServer())
        valkey = stack.enter_context(RedisServer(appendonly="yes", appendfsync="always"))
        ground.servers = {"postgres": postgres, "s3": weed, "valkey": valkey}
        links = Links()
        stack.callback(links.close)
        s3 = links.add(int(weed.endpoint.rpartition(":")[2]))
        ground.links = {"s3": [s3], "postgres": [], "valkey": []}
        bucket, database = weed.create_bucket().url, postgres.create_database().rpartition("/")[2]
        try:
            for _ in range(2):
                pg, online = links.add(postgres.port), links.add(valkey.port)
                ground.links["postgres"].append(pg)
                ground.links["valkey"].append(online)
                ground.add(
                    {
                        **weed.environment,
                        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3.port}",
                        "FALAJ_STORE": f"postgresql://postgres@127.0.0.1:{pg.port}/{database}",
                        "FALAJ_BLOBS": f"{bucket}?endpoint=http://127.0.0.1:{s3.port}&region=us-east-1&allow_http=true",
                        "FALAJ_ONLINE": f"redis://127.0.0.1:{online.port}/0",
                    }
                )
                if len(ground.ups) == 1:
                    ground.found()
            ground.database = postgres.url(database)  # type: ignore[attr-defined]
            yield ground
        finally:
            for up in ground.ups:
                up.kill()


GROUNDS = {"embedded": embedded, "replicas": replicas}
