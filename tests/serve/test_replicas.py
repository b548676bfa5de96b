"""What a replica is told and says; and the real server, asked over the hop as a gateway asks it."""

import asyncio
import hashlib
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from falaj.core.outbox import read_outbox
from falaj.oip.handler_calls import HttpCall, HttpReply
from falaj.oip.upstream_client import UpstreamClient
from falaj.serve.replica_certificate import create_certificate
from falaj.serve.replica_jobs import parse_replica_address
from tests.infer import models
from tests.jobs.lab import until
from tests.serve.laptop import SMALL, Laptop, ready

SCORE = "endpoint:fraud/score"
PIN = "ab" * 32
ANYWHERE = "0.0.0.0"  # noqa: S104 - said, not bound to


@pytest.mark.parametrize(
    ("fact", "pin", "found"),
    [
        ({"host": "127.0.0.1", "port": 8000}, "", ("127.0.0.1", 8000)),
        ({"host": "::1", "port": 8000}, "", ("::1", 8000)),
        ({"host": "127.0.0.1", "port": 8000}, PIN, None),
        ({"host": "10.0.0.7", "port": 8000}, PIN, ("10.0.0.7", 8000)),
        ({"host": "10.0.0.7", "port": 8000}, "", None),
        ({"host": ANYWHERE, "port": 8000}, PIN, ("node-7", 8000)),
        ({"host": ANYWHERE, "port": 8000}, "", None),
        ({"host": "169.254.169.254", "port": 80}, PIN, None),
        ({"host": "224.0.0.1", "port": 80}, PIN, None),
        ({"host": "metadata.google.internal", "port": 80}, PIN, None),
        ({"host": "127.0.0.1", "port": 0}, "", None),
        ({"host": "127.0.0.1", "port": 70000}, "", None),
        ({"host": ["127.0.0.1"], "port": {}}, "", None),
        ({}, "", None),
    ],
)
def test_only_a_place_that_a_replica_can_have_is_believed(fact: Any, pin: str, found: Any) -> None:
    place = parse_replica_address(fact, pin, "node-7")
    assert (place and (place["host"], place["port"])) == found


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    made = Laptop(tmp_path_factory.mktemp("laptop"))
    with made.here.working():
        made.here.serve.deploy(SCORE, made.model(), **SMALL)
        made.until(ready)
        yield made
        made.close()
    made.here.close()


async def asked(
    host: str, port: int, key: str, x: Any, context: ssl.SSLContext | None = None, name: str = "fraud.score"
) -> Any:
    """One request over the hop: what the gateway does. Gives the outputs and the certificate that was shown."""
    loop, met, done = asyncio.get_running_loop(), asyncio.Event(), asyncio.get_running_loop().create_future()
    client = UpstreamClient(key, on_ready=met.set)
    transport, _ = await loop.create_connection(lambda: client, host, port, ssl=context)
    try:
        await asyncio.wait_for(met.wait(), 10)
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}]}
        call = HttpCall(b"POST", f"/v2/models/{name}/infer".encode(), {}, json.dumps(body).encode(), trusted=True)
        client.ask_rest(call, time.monotonic() + 10, done.set_result)
        reply = await done
        assert isinstance(reply, HttpReply), reply.why
        shown = transport.get_extra_info("ssl_object")
        cert = shown.getpeercert(binary_form=True) if shown else b""
    finally:
        transport.abort()
        await asyncio.sleep(0.01)  # the transport is closed a turn later
    assert reply.status == 200, reply.parts
    return np.array(json.loads(b"".join(reply.parts))["outputs"][0]["data"], np.float32), cert


def test_a_real_replica_answers_whoever_has_the_key(laptop: Laptop) -> None:
    house = laptop.here.house
    route = until(lambda: house.desks["serve"].routes(house.system())["house", "fraud.score"], lambda one: one.places)
    (place,) = route.places
    x = np.random.default_rng(2).standard_normal((3, 32)).astype(np.float32)
    found, _ = asyncio.run(asked(place.host, place.port, route.key, x))
    np.testing.assert_allclose(found, models.mlp_of(x)[:, 0], rtol=1e-4, atol=1e-5)
    with pytest.raises((TimeoutError, AssertionError, OSError)):
        asyncio.run(asyncio.wait_for(asked(place.host, place.port, "not the key, but as long", x), 2))
    job = laptop.here.jobs.show(f"job:fraud/{place.name}")
    assert "KEY" not in str(job.spec.env)
    assert route.key not in str(job)


