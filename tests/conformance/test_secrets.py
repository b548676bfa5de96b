"""One suite for every holder of root keys: a folder, a PKCS#11 token (SoftHSM2), the transit API (contract server)."""

import contextlib
import os
import pickle
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.backends.file_root_keys import FileRootKeyProvider
from falaj.backends.vault_root_keys import VaultRootKeyProvider
from falaj.core.errors import CorruptData, Denied, FalajError, Invalid, NotFound, Unavailable
from falaj.core.ports import SupportsKeyRetirement
from falaj.core.ref import Ref
from falaj.govern.key_table import decode_root_wrapped
from tests.govern.keyhouse import House
from tests.servers.transit import TransitServer

Open = Callable[[], Any]
KEY = bytes(range(32))


@pytest.fixture(scope="module")
def transit() -> Iterator[TransitServer]:
    with TransitServer() as server:
        yield server
        assert server.surprises == []


@pytest.fixture(params=["file", "file+passphrase", "pkcs11", "vault"])
def open_secrets(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens the same holder again and again, as restarts and replicas do."""
    opened: list[Any] = []

    def make() -> Any:
        opened.append(_open(request, tmp_path, monkeypatch))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def _open(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "file":
        return FileRootKeyProvider(f"file:{folder}/keys", {})
    if request.param == "file+passphrase":
        monkeypatch.setenv("A_PASSPHRASE", "open, sesame")
        return FileRootKeyProvider(f"file:{folder}/keys?passphrase=env:A_PASSPHRASE", {})
    if request.param == "pkcs11":
        from falaj.backends.pkcs11_root_keys import Pkcs11RootKeyProvider

        hsm = request.getfixturevalue("softhsm")
        monkeypatch.setenv("A_PIN", hsm.pin)
        return Pkcs11RootKeyProvider(f"pkcs11:{hsm.library}?token={hsm.label}&pin=env:A_PIN", {})
    server: TransitServer = request.getfixturevalue("transit")
    monkeypatch.setenv("A_TOKEN", server.token)
    return VaultRootKeyProvider(f"vault:{server.url}?token=env:A_TOKEN&ca={server.ca}", {})


@pytest.fixture
def name() -> str:
    return f"root-{secrets.token_hex(6)}"


def test_what_is_wrapped_unwraps_also_after_a_restart(open_secrets: Open, name: str) -> None:
    wrapped = open_secrets().wrap(name, KEY, b"zone ae")
    assert KEY not in wrapped
    assert open_secrets().unwrap(name, wrapped, b"zone ae") == KEY


def test_wrapping_twice_gives_different_bytes(open_secrets: Open, name: str) -> None:
    holder = open_secrets()
    assert holder.wrap(name, KEY, b"c") != holder.wrap(name, KEY, b"c")


def test_another_context_or_another_name_does_not_open(open_secrets: Open, name: str) -> None:
    holder = open_secrets()
    wrapped = holder.wrap(name, KEY, b"zone ae")
    holder.wrap(f"{name}-b", KEY, b"zone ae")
    for other, context in ((name, b"zone us"), (name, b""), (f"{name}-b", b"zone ae")):
        with pytest.raises(CorruptData):
            holder.unwrap(other, wrapped, context)


def test_any_changed_byte_or_cut_is_refused(open_secrets: Open, name: str) -> None:
    holder = open_secrets()
    wrapped = holder.wrap(name, KEY, b"c")

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(at=st.integers(0, len(wrapped) - 1), flip=st.integers(1, 255), cut=st.booleans())
    def broken(at: int, flip: int, cut: bool) -> None:
        bad = wrapped[:at] if cut else wrapped[:at] + bytes([wrapped[at] ^ flip]) + wrapped[at + 1 :]
        with pytest.raises((CorruptData, NotFound)):
            holder.unwrap(name, bad, b"c")

    broken()


def test_rotation_wraps_under_the_new_version_and_opens_the_old(open_secrets: Open, name: str) -> None:
    holder = open_secrets()
    before = holder.wrap(name, KEY, b"c")
    assert holder.rotate(name) == 2
    after = holder.wrap(name, KEY, b"c")
    assert [holder.version(w) for w in (before, after)] == [1, 2]
    assert {holder.unwrap(name, w, b"c") for w in (before, after)} == {KEY}
    assert open_secrets().newest(name) == 2


def test_rotating_what_does_not_exist_makes_it(open_secrets: Open, name: str) -> None:
    holder = open_secrets()
    assert holder.newest(name) == 0
    assert holder.rotate(name) == 1


def test_a_retired_version_opens_nothing_and_the_newest_never_retires(open_secrets: Open, name: str) -> None:
    holder = open_secrets()
    assert isinstance(holder, SupportsKeyRetirement)
    old = holder.wrap(name, KEY, b"c")
    holder.rotate(name)
    new = holder.wrap(name, KEY, b"c")
    holder.retire(name, below_version=99)
    with pytest.raises((CorruptData, NotFound)):
        holder.unwrap(name, old, b"c")
    assert holder.unwrap(name, new, b"c") == KEY


def test_replicas_that_make_the_first_version_at_once_open_each_others_keys(open_secrets: Open, name: str) -> None:
    holders = [open_secrets() for _ in range(4)]
    start = threading.Barrier(4)
    wrapped: list[bytes] = []

    def work(holder: Any) -> None:
        start.wait()
        wrapped.append(holder.wrap(name, KEY, b"c"))

    threads = [threading.Thread(target=work, args=(holder,)) for holder in holders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrapped) == 4
    assert all(holder.unwrap(name, one, b"c") == KEY for holder in holders for one in wrapped)


@pytest.mark.parametrize("bad", ["", "../x", "a/b", "A", "a.b", "x" * 64, "a\0"])
def test_names_that_could_be_paths_are_refused(open_secrets: Open, bad: str) -> None:
    with pytest.raises(Invalid):
        open_secrets().wrap(bad, KEY, b"c")


def test_a_holder_shows_nothing_of_itself(open_secrets: Open, name: str) -> None:
    holder = open_secrets()
    holder.wrap(name, KEY, b"c")
    assert "sesame" not in repr(holder)
    with pytest.raises(TypeError):
        pickle.dumps(holder)


def test_bytes_of_another_provider_are_corrupt(open_secrets: Open, name: str) -> None:
    with pytest.raises(CorruptData):
        open_secrets().unwrap(name, b"\x63" + os.urandom(80), b"c")


def test_a_whole_house_stands_on_it_and_its_root_rotates(open_secrets: Open, tmp_path: Path) -> None:
    house = House(tmp_path, secrets=open_secrets())
    house.ring.table.root = name = f"house-{secrets.token_hex(4)}"
    house.write("t", {"n": 1})
    house.rotations.begin(house.house_ctx(), "root", "house", "")
    house.finish_rotations()
    other = House(tmp_path, secrets=open_secrets())
    other.ring.table.root = name
    assert other.read("t") == {"n": 1}
    with other.ledger.read(other.house_ctx()) as tx:
        wrapped = decode_root_wrapped(tx.need(Ref("key", "keys", "zone.uae")).body["versions"]["1"])
    assert other.secrets.version(wrapped) == other.secrets.newest(name) == 2
    house.ledger.close()
    other.ledger.close()


# the folder


def test_wider_permissions_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    FileRootKeyProvider(f"file:{folder}", {}).wrap("root", KEY, b"c")
    assert folder.stat().st_mode & 0o777 == 0o700
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    for mode in (0o640, 0o604, 0o620, 0o610):
        file.chmod(mode)
        with pytest.raises(Invalid, match="open to other users"):
            FileRootKeyProvider(f"file:{folder}", {}).wrap("root", KEY, b"c")
    file.chmod(0o600)
    for mode in (0o750, 0o701, 0o777):
        folder.chmod(mode)
        with pytest.raises(Invalid, match="open to other users"):
            FileRootKeyProvider(f"file:{folder}", {})
    folder.chmod(0o700)
    assert FileRootKeyProvider(f"file:{folder}", {}).newest("root") == 1


def test_links_are_not_followed(tmp_path: Path) -> None:
    real = FileRootKeyProvider(f"file:{tmp_path}/real", {})
    wrapped = real.wrap("root", KEY, b"c")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(Invalid):
        FileRootKeyProvider(f"file:{tmp_path}/link", {})
    other = FileRootKeyProvider(f"file:{tmp_path}/other", {})
    (tmp_path / "other" / "root.1.key").symlink_to(tmp_path / "real" / "root.1.key")
    with pytest.raises(Invalid):
        other.unwrap("root", wrapped, b"c")


def test_a_passphrase_keeps_the_key_off_the_disk(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/keys"
    wrapped = FileRootKeyProvider(url, {"passphrase": "right"}).wrap("root", KEY, b"c")
    assert "plain" not in (tmp_path / "keys" / "root.1.key").read_text()
    for options in ({}, {"passphrase": "wrong"}):
        with pytest.raises(Invalid, match="passphrase"):
            FileRootKeyProvider(url, options).unwrap("root", wrapped, b"c")
    assert FileRootKeyProvider(url, {"passphrase": "right"}).unwrap("root", wrapped, b"c") == KEY


@pytest.mark.parametrize(
    "content", ["", "falaj-root-1", "falaj-root-1 plain !!!", "falaj-root-9 plain AAAA", "falaj-root-1 plain AAAA"]
)
def test_a_damaged_key_file_is_corrupt_and_stays_as_it_is(tmp_path: Path, content: str) -> None:
    holder = FileRootKeyProvider(f"file:{tmp_path}/keys", {})
    file = tmp_path / "keys" / "root.1.key"
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(CorruptData):
        holder.wrap("root", KEY, b"c")
    assert file.read_text() == content


def test_a_folder_that_went_away_is_said(tmp_path: Path) -> None:
    holder = FileRootKeyProvider(f"file:{tmp_path}/keys", {})
    (tmp_path / "keys").rmdir()
    with pytest.raises(Unavailable, match="cannot be written"):
        holder.wrap("root", KEY, b"c")


def test_a_half_written_file_of_a_crash_is_no_version(tmp_path: Path) -> None:
    holder = FileRootKeyProvider(f"file:{tmp_path}/keys", {})
    (tmp_path / "keys" / ".0011223344556677.tmp").write_text("falaj-root-1 pl")
    assert holder.newest("root") == 0
    assert holder.unwrap("root", holder.wrap("root", KEY, b"c"), b"c") == KEY


# the token


def test_root_keys_cannot_leave_the_token(softhsm: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    import pkcs11

    from falaj.backends.pkcs11_root_keys import Pkcs11RootKeyProvider

    holder = Pkcs11RootKeyProvider(f"pkcs11:{softhsm.library}", {"token": softhsm.label, "pin": softhsm.pin})
    holder.wrap(name, KEY, b"c")
    (key,) = holder._login.session.get_objects({pkcs11.Attribute.LABEL: f"falaj-{name}-v1"})
    with pytest.raises(pkcs11.PKCS11Error):
        _ = key[pkcs11.Attribute.VALUE]
    assert key[pkcs11.Attribute.EXTRACTABLE] is False
    holder.close()


def test_a_pin_in_the_address_is_refused(softhsm: Any) -> None:
    from falaj.backends.pkcs11_root_keys import Pkcs11RootKeyProvider

    with pytest.raises(Invalid, match="pin") as refused:
        Pkcs11RootKeyProvider(f"pkcs11:{softhsm.library}?token={softhsm.label}&pin={softhsm.pin}", {})
    assert softhsm.pin not in str(refused.value)


@pytest.mark.parametrize(
    ("library", "token", "error"), [("/nowhere.so", "falaj-test", Unavailable), ("", "no-such-token", Unavailable)]
)
def test_a_missing_library_or_token_is_said(softhsm: Any, library: str, token: str, error: type[FalajError]) -> None:
    from falaj.backends.pkcs11_root_keys import Pkcs11RootKeyProvider

    with pytest.raises(error):
        Pkcs11RootKeyProvider(f"pkcs11:{library or softhsm.library}", {"token": token, "pin": softhsm.pin})


# the transit API


@contextlib.contextmanager
def vault(server: TransitServer, monkeypatch: pytest.MonkeyPatch, token: str = "") -> Iterator[VaultRootKeyProvider]:
    monkeypatch.setenv("A_TOKEN", token or server.token)
    with contextlib.closing(VaultRootKeyProvider(f"vault:{server.url}?token=env:A_TOKEN&ca={server.ca}", {})) as holder:
        yield holder


def test_without_the_create_capability_the_key_is_made_explicitly(monkeypatch: pytest.MonkeyPatch) -> None:
    with TransitServer() as server:
        server.upsert = False
        with vault(server, monkeypatch) as holder:
            assert holder.unwrap("root", holder.wrap("root", KEY, b"c"), b"c") == KEY
        assert ("POST", "/v1/transit/keys/root") in server.requests
        assert server.surprises == []


@pytest.mark.parametrize(
    ("mode", "token", "error"),
    [
        ("sealed", "", Unavailable),
        ("ok", "forged", Denied),
        ("redirect", "", Unavailable),
        ("nonsense", "", Unavailable),
    ],
)
def test_a_server_that_cannot_answer_is_said_and_no_key_leaks(
    monkeypatch: pytest.MonkeyPatch, mode: str, token: str, error: type[FalajError]
) -> None:
    with TransitServer() as server:
        server.mode = mode
        with vault(server, monkeypatch, token) as holder, pytest.raises(error) as raised:
            holder.wrap("root", KEY, b"c")
        said = str(raised.value) + repr(raised.value.__cause__)
        assert "AAECAwQF" not in said
        assert server.token not in said


def test_the_certificate_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    with TransitServer() as server:
        monkeypatch.setenv("A_TOKEN", server.token)
        holder = VaultRootKeyProvider(f"vault:{server.url}?token=env:A_TOKEN", {})
        with contextlib.closing(holder), pytest.raises(Unavailable):
            holder.wrap("root", KEY, b"c")
        assert server.requests == []


@pytest.mark.parametrize("url", ["vault:http://vault.example:8200/transit", "vault:ftp://127.0.0.1/transit", "vault:"])
def test_plain_http_to_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("A_TOKEN", "t")
    with pytest.raises(Invalid):
        VaultRootKeyProvider(f"{url}?token=env:A_TOKEN", {})


def test_a_server_that_is_gone_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as stack:
        with TransitServer() as server:
            holder = stack.enter_context(vault(server, monkeypatch))
        with pytest.raises(Unavailable):
            holder.wrap("root", KEY, b"c")
