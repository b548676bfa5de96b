"""A bank whose jobs run on Ray: the server of several stories."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import falaj
from tests.jobs.lab import Lab, until
from tests.replica import Replica
from tests.servers.process import free_ports
from tests.servers.ray import NODES, RayServer


@contextmanager
def bank_on_ray(tmp_path: Path, ray_server: RayServer) -> Iterator[Lab]:
    """Somebody of a bank, at a server that may run the bank's jobs on Ray and knows its token by reference only."""
    url = f"http://127.0.0.1:{(port := next(free_ports()))}"
    with Replica(tmp_path / "house", {"FALAJ_URL": url}, listen=f"127.0.0.1:{port}") as server:
        admin = server.as_()
        keeper = server.as_(admin.people.add("sami", ("security-officer",)).token)
        token = keeper.secrets.put("secret:ops/rays", ray_server.token).reference
        boss = server.as_(admin.people.add_tenant("bank", "fatima").token)
        more = {"token": token.partition("#")[0], "tenants": "bank", "checkpoints": str(tmp_path / "everywhere")}
        admin.clusters.add("rays", ray_server.address, more=more)
        until(lambda: admin.clusters.nodes("rays"), lambda nodes: len(nodes) == len(NODES))
        assert ray_server.token not in str(admin.clusters.list())
        amal = boss.people.add("amal", ("data-scientist",), jurisdiction="AE").token
        with falaj.connect(server.url, token=amal, purpose="fraud") as here:
            yield Lab(tmp_path, here)
