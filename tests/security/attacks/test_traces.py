"""Threat-model row: prompts and answers in traces are read only by roles that may read data."""

from collections.abc import Iterator

import httpx
import pytest

from falaj.core.errors import Denied, NotFound
from tests.security.attacks.labelled import SEEING, Bank, line, serving
from tests.town import refusal

PROMPT = "Patient Amal Rashed, Emirates ID 784-1984, asks for her result"
TRACE = f"tr-{'4' * 32}"
NAME = f"trace:fraud/{TRACE}"


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    bank = Bank(tmp_path_factory.mktemp("bank"))
    facts = {"request": PROMPT, "response": PROMPT, "client": PROMPT}
    bank.as_("amal").traces.record("experiment:fraud/plain", TRACE, facts=facts, tags={"asked": PROMPT})
    with serving(bank) as bank.url:
        yield bank
    bank.close()


@pytest.mark.parametrize("person", SEEING)
def test_roles_that_only_see_are_refused_traces(bank: Bank, person: str) -> None:
    platform = bank.as_(person)
    for act in (lambda: platform.traces.show(NAME), lambda: platform.traces.list("experiment:fraud/plain")):
        refused = refusal(act)
        assert isinstance(refused, Denied | NotFound)
        assert PROMPT not in f"{refused} {refused.hint}"


@pytest.mark.parametrize("person", SEEING)
def test_mlflow_and_console_show_no_trace_to_roles_that_only_see(bank: Bank, person: str) -> None:
    number = bank.as_("amal").track.experiment("experiment:fraud/plain").id
    place = {"mlflow_experiment": {"experiment_id": number}}
    with line(bank.url, bank.tokens[person]) as caller:
        answers = [
            caller.post("/api/3.0/mlflow/traces/search", json={"locations": [place]}),
            caller.get(f"/api/3.0/mlflow/traces/{TRACE}"),
            caller.post("/api/3.0/mlflow/traces/batchGetInfos", json={"trace_ids": [TRACE]}),
        ]
        assert [PROMPT in answer.text for answer in answers] == [False] * 3
    with httpx.Client(base_url=bank.url, trust_env=False, timeout=30, headers={"origin": bank.url}) as browser:
        browser.post("/console/sign-in", data={"token": bank.tokens[person], "back": "/console"})
        for path in (f"track/{NAME}", "track/experiment:fraud/plain?tab=traces"):
            page = browser.get(f"/console/{path}")
            assert page.status_code < 500
            assert PROMPT not in page.text


def test_a_data_scientist_reads_traces_everywhere(bank: Bank) -> None:
    assert bank.as_("amal").traces.show(NAME).request == PROMPT
    with line(bank.url, bank.tokens["amal"]) as caller:
        infos = caller.post("/api/3.0/mlflow/traces/batchGetInfos", json={"trace_ids": [TRACE]})
    assert PROMPT in infos.text


def test_reading_a_trace_is_recorded(bank: Bank) -> None:
    bank.as_("amal").traces.show(NAME)
    assert bank.events(verb="traces.show")[-1].actor == "amal"
