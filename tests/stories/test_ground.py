"""The ground floor from end to end: on a laptop's folder, and on PostgreSQL and S3 by nothing but other URLs."""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import falaj
from falaj.core.errors import Denied, FalajError
from tests.documents import keep_contract
from tests.people import enroll, enroll_tenant
from tests.replica import FALAJ, Replica
from tests.servers.oidc import OidcServer
from tests.servers.seaweed import SeaweedServer
from tests.town import LABEL, Town, refusal

BLOB = "blob:fraud/customers"


@pytest.mark.timeout(300)
def test_the_demo_tells_the_whole_story() -> None:
    told = subprocess.run([*FALAJ, "demo"], capture_output=True, text=True, check=False, timeout=240)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "NOT" not in told.stdout
    assert "found, and where" in told.stdout
    assert "verified offline" in told.stdout


@pytest.fixture(params=["laptop", "cluster"])
def town(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Town]:
    """The same town twice: SQLite and folders, then PostgreSQL and S3."""
    if request.param == "laptop":
        made = Town(tmp_path / "house")
    else:
        server: SeaweedServer = request.getfixturevalue("s3_server")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        new_s3: Callable[[], Any] = request.getfixturevalue("new_s3")
        monkeypatch.setenv("FALAJ_BLOBS", _address(new_s3().url, server))
        store = request.getfixturevalue("new_postgres")()
        made = Town(tmp_path / "house", store=store)
    yield made
    made.close()


def _address(bucket: str, server: SeaweedServer) -> str:
    """How to reach a bucket; who we are comes from the environment."""
    return f"{bucket}?endpoint={server.endpoint}&region=us-east-1&allow_http=true"


def test_denied_abroad_then_approved_then_proved(town: Town, tmp_path: Path) -> None:
    amal = town.as_("amal")
    data = os.urandom(3_000_000)
    ref = amal.store.put(BLOB, data, label=LABEL)
    assert amal.store.get(ref).read() == data
    denied = refusal(lambda: amal.store.copy(BLOB, to="eu-west"))
    assert isinstance(denied, Denied)
    assert "falaj zones grant" in denied.hint

    grant = town.as_("salem").zones.grant(
        "AE-PDPL:23a", "ae-dubai", "eu-west", BLOB, ("fraud",), keep_contract(town.as_("salem"))
    )
    assert isinstance(refusal(lambda: amal.store.copy(BLOB, to="eu-west")), Denied)
    assert isinstance(refusal(lambda: town.as_("salem").approvals.give(str(grant.approval), grant.digest)), Denied)
    town.as_("badr").approvals.give(str(grant.approval), grant.digest)
    assert isinstance(refusal(lambda: amal.store.copy(BLOB, to="eu-west")), Denied)
    town.as_("dana").approvals.give(str(grant.approval), grant.digest)
    assert set(amal.store.copy(BLOB, to="eu-west").zones) == {"ae-dubai", "eu-west"}

    pack = tmp_path / "evidence.zip"
    pack.write_bytes(town.as_("omar").audit.export().read())
    verdict = town.as_("omar").audit.verify(pack)
    assert verdict.ok, verdict
    verbs = [event.verb for event in town.events()]
    assert verbs.count("guard.deny") == 4


