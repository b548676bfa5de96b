"""Each server does one real operation, keeps its data over a kill, and says what to install where it is missing."""

from collections.abc import Callable
from pathlib import Path

import httpx
import jwt
import pkcs11
import psycopg
import pytest
from obstore.exceptions import AlreadyExistsError, PermissionDeniedError
from obstore.store import S3Store

from tests.servers import fuse, install
from tests.servers import postgres as postgres_module
from tests.servers.oidc import OidcServer
from tests.servers.peers import whole
from tests.servers.postgres import PostgresServer
from tests.servers.process import Failed, Missing
from tests.servers.registry import RegistryServer
from tests.servers.seaweed import Bucket, SeaweedServer
from tests.servers.softhsm import SoftHsm


def test_postgres_gives_each_caller_an_empty_database(new_postgres: Callable[[], str]) -> None:
    first, second = new_postgres(), new_postgres()
    with psycopg.connect(first) as connection:
        connection.execute("CREATE TABLE facts (n int)")
    with psycopg.connect(second) as connection:
        assert connection.execute("SELECT to_regclass('facts')").fetchone() == (None,)


def test_postgres_data_survives_a_kill(postgres_server: PostgresServer) -> None:
    # The fixture only proves that PostgreSQL is installed; the shared server is not the one to kill.
    with PostgresServer() as server:
        url = server.create_database()
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE facts AS SELECT 7 AS n")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
        server.restart()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT n FROM facts").fetchone() == (7,)
        server.restart()
        folder = server.folder
    assert not folder.exists()
    assert postgres_server.pid


def test_postgres_stops_while_a_client_is_connected(postgres_url: str) -> None:
    with PostgresServer() as server:
        connection = psycopg.connect(server.url())
        server.stop()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        connection.close()


def test_s3_stores_lists_and_refuses_to_overwrite(s3_url: Bucket) -> None:
    store = S3Store.from_url(s3_url.url, **s3_url.options)
    store.put("folder/object", b"water", mode="create")
    assert bytes(store.get("folder/object").bytes()) == b"water"
    assert [entry["path"] for entry in store.list().collect()] == ["folder/object"]
    with pytest.raises(AlreadyExistsError):
        store.put("folder/object", b"sand", mode="create")


def test_s3_refuses_a_wrong_key(s3_url: Bucket) -> None:
    store = S3Store.from_url(s3_url.url, **s3_url.options | {"secret_access_key": "wrong"})
    with pytest.raises(PermissionDeniedError):
        store.get("folder/object")


def test_s3_objects_survive_a_kill(s3_server: SeaweedServer) -> None:
    with SeaweedServer() as server:
        bucket = server.create_bucket()
        store = S3Store.from_url(bucket.url, **bucket.options)
        store.put("object", b"water")
        server.kill()
        server.restart()
        assert bytes(store.get("object").bytes()) == b"water"
    assert s3_server.pid


def test_oidc_signs_people_and_services_in(oidc_provider: OidcServer) -> None:
    service = _verified(oidc_provider, oidc_provider.service_token(), oidc_provider.audience)
    assert (service["sub"], service["groups"]) == ("falaj-ci", ["services"])

    tokens = oidc_provider.sign_in("alice")
    person = _verified(oidc_provider, tokens["id_token"], oidc_provider.public_client)
    assert (person["email"], person["groups"]) == ("alice@example.test", ["data-scientists"])
    assert _verified(oidc_provider, tokens["access_token"], oidc_provider.audience)["sub"] == "alice"


def test_oidc_refuses_a_wrong_secret(oidc_provider: OidcServer) -> None:
    form = {"grant_type": "client_credentials", "resource": oidc_provider.audience}
    answer = httpx.post(f"{oidc_provider.issuer}/token", data=form, auth=("falaj-ci", "wrong"), trust_env=False)
    assert answer.status_code == 401


def test_oidc_restart_rotates_the_keys(oidc_provider: OidcServer) -> None:
    with OidcServer() as server:
        old = server.service_token()
        server.kill()
        server.restart()
        with pytest.raises(jwt.PyJWKClientError):
            _verified(server, old, server.audience)
        assert _verified(server, server.service_token(), server.audience)
    assert oidc_provider.pid


def test_softhsm_keeps_its_key_and_encrypts(softhsm: SoftHsm) -> None:
    token = pkcs11.lib(softhsm.library).get_token(token_label=softhsm.label)
    with token.open(user_pin=softhsm.pin, rw=True) as session:
        key = session.generate_key(pkcs11.KeyType.AES, 256, label="round-trip")
        nonce = session.generate_random(128)
        sealed = key.encrypt(b"water" * 16, mechanism=pkcs11.Mechanism.AES_CBC_PAD, mechanism_param=nonce)
        opened = key.decrypt(sealed, mechanism=pkcs11.Mechanism.AES_CBC_PAD, mechanism_param=nonce)
        assert opened == b"water" * 16
        with pytest.raises(pkcs11.AttributeSensitive):
            _ = key[pkcs11.Attribute.VALUE]


def test_a_server_that_ends_at_once_shows_its_log(postgres_server: PostgresServer) -> None:
    broken = PostgresServer(no_such_setting="1")
    with pytest.raises(Failed, match="no_such_setting"):
        broken.__enter__()
    assert not broken.folder.exists()
    assert postgres_server.pid


def test_a_missing_component_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(postgres_module, "Path", lambda _: Path("no such folder"))
    with pytest.raises(Missing, match="apt-get install postgresql"):
        PostgresServer()


def test_install_is_silent_when_nothing_is_missing(
    postgres_server: PostgresServer,
    s3_server: SeaweedServer,
    oidc_provider: OidcServer,
    softhsm: SoftHsm,
    oci_registry: RegistryServer,
    capfd: pytest.CaptureFixture[str],
) -> None:
    try:
        fuse.library()
    except Missing as missing:
        pytest.skip(str(missing))
    assert install.main() == 0
    assert capfd.readouterr() == ("", "")


def _verified(server: OidcServer, token: str, audience: str) -> dict[str, object]:
    """The claims of `token`, checked against the keys the provider publishes."""
    key = jwt.PyJWKClient(f"{server.issuer}/jwks").get_signing_key_from_jwt(token)
    claims: dict[str, object] = jwt.decode(token, key, algorithms=["RS256"], audience=audience, issuer=server.issuer)
    return claims


def test_a_peer_that_lost_a_program_is_not_whole(tmp_path: Path) -> None:
    record = tmp_path / "lib/python3.11/site-packages/tool-1.0.dist-info/RECORD"
    for file in (tmp_path / "bin/python", tmp_path / "bin/tool", record):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    record.write_text("../../../bin/tool,sha256=4MjI,334\ntool/__init__.py,,\n")
    assert whole(tmp_path)

    (tmp_path / "bin/tool").unlink()

    assert not whole(tmp_path)