def environment(laptop: Laptop, folder: Path, outbox: Path) -> dict[str, str]:
    """What the platform gave the replica that runs, with another folder."""
    (name,) = ready(laptop.show())
    spec = laptop.here.jobs.show(f"job:fraud/{name}").spec
    own = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return {
        **own, **spec.env, "FALAJ_INPUT_MODEL": str(folder), "FALAJ_PARAM_HOP_KEY": "a key that is long enough",
        "FALAJ_ATTEMPT": "a-1", "FALAJ_OUTBOX": str(outbox),
    }  # fmt: skip


def test_bytes_that_changed_on_disk_are_not_loaded(laptop: Laptop, tmp_path: Path) -> None:
    folder = models.mlp(tmp_path / "model", seed=8)  # a good model, and not the one that was approved
    env = environment(laptop, folder, tmp_path / "outbox")
    command = [sys.executable, "-m", "falaj.infer"]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert "model.onnx" in ended.stderr
    assert read_outbox(tmp_path / "outbox")[0] == []


@pytest.mark.slow
def test_on_another_machine_it_shows_the_certificate_that_gateways_expect(laptop: Laptop, tmp_path: Path) -> None:
    cert = create_certificate("fraud.score", time.time())
    env = environment(laptop, models.mlp(tmp_path / "model"), tmp_path / "outbox")
    told = {**json.loads(env["FALAJ_PARAM_SERVE"]), "hop": "0.0.0.0:0"}
    env |= {"FALAJ_PARAM_SERVE": json.dumps(told)}
    env |= {"FALAJ_PARAM_HOP_CERT": cert.cert, "FALAJ_PARAM_HOP_PRIVATE": cert.private}
    with subprocess.Popen([sys.executable, "-m", "falaj.infer"], env=env, stdout=subprocess.DEVNULL) as process:
        facts: Any = until(lambda: read_outbox(tmp_path / "outbox")[0], lambda found: found or process.poll())
        place = parse_replica_address(facts[0], cert.fingerprint, "localhost")
        assert place is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is known by its fingerprint
        x = np.zeros((1, 32), np.float32)
        key = env["FALAJ_PARAM_HOP_KEY"]
        found, shown = asyncio.run(asked("127.0.0.1", place["port"], key, x, context))
        assert hashlib.sha256(shown).hexdigest() == cert.fingerprint
        np.testing.assert_allclose(found, models.mlp_of(x)[:, 0], rtol=1e-4, atol=1e-5)
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.slow
def test_a_function_is_served_with_the_code_it_was_published_with(laptop: Laptop, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "code").mkdir()
    ends = {name: [{"name": name[0], "datatype": "FP32", "shape": [-1, 2]}] for name in ("xs", "ys")}
    sheet = {"runtime": "python", "code": "twice:twice", "inputs": ends["xs"], "outputs": ends["ys"]}
    (tmp_path / "model" / "falaj.json").write_text(json.dumps(sheet))
    (tmp_path / "code" / "twice.py").write_text("def twice(inputs, parameters):\n    return {'y': inputs['x'] * 2}\n")
    model = laptop.here.catalog.publish("model:fraud/twice", str(tmp_path / "model"), code=str(tmp_path / "code")).ref
    view = laptop.here.serve.deploy("endpoint:fraud/twice", model, cpus=0.2, memory="256MiB", wait=True)
    assert str(view.revisions[0].code) == "code:fraud/twice@v1"
    house = laptop.here.house
    wanted = ("house", "fraud.twice")
    route = until(lambda: house.desks["serve"].routes(house.system())[wanted], lambda one: one.places)
    x, place = np.ones((2, 2), np.float32), route.places[0]
    found, _ = asyncio.run(asked(place.host, place.port, route.key, x, name="fraud.twice"))
    assert found.tolist() == [2.0, 2.0, 2.0, 2.0]