def test_a_backup_restores_on_the_other_engine_and_proves_itself(
    tmp_path: Path, new_postgres: Callable[[], str]
) -> None:
    first = Town(tmp_path / "first")
    first.as_("amal").store.put(BLOB, b"rows", label=LABEL)
    root = first.as_("omar").audit.seal().root
    file = tmp_path / "backup.falaj"
    file.write_bytes(first.as_("admin").store.backup().read())
    first.close()

    home = tmp_path / "second"
    home.mkdir(mode=0o700)
    # What a backup never holds: the root key, and the bytes themselves.
    (tmp_path / "first" / "keys").rename(home / "keys")
    (tmp_path / "first" / "blobs").rename(home / "blobs")
    url = new_postgres()
    done = subprocess.run(
        [*FALAJ, "restore", str(file), "--at", str(home)],
        env={**os.environ, "FALAJ_STORE": url, "FALAJ_ZONE": "ae-dubai"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with falaj.connect(str(home), token=first.tokens["amal"], store=url, zone="ae-dubai", purpose="fraud") as here:
        assert here.store.get(BLOB).read() == b"rows"
    with falaj.connect(str(home), token=first.tokens["omar"], store=url, zone="ae-dubai") as here:
        assert root in [point.root for point in here.audit.checkpoints(limit=100)]
        assert here.audit.check().ok
    again = subprocess.run(
        [*FALAJ, "restore", str(file), "--at", str(home)],
        env={**os.environ, "FALAJ_STORE": url, "FALAJ_ZONE": "ae-dubai"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode != 0, "a restore went over a store that was not empty"


def test_replicas_share_the_work_and_one_killed_loses_nothing(
    tmp_path: Path, new_postgres: Callable[[], str], s3_server: SeaweedServer, new_s3: Callable[[], Any]
) -> None:
    env = {
        "FALAJ_STORE": new_postgres(),
        "FALAJ_BLOBS": _address(new_s3().url, s3_server),
        "FALAJ_SEAL_S": "0.2",
        **s3_server.environment,
    }
    home = tmp_path / "house"
    with Replica(home, env) as first, Replica(home, env, first=False) as second:
        acknowledged = _ask_twenty(first.as_(), "first")
        token = enroll(first.as_(), "omar", ("auditor",), jurisdiction="AE")
        first.kill()
        acknowledged += _ask_twenty(second.as_(first.token), "other")
        omar = second.as_(token)
        logged = {entry.body["digest"] for entry in omar.audit.log(verb="approvals.ask", limit=1000).entries}
        assert set(acknowledged) <= logged
        # The lease of the dead one runs out, and the living one seals what both wrote.
        sealed = _until(lambda: omar.audit.checkpoints(limit=1), lambda points: points and points[0].size >= 45)
        assert sealed[0].size >= 45
        pack = tmp_path / "evidence.zip"
        pack.write_bytes(omar.audit.export().read())
        assert omar.audit.verify(pack).ok


def test_replicas_that_start_together_make_one_house(tmp_path: Path, new_postgres: Callable[[], str]) -> None:
    env = {"FALAJ_STORE": new_postgres()}
    home = tmp_path / "house"
    with ThreadPoolExecutor(3) as pool:
        replicas = list(pool.map(lambda _: Replica(home, env, first=False), range(3)))
    try:
        assert all(replica.url for replica in replicas), "one of them did not start"
        _until(lambda: [replica.token for replica in replicas if replica.token], bool)
        tokens = [replica.token for replica in replicas if replica.token]
        assert len(tokens) == 1, "the admin token is shown once"
        for replica in replicas:
            assert replica.as_(tokens[0]).people.whoami().id == "admin"
    finally:
        for replica in replicas:
            replica.__exit__()


def _ask_twenty(here: Any, who: str) -> list[str]:
    return [here.approvals.ask("bench.run", f"{who}-replica:{n:040d}", "story").approval.digest for n in range(20)]


def _until(ask: Callable[[], Any], good: Callable[[Any], bool], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        found = ask()
        if good(found) or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


WATCH = """
import os, sys
def hook(event, args):
    if event in ("pickle.find_class", "os.system") or (event == "subprocess.Popen" and "verify" not in str(args)):
        with open(os.environ["FALAJ_WATCH"], "a") as file:
            file.write(event + " " + repr(args)[:200] + "\\n")
sys.addaudithook(hook)
"""


def test_no_code_bearing_format_is_opened_in_a_platform_process(tmp_path: Path) -> None:
    """A server under an audit hook serves the story's calls and a hostile artefact in every field that takes bytes."""
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    log = tmp_path / "watched"
    env = {"PYTHONPATH": str(tmp_path), "FALAJ_WATCH": str(log)}
    canary = tmp_path / "canary"
    gadget = f"cposix\nsystem\n(S'touch {canary}'\ntR.".encode()
    with Replica(tmp_path / "house", env) as replica:
        amal = replica.as_(enroll(replica.as_(), "amal", ("data-scientist",), jurisdiction="AE"))
        amal.store.put("blob:x/pickle", gadget, label="NONE", media="application/python-pickle")
        assert amal.store.get("blob:x/pickle").read() == gadget
        for act in (
            lambda: amal.approvals.ask("x.y", gadget.decode(), gadget.decode()),
            lambda: amal.audit.verify(gadget),
        ):
            with contextlib.suppress(FalajError):
                act()
        amal.store.list()
    assert not canary.exists()
    assert not log.exists(), log.read_text()


def test_errors_are_the_same_in_process_and_over_http(tmp_path: Path) -> None:
    with Replica(tmp_path / "house") as replica:
        remote, local = replica.as_(), falaj.connect(str(tmp_path / "house"), token=replica.token)
        acts: list[Callable[[Any], Any]] = [
            lambda here: here.store.show("blob:no/thing"),
            lambda here: here.store.show("not a reference"),
            lambda here: here.store.get("blob:no/thing"),
            lambda here: here.zones.show("nowhere"),
            lambda here: here.zones.add("x"),
            lambda here: here.people.add("UPPER", ("data-scientist",)),
            lambda here: here.store.put("blob:a/b", b"x", label="NONE"),
        ]
        for act in acts:
            mine, theirs = refusal(lambda a=act: a(local)), refusal(lambda a=act: a(remote))
            assert type(mine) is type(theirs), (mine, theirs)
            assert json.dumps(mine.wire()) == json.dumps(theirs.wire())
        local.close()


def test_people_of_the_provider_and_its_build_system_work_over_http(tmp_path: Path, oidc_provider: OidcServer) -> None:
    """A person signs in with the enterprise's provider; its build system holds no secret of ours."""
    server = oidc_provider
    env = {
        "FALAJ_IDENTITY": f"oidc:{server.issuer},local:",
        "FALAJ_OIDC_ISSUER": server.issuer,
        "FALAJ_OIDC_CLIENT": server.public_client,
        "FALAJ_OIDC_AUDIENCE": server.audience,
        "FALAJ_OIDC_TENANT": "bank",
        "FALAJ_OIDC_ROLES": "data-scientists=data-scientist",
        "FALAJ_OIDC_JURISDICTION": "AE",
    }
    with Replica(tmp_path / "house", env) as replica:
        boss = replica.as_(enroll_tenant(replica.as_(), "bank", "fatima"))
        alice = replica.as_(server.sign_in("alice")["access_token"])
        assert alice.people.whoami().tenant == "bank"
        alice.store.put("blob:fraud/a", b"of alice", label="NONE")

        rule = {"issuer": server.issuer, "audience": server.audience, "subject": server.service_client, "zone": "home"}
        sami, badr = (
            replica.as_(enroll(boss, name, (role,)))
            for name, role in {"sami": "security-officer", "badr": "approver"}.items()
        )
        badr.approvals.give(sami.people.trust("ci", rule).approval)
        assert sami.people.trust("ci", rule).state == "trusted"
        foreign = {"issuer": "https://169.254.169.254", "audience": "x", "subject": "y", "zone": "home"}
        assert "federation" in refusal(lambda: boss.people.trust("spy", foreign)).hint
        with falaj.connect(replica.url) as build:
            given = build.people.exchange("bank", "ci", server.service_token())
            assert refusal(build.store.list).code == "unauthenticated"
            assert refusal(lambda: build.people.exchange("bank", "ci", "not a token")).code == "unauthenticated"
        ci = replica.as_(given.token)
        assert ci.people.whoami().kind == "workload"
        assert ci.store.get("blob:fraud/a").read() == b"of alice"
        assert refusal(lambda: ci.people.add("mole", ("data-scientist",))).code == "denied"


@pytest.mark.parametrize("tls", [False, True])
def test_a_server_stops_when_asked_though_callers_keep_their_connections(tmp_path: Path, tls: bool) -> None:
    with Replica(tmp_path / "house", tls=tls) as replica:
        assert replica.as_().people.whoami().id == "admin"
        replica.process.terminate()
        # TLS alone would wait half a minute for the silent caller's last word.
        assert replica.process.wait(timeout=20) == 0
