"""Signing in with a browser, against a real OpenID Connect provider."""

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx

from falaj.cli.login import SavedLogin
from falaj.server import Server, load_settings
from tests.api.small import serving
from tests.cli.conftest import Run
from tests.servers.oidc import OidcServer


def test_a_person_signs_in_and_is_known(
    oidc_provider: OidcServer, environment: dict[str, str], falaj: Run, tmp_path: Path
) -> None:
    overrides = {
        "listen": "127.0.0.1:0",
        "identity": "local:,oidc:",
        "oidc.issuer": oidc_provider.issuer,
        "oidc.client": oidc_provider.public_client,
        "oidc.audience": oidc_provider.audience,
        "oidc.tenant": "house",
        "oidc.roles": {group: "auditor" for groups in oidc_provider.groups.values() for group in groups},
    }
    house = Server(load_settings(str(tmp_path / "home"), overrides))
    env = {**environment, "BROWSER": "true"}
    with serving(house) as server:
        command = [sys.executable, "-m", "falaj", "login", server.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as login:
            assert login.stderr is not None
            said = login.stderr.readline() + login.stderr.readline()
            found = re.search(r"http\S+", said)
            assert found, said
            callback = oidc_provider.browse(found[0], "alice")
            assert httpx.get(callback, trust_env=False).status_code == 200
            assert login.wait(30) == 0, login.stderr.read()
        who = json.loads(falaj("people", "whoami", "--json").stdout)
        assert "alice" in json.dumps(who)
        assert who["roles"] == ["auditor"]
        assert falaj("logout").returncode == 0
    house.close()


def test_a_token_that_lasts_is_not_renewed() -> None:
    assert SavedLogin("https://x", token="kept", refresh="r", expires=9e9).fresh_token() == "kept"
    assert SavedLogin("https://x", token="kept").fresh_token() == "kept"
