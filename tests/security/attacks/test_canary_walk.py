"""Threat-model row: no operation, page or MLflow route shows a value of labelled data to who may not read the data."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from falaj.api.mlflow.routes import ENDPOINT_MODULES
from falaj.console.pages import list_routes
from falaj.core.argument_binding import union_members
from falaj.core.operation import Operation, OperationParam, list_operations
from falaj.core.ref import Ref
from falaj.drift.records import DriftFinding
from falaj.monitor.records import MonitorWindow, WatchPlan
from falaj.monitor.watch_operations import make_watch_ref
from falaj.serve import state_machine
from falaj.serve.sealed_blocks import RowOwner
from falaj.services import SERVICES, load_service_class
from tests.infer import models
from tests.security.attacks.labelled import CANARY, SEEING, WORD, Bank, line, serving
from tests.serve.laptop import SMALL

NUMBER = "784.784"
TEXTS = ("note", "why", "said", "message", "paused", "outcome", "text", "about", "reason", "title")
QUESTIONS = ("see", "read", "audit", "move", "operate")
LASTING = frozenset({"flows.hear", "audit.watch", "store.backup", "store.drill", "store.scrub", "store.preserve"})
"""Operations that wait for something to happen, or that read the whole store."""
WORDS: Mapping[str, Any] = {
    "metric": "loss",
    "metrics": ["loss"],
    "stage": "production",
    "alias": "best",
    "where": f"params.`{WORD}` = '{WORD}'",
    "path": "report.txt",
    "action": "catalog.show",
    "what": "catalog.show",
    "event": "catalog.commit",
    "to": "ae-dubai",
    "regime": "AE-PDPL",
    "basis": "AE-PDPL:consent",
    "subjects": ["x"],
    "purpose": "fraud",
    "by": "queue",
    "digest": "0" * 64,
    "spec": {"command": ["true"]},
    "plan": {},
    "definition": {},
    "keys": [],
    "limit": 100,
    "op": "view",
    "country": "AE",
    "mine": False,
}


@dataclass(frozen=True)
class Ground:
    """The bank behind its server, and the names of what it keeps."""

    bank: Bank
    url: str
    refs: tuple[str, ...]
    experiments: tuple[str, ...]
    """By the numbers that MLflow knows them by."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    bank = Bank(tmp_path_factory.mktemp("bank"))
    with bank.house.working():
        jobs = [bank.run_leaky_job("amal"), bank.run_leaky_job("bob", exit_code=3)]
    for job in jobs:
        bank.leak_through(bank.attempt_of(job), job.run)
    watch_endpoint(bank)
    make_pipelines(bank)
    plant_texts(bank)
    with serving(bank) as url:
        experiments = bank.as_("amal").track.experiments().experiments
        yield Ground(bank, url, names_in(bank), tuple(experiment.id for experiment in experiments))
    bank.close()


def watch_endpoint(bank: Bank) -> None:
    """An endpoint of a model made from the data, with a window whose findings show values of it."""
    amal, desk = bank.as_("amal"), bank.house.desks["monitor"]
    folder = models.mlp(bank.home / "model", seed=1)
    model = amal.catalog.publish("model:fraud/scorer", str(folder), inputs={"data": bank.data}, message=WORD).ref
    amal.catalog.annotate(model, tags={WORD: WORD})
    amal.catalog.attest(model, "report", True, facts={WORD: WORD}, metrics={WORD: 784.784})
    endpoint = Ref.parse("endpoint:fraud/score")
    amal.serve.deploy(endpoint, model, **SMALL)
    ctx = replace(bank.house.system(), tenant="bank")
    with bank.house.ledger.write(ctx) as tx:
        old = tx.need(endpoint)
        tx.emit("test.switch", tx.put(old.key, state_machine.switch_traffic(old.body, 1, ctx.now()), rev=old.rev).ref)
    amal.monitor.add(endpoint, WatchPlan(every_s=60.0))
    for number in range(1, 5):
        finding = DriftFinding(
            "input", "name", segment=WORD, value=784.784, p=0.0, rows=9, alarm=True, said=f"saw {WORD}"
        )
        with bank.house.ledger.read(ctx) as tx:
            watch = tx.need(make_watch_ref(endpoint))
        began = ctx.now() - (6 - number) * 3600.0
        window = MonitorWindow(began, began + 3600.0, 1, 9, (finding,), note=WORD, number=number)
        desk.judged(ctx, watch, window)
        desk.kept.append(RowOwner("bank", endpoint, ctx.zone), window)
    with bank.house.ledger.read(ctx) as tx:
        watch = tx.need(make_watch_ref(endpoint))
    desk.tend(ctx, watch, ctx.now())
    for incident in amal.monitor.incidents():
        amal.monitor.note(incident.ref, WORD)


