"""Proves the threat-model row "a copy of the online store is read, or its rows exchanged": rows open with the tenant's
key, at their own place, and for readers of the service alone."""

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from falaj.backends.lmdb_online import LmdbOnlineStore
from falaj.core.errors import CorruptData, Denied, NotFound, Unavailable
from falaj.core.online_rows import build_tenant_address
from tests.people import enroll
from tests.security.attacks.feature_ground import CANARY, timestamp
from tests.servers.redis import RedisServer
from tests.town import Town, refusal

SERVICE = "service:ward/all"
PATIENT = "784-1990-1234567-1"
DEFINITIONS = """from falaj.features import Entity, Feature, Service, Source, Window, view

patient = Entity("ward/patient", keys={"id": "string"})
files = view("ward/files", patient, Source("push", event="at"), features=[Feature("note", "string")])
visits = view("ward/visits", patient, Source("push", event="at"), features=[Feature("text", "string")],
              windows=[Window("last", "text", "30d", n=5)])
ward = Service("ward/all", [files, visits])
"""


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture(params=["lmdb", "redis"])
def town(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Town]:
    """The clinic's features hold the canary: as a value, and as the state of a window."""
    settings = {"online": request.getfixturevalue("redis").url} if request.param == "redis" else {}
    with closing(Town(tmp_path / "home", **settings)) as running:
        (tmp_path / "features.py").write_text(DEFINITIONS)
        sara = running.as_("sara")
        sara.features.apply(str(tmp_path / "features.py"))
        sara.features.push("view:ward/files", [{"id": PATIENT, "at": timestamp(-1), "note": CANARY}])
        sara.features.push("view:ward/visits", [{"id": PATIENT, "at": timestamp(-1), "text": CANARY}])
        yield running


def read_notes(town: Town) -> dict[str, Any]:
    columns: dict[str, Any] = town.as_("sara").features.read(SERVICE, {"id": [PATIENT]}).columns
    return columns


def stored_bytes(town: Town, request: pytest.FixtureRequest) -> bytes:
    """Everything that the online store holds, as its owner sees it."""
    if town.house.settings.online.startswith("redis"):
        server = request.getfixturevalue("redis")
        command_by_type = {b"string": "GET", b"set": "SMEMBERS"}
        stored = [(key, server.ask(command_by_type[server.ask("TYPE", key)], key)) for key in server.ask("KEYS", "*")]
        return repr(stored).encode()
    folder = Path(town.house.settings.home, "online")
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def raw_store(town: Town, tenant: str) -> Any:
    """The store of a tenant as someone opens it who has its address and no key."""
    from falaj.plugins import load_plugin

    address = build_tenant_address(town.house.settings.at(town.house.settings.online), tenant)
    return load_plugin("online", address.partition(":")[0])(address, {})


def hash_key(town: Town, tenant: str, space: str, key: str) -> bytes:
    """What the store has in place of an entity key."""
    secret = town.house.keyring.online_keys(tenant, space).hash_key
    return hashlib.blake2b(key.encode(), digest_size=16, key=secret).digest()


def test_copy_of_the_store_holds_no_planted_value(town: Town, request: pytest.FixtureRequest) -> None:
    notes = read_notes(town)
    assert notes["note"] == [CANARY]
    assert notes["last_text_30d"] == [[CANARY]]
    stored = stored_bytes(town, request)
    assert not any(word.encode() in stored for word in (PATIENT, CANARY, *CANARY.split()))


def test_rows_of_one_tenant_do_not_open_with_the_key_of_another(town: Town) -> None:
    plan = town.as_("sara").features.open(SERVICE).plan
    spaces = [view.space for view in plan.views]
    with closing(raw_store(town, "clinic")) as clinic, closing(raw_store(town, "bank")) as bank:
        for space in spaces:
            ((stored_key, cell),) = clinic.scan(space)
            bank_key = hash_key(town, "bank", space, PATIENT)
            assert stored_key == hash_key(town, "clinic", space, PATIENT) != bank_key
            bank.put(space, [(stored_key, cell), (bank_key, cell)], 2_000_000_000_000_000)
    for space in spaces:
        asks = [(space, [PATIENT.encode()])]
        assert isinstance(refusal(lambda asks=asks: town.house.online("bank").get(asks)), CorruptData)
        assert town.house.online("clinic").get(asks) != [[None]]


def test_row_moved_to_another_key_or_planted_in_the_clear_is_refused(town: Town) -> None:
    plan = town.as_("sara").features.open(SERVICE).plan
    for view in plan.views:
        with closing(raw_store(town, "clinic")) as store:
            ((_, cell),) = store.scan(view.space)
            p2, p3 = (hash_key(town, "clinic", view.space, patient) for patient in ("p2", "p3"))
            store.put(view.space, [(p2, cell), (p3, cell[:24] + CANARY.encode() * 4)], 2_000_000_000_000_000)
        for key in ("p2", "p3"):
            read = lambda key=key, view=view: town.as_("sara").features.read(view.ref, {"id": [key]})  # noqa: E731
            assert isinstance(refusal(read), (CorruptData, Unavailable))


def test_only_readers_of_the_service_get_its_keys(town: Town) -> None:
    keys = town.as_("sara").features.unlock(SERVICE).spaces
    assert len(keys) == 2
    yusuf = town.as_("yusuf")  # administers the clinic, and reads no data
    assert isinstance(refusal(lambda: yusuf.features.unlock(SERVICE)), Denied)
    assert isinstance(refusal(lambda: town.as_("amal").features.unlock(SERVICE)), (Denied, NotFound))
    own = enroll(yusuf, "huda", ("auditor",), jurisdiction="AE")
    town.tokens["huda"] = own
    assert isinstance(refusal(lambda: town.as_("huda").features.unlock(SERVICE)), Denied)
    events = town.events("clinic", verb="features.unlock")
    assert {event.actor for event in events} == {"sara"}
    texts = [text for versions in keys.values() for text in versions.values()]
    assert not any(text in str(event) for event in town.events("clinic") for text in texts)


def test_lmdb_folder_copied_to_another_installation_stays_closed(tmp_path: Path) -> None:
    with closing(Town(tmp_path / "first")) as first, closing(Town(tmp_path / "second")) as second:
        first.house.online("clinic").put("s", [(b"k", b"\x80" + bytes(23) + CANARY.encode())], 1)
        first.house.online("clinic").close()
        shutil.copytree(tmp_path / "first" / "online" / "clinic", tmp_path / "second" / "online" / "clinic")
        with closing(LmdbOnlineStore(f"lmdb:{tmp_path}/second/online/clinic")) as store:
            assert len(store.scan("s")) == 1
        assert second.house.online("clinic").get([("s", [b"k"])]) == [[None]]
        assert isinstance(refusal(lambda: second.house.online("clinic").scan("s")), CorruptData)
