"""Proves the threat-model row "an MLflow client names a place outside the store"; and readers are not shut out."""

from collections.abc import Iterator

import httpx
import pytest

from tests.api.mlflow.conftest import Place, place  # noqa: F401 - a fixture

SEARCH, CREATE = "/api/2.0/mlflow/experiments/search", "/api/2.0/mlflow/experiments/create"


@pytest.fixture(scope="module")
def http(place: Place) -> Iterator[httpx.Client]:  # noqa: F811
    with httpx.Client(base_url=place.url, timeout=30) as http:
        yield http


def ask(http: httpx.Client, place: Place, who: str, path: str, **body: object) -> httpx.Response:  # noqa: F811
    return http.post(path, json=body, headers={"Authorization": f"Bearer {place.tokens[who]}"})


def test_reader_searches_experiments_before_anybody_wrote_one(http: httpx.Client, place: Place) -> None:  # noqa: F811
    answer = ask(http, place, "omar", SEARCH, max_results=10)
    assert (answer.status_code, answer.json().get("experiments", [])) == (200, [])
    assert [each["name"] for each in ask(http, place, "amal", SEARCH).json()["experiments"]] == ["Default"]
    assert [each["name"] for each in ask(http, place, "omar", SEARCH).json()["experiments"]] == ["Default"]


@pytest.mark.parametrize(
    "location",
    ["mlflow-artifacts:/../../etc", "mlflow-artifacts:/a/..", "mlflow-artifacts://host/x", "mlflow-artifacts:/%2e%2e/x",
     "mlflow-artifacts:/a\\..\\b", "file:///etc", "/etc", "mlflow-artifacts:/a\nb"],
)  # fmt: skip
def test_artifact_location_outside_the_store_is_refused(http: httpx.Client, place: Place, location: str) -> None:  # noqa: F811
    answer = ask(http, place, "amal", CREATE, name="climbing", artifact_location=location)
    assert answer.status_code == 400
    assert answer.json()["error_code"] == "INVALID_PARAMETER_VALUE"