def make_pipelines(bank: Bank) -> None:
    """A sweep on the data that is never run."""
    amal = bank.as_("amal")
    plan = {"space": ["lr=uniform(0,1)"], "metric": "loss", "trials": 2}
    amal.sweeps.add("sweep:fraud/rates", plan, {"command": ["true"]}, inputs={"data": bank.data})


def plant_texts(bank: Bank) -> None:
    """Write the canary into every free text of every labelled record: what a loop or a program could have put there."""
    ctx = replace(bank.house.system(), tenant="bank")
    for kind in ("job", "sweep", "trial", "endpoint", "replica", "watch", "verdict", "incident", "turn", "output"):
        with bank.house.ledger.write(ctx) as tx:
            for record in tx.find(kind, tenant="bank", limit=1000).records:
                if record.label.is_open:
                    continue
                body = {
                    name: WORD if name in TEXTS and isinstance(value, str) else value
                    for name, value in record.body.items()
                }
                tx.emit("test.plant", tx.put(record.key, body, rev=record.rev).ref)


def names_in(bank: Bank) -> tuple[str, ...]:
    """Every name a caller could know."""
    ctx = replace(bank.house.system(), tenant="bank")
    kinds = (
        "dataset",
        "model",
        "code",
        "run",
        "experiment",
        "output",
        "trace",
        "job",
        "sweep",
        "endpoint",
        "incident",
        "blob",
    )
    with bank.house.ledger.read(ctx) as tx:
        records = [record for kind in kinds for record in tx.find(kind, tenant="bank", limit=1000).records]
    return tuple(dict.fromkeys(str(record.ref if record.key.version else record.ref.bare) for record in records))


def shows_value(answer: bytes) -> bool:
    return CANARY.encode() in answer.lower() or NUMBER.encode() in answer


