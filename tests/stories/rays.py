"""A bank whose jobs run on Ray: the server of several stories."""

import site
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import falaj
from tests.jobs.lab import Lab, until
from tests.people import enroll, enroll_tenant
from tests.replica import Replica
from tests.servers.process import free_ports
from tests.servers.ray import NODES, RayServer


class BankLab(Lab):
    """Somebody of the bank, and its administrator."""

    boss: Any


@contextmanager
def bank_on_ray(tmp_path: Path, ray_server: RayServer) -> Iterator[BankLab]:
    """Somebody of a bank, at a server that may run the bank's jobs on Ray and knows its token by reference only."""
    with _falaj_installed(ray_server), _served(tmp_path, ray_server) as lab:
        yield lab


@contextmanager
def _falaj_installed(ray_server: RayServer) -> Iterator[None]:
    """The cluster's own Python has Falaj: the launcher's own commands take nothing from a submitter's variables."""
    (packages,) = ray_server.bin.parent.glob("lib/python*/site-packages")
    (packages / "falaj-under-test.pth").write_text(
        "\n".join((str(Path(falaj.__file__).parents[1]), *site.getsitepackages()))
    )
    try:
        yield
    finally:
        (packages / "falaj-under-test.pth").unlink()


@contextmanager
def _served(tmp_path: Path, ray_server: RayServer) -> Iterator[BankLab]:
    url = f"http://127.0.0.1:{(port := next(free_ports()))}"
    with Replica(
        tmp_path / "house", {"FALAJ_URL": url, "FALAJ_HOSTS": "localhost"}, listen=f"127.0.0.1:{port}"
    ) as server:
        admin = server.as_()
        keeper = server.as_(enroll(admin, "sami", ("security-officer",)))
        token = keeper.secrets.put("secret:ops/rays", ray_server.token).reference
        keeper.secrets.grant("secret:ops/rays", (f"person:{admin.people.whoami().id}",))
        boss = server.as_(enroll_tenant(admin, "bank", "fatima"))
        more = {"token": token.partition("#")[0], "tenants": "bank", "checkpoints": str(tmp_path / "everywhere")}
        admin.clusters.add("rays", ray_server.address, more=more)
        until(lambda: admin.clusters.nodes("rays"), lambda nodes: len(nodes) == len(NODES))
        assert ray_server.token not in str(admin.clusters.list())
        amal = enroll(boss, "amal", ("data-scientist",), jurisdiction="AE")
        with falaj.connect(server.url, token=amal, purpose="fraud") as here:
            lab = BankLab(tmp_path, here)
            lab.boss = boss
            yield lab
