"""The settings of a cluster on real services: two replicas share PostgreSQL, Valkey and objects, and are checked.

What a pod gets from its secrets comes from the environment here, as it does there.
"""

import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from falaj.api.tls import ensure_local_certificate
from falaj.deploy.deployment_check import STATE_OK, STATE_WARN, DeploymentCase, check_deployment
from falaj.deploy.rendering import write_rendering
from falaj.deploy.site import DeploymentSite
from tests.replica import ready
from tests.servers.process import free_ports
from tests.servers.redis import RedisServer
from tests.servers.seaweed import Bucket, SeaweedServer
from tests.servers.transit import TransitServer

pytestmark = pytest.mark.slow
PROGRAM = Path(sys.executable).with_name("falaj")


def test_two_replicas_are_what_was_rendered(
    postgres_url: str, redis_server: RedisServer, s3_server: SeaweedServer, s3_url: Bucket, tmp_path: Path
) -> None:
    site = DeploymentSite.of("enterprise", "ae-dxb-1", {"prefix": str(tmp_path / "nowhere"), "host": "localhost"})
    write_rendering(site, tmp_path / "out")
    etc = tmp_path / "etc"
    etc.mkdir()
    shutil.copy(tmp_path / "out/kubernetes/base/falaj.toml", etc)
    places = ("127.0.0.2", "127.0.0.3")
    tls = ensure_local_certificate(str(tmp_path / "authority"), ("localhost", *places), time.time())
    with TransitServer() as keys, ExitStack() as running:
        env = {**os.environ, **s3_server.environment, "VAULT_TOKEN": keys.token}
        env["FALAJ_SECRETS"] = f"vault:{keys.url}?token=env:VAULT_TOKEN&ca={keys.ca}"
        env |= {
            "FALAJ_STORE": postgres_url,
            "FALAJ_ONLINE": redis_server.url,
            "FALAJ_BLOBS": f"{s3_url.url}?allow_http=true",
        }
        env |= {"FALAJ_TLS_CERT": tls.cert, "FALAJ_TLS_KEY": tls.key, "FALAJ_TLS_CA": tls.ca}
        port = next(free_ports())
        for place in places:
            up = [str(PROGRAM), "up", "--at", str(tmp_path / place), "--listen", f"{place}:{port}"]
            running.enter_context(ready(up, etc, env))
        urls = tuple(f"https://{place}:{port}" for place in places)
        found = list(check_deployment(DeploymentCase.of(tmp_path / "out", urls, tls.ca)))
        assert {one.check for one in found if one.state == STATE_WARN} == {"machine"}
        assert {one.state for one in found} == {STATE_OK, STATE_WARN}, found
        assert sum(one.check == "version" for one in found) == 2
        # Backup and drill as the CronJobs run them; the drill is not led into the store that its environment names.
        backups = tmp_path / "backups"
        backups.mkdir()
        given = {"FALAJ_PROGRAM": str(PROGRAM), "FALAJ_AT": str(tmp_path / "job"), "FALAJ_SETTINGS": str(etc)}
        env |= given | {"FALAJ_BACKUPS": str(backups)}
        for script in ("falaj-backup", "falaj-drill"):
            done = subprocess.run(
                ["sh", tmp_path / "out/libexec" / script], check=False, env=env, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
        assert (backups / "drill.json").stat().st_size > 100
        assert keys.surprises == []