def arguments_of(verb: Operation, refs: tuple[str, ...], kinds: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Plausible arguments: each name in turn for what a call names, usual words for the rest."""
    words = {param.name: _word(param) for param in verb.params if param.required or param.name in ("where", "mine")}
    named = [param for param in verb.params if param.name in (*verb.reads, *verb.writes)]
    if not named:
        yield words
        return
    for ref in refs:
        if kinds and ref.partition(":")[0] not in kinds:
            continue
        filled = {param.name: _named(param, ref) for param in named if param.required or param is named[0]}
        yield {**words, **filled}


def _word(param: OperationParam) -> Any:
    word = WORDS.get(param.name)
    if word is not None:
        return word
    kinds = union_members(param.type)
    return next(
        (value for kind, value in ((int, 1), (float, 1.0), (bool, False), (dict, {}), (tuple, [])) if kind in kinds),
        "x",
    )


def _named(param: OperationParam, ref: str) -> Any:
    text = str(param.type)
    return {"data": ref} if "dict" in text else [ref, ref] if "tuple" in text else ref


def leaks_of_operations(caller: httpx.Client, refs: tuple[str, ...], groups: tuple[str, ...]) -> set[str]:
    leaks = {path for path in ("/metrics", *(f"/r/{ref}" for ref in refs)) if shows_value(caller.get(path).content)}
    for desk, known in SERVICES.items():
        for verb in list_operations(load_service_class(desk)).values() if known.verbs else ():
            if verb.group not in groups or f"{desk}.{verb.name}" in LASTING:
                continue
            kinds = {"track": ("run", "experiment"), "monitor": ("endpoint", "incident")}.get(desk, known.kinds)
            choices = list(arguments_of(verb, refs, kinds))
            if verb.name == "provenance":
                choices = [
                    {**choice, "form": form} for choice in choices for form in ("text", "json", "slsa", "cyclonedx")
                ]
            for arguments in choices:
                answer = caller.post(f"/v1/{desk}/{verb.name}", json=arguments)
                assert answer.status_code < 500, (desk, verb.name, arguments, answer.text)
                if answer.status_code != 400 and shows_value(answer.content):  # which only repeats what was asked
                    leaks.add(f"{desk}.{verb.name}")
    return leaks


def leaks_of_mlflow(caller: httpx.Client, ground: Ground) -> set[str]:
    runs = [ref.partition("/")[2] for ref in ground.refs if ref.startswith("run:")]
    experiments = [{"mlflow_experiment": {"experiment_id": number}} for number in ground.experiments]
    named: dict[str, Any] = {"experiment_ids": list(ground.experiments), "locations": experiments, "max_results": 100}
    named |= {"experiment_id": ground.experiments[0], "name": "scorer", "version": "1", "metric_key": "loss"}
    leaks = set()
    for endpoint in (endpoint for part in ENDPOINT_MODULES for endpoint in part.ENDPOINTS):
        if endpoint.method not in ("GET", "POST") or "delete" in endpoint.path or "{" in endpoint.path:
            continue
        for run in runs:
            arguments = {**named, "run_id": run, "run_uuid": run}
            more: dict[str, Any] = {"json": arguments}
            if endpoint.method == "GET":
                more = {"params": {key: value for key, value in arguments.items() if isinstance(value, str)}}
            answer = caller.request(endpoint.method, endpoint.path, headers={"x-mlflow-workspace": "fraud"}, **more)
            assert answer.status_code < 500, (endpoint.path, answer.text)
            if shows_value(answer.content):
                leaks.add(f"{endpoint.method} {endpoint.path}")
    return leaks


def leaks_of_pages(url: str, token: str, refs: tuple[str, ...]) -> set[str]:
    leaks = set()
    with httpx.Client(base_url=url, trust_env=False, timeout=30, headers={"origin": url}) as browser:
        browser.cookies.set("falaj-look", quote("en|||fraud", safe=""), domain="127.0.0.1", path="/console")
        done = browser.post("/console/sign-in", data={"token": token, "back": "/console"})
        assert done.status_code == 303, done.text[:300]
        for route in list_routes():
            for path in pages_of(route.pattern, refs):
                page = browser.get(path)
                assert page.status_code < 500, (path, page.text[:500])
                if shows_value(page.content):
                    leaks.add(path)
    return leaks


def pages_of(pattern: str, refs: tuple[str, ...]) -> Iterator[str]:
    room = pattern.partition("/")[0]
    plain = {"<name>": "local", "<node>": "local", "<id>": "newest", "<number>": "newest"}
    for old, new in plain.items():
        pattern = pattern.replace(old, new)
    if "<ref>" not in pattern:
        yield f"/console/{pattern}"
        return
    kinds = {"track": ("run", "experiment", "output", "trace"), "monitor": ("endpoint", "incident")}
    for ref in refs:
        if ref.partition(":")[0] in kinds.get(room, SERVICES[room].kinds if room in SERVICES else ()):
            yield f"/console/{pattern.replace('<ref>', ref)}"


@pytest.mark.parametrize("person", [*SEEING, "bob"])
def test_no_operation_shows_a_value_to_who_may_not_read_it(ground: Ground, person: str) -> None:
    with line(ground.url, ground.bank.tokens[person]) as caller:
        assert leaks_of_operations(caller, ground.refs, QUESTIONS) == set()


@pytest.mark.parametrize("person", ["fatima", "omar", "bob"])
def test_no_mlflow_route_shows_a_value_to_who_may_not_read_it(ground: Ground, person: str) -> None:
    with line(ground.url, ground.bank.tokens[person]) as caller:
        assert leaks_of_mlflow(caller, ground) == set()


@pytest.mark.parametrize("person", ["fatima", "omar", "bob"])
def test_no_page_shows_a_value_to_who_may_not_read_it(ground: Ground, person: str) -> None:
    assert leaks_of_pages(ground.url, ground.bank.tokens[person], ground.refs) == set()


def test_the_walk_finds_values_where_they_may_be_shown(ground: Ground) -> None:
    with line(ground.url, ground.bank.tokens["amal"]) as caller:
        shown = leaks_of_operations(caller, ground.refs, QUESTIONS)
        assert shown >= {"catalog.show", "track.show", "track.list", "track.artifacts", "jobs.show", "jobs.logs"}
        assert shown >= {"monitor.windows", "monitor.verdicts", "monitor.incident", "serve.show", "sweeps.show"}
        assert "POST /api/2.0/mlflow/runs/search" in leaks_of_mlflow(caller, ground)
    assert any("/track/run:" in path for path in leaks_of_pages(ground.url, ground.bank.tokens["amal"], ground.refs))


def test_no_event_of_the_log_holds_a_value(ground: Ground) -> None:
    events = [json.dumps(event.body, default=str) for event in ground.bank.events()]
    assert [body for body in events if CANARY in body] == []


def test_no_operation_of_a_person_abroad_answers_with_a_value(ground: Ground) -> None:
    with line(ground.url, ground.bank.tokens["bob"]) as caller:
        assert leaks_of_operations(caller, ground.refs, ("write", "govern", "approve")) == set()
