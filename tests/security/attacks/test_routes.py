"""Every operation refuses a caller without a token, and no error reveals internals of the server."""

import random
from collections.abc import Iterator

import httpx
import pytest

from tests.security.attacks.conftest import ServedInstallation
from tests.security.privilege_walk import ACTIONS

ODD_BODIES = (b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"name":', b'{"name": {"a": [1]}}', b'{"unknown": 1}')


@pytest.fixture(scope="module")
def http(served: ServedInstallation) -> Iterator[httpx.Client]:
    headers = {"content-type": "application/json"}
    with httpx.Client(base_url=served.url, trust_env=False, timeout=20, headers=headers) as client:
        yield client


def test_no_operation_answers_without_a_token(http: httpx.Client) -> None:
    statuses = {action: http.post(f"/v1/{action.replace('.', '/')}", content=b"{}").status_code for action in ACTIONS}
    assert {action: status for action, status in statuses.items() if status not in (401, 404, 429)} == {}
    assert sum(status == 401 for status in statuses.values()) > 0


def test_no_error_shows_a_path_or_a_traceback(http: httpx.Client, served: ServedInstallation) -> None:
    headers = served.authorization("bank", "visitor")
    rng = random.Random(0)
    for action in ACTIONS:
        response = http.post(f"/v1/{action.replace('.', '/')}", content=rng.choice(ODD_BODIES), headers=headers)
        assert response.status_code < 500, (action, response.text)
        for secret in (str(served.planted.home.parent), "Traceback", "site-packages", "src/falaj"):
            assert secret not in response.text, (action, response.text)
