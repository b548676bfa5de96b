"""on_call_mends_an_endpoint: commands of the runbooks about endpoints, incidents, hooks and views, typed as they stand
there by the accounts that the page names, on an endpoint whose new revision broke."""

import os
import shlex
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import falaj
from tests.deploy.test_runbook_rights import OWNERS, commands, operation_of
from tests.jobs.lab import until
from tests.people import enroll
from tests.replica import FALAJ
from tests.stories.serving_ground import SCORE, SMALL, Callers, published, up
from tests.stories.test_broken_model_rolls_back import broken
from tests.stories.test_on_call_follows_the_runbooks import ELSEWHERE

FEATURES = """
from falaj.features import Entity, Feature, Source, view

customer = Entity("fraud/customer", keys={"customer_id": "string"})
spend = view("fraud/spend", customer, Source("dataset:fraud/tx", event="at"), features=[Feature("amount", "float64")])
"""
ROWS = "customer_id,at,amount\nc1,2026-01-01T00:00:00Z,1.5\n"


@contextmanager
def receiver() -> Iterator[str]:
    """A receiver of hooks that takes every message; its address."""

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", "0")))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hook"
    finally:
        server.shutdown()
        server.server_close()


def prepare(home: Path, bank: Any, hook_url: str) -> str:
    """A view, a hook, and an endpoint that went back by itself from a broken revision; its open incident."""
    mona = bank.here
    (home / "tx").mkdir()
    (home / "tx" / "rows.csv").write_text(ROWS)
    mona.catalog.publish("dataset:fraud/tx", str(home / "tx"), label="open")
    (home / "features.py").write_text(FEATURES)
    mona.features.apply(str(home / "features.py"))
    mona.flows.hook("hook:fraud/ci", hook_url, ("catalog.promote",))
    mona.serve.deploy(SCORE, bank.model(seed=1), **SMALL)
    bank.until(lambda view: view.state == "ready")
    mona.monitor.add(SCORE, more={"rollback": "true", "every_s": "5"})
    with Callers(bank.door(), bank.token, threads=4, pause_s=0.01) as callers:
        until(lambda: callers.answers["1", 200], lambda count: count > 200)
        mona.serve.deploy(SCORE, published(bank, broken(home / "broken")))
        bank.until(lambda view: view.traffic == {"2": 1.0})
        bank.until(lambda view: view.traffic == {"1": 1.0})
        (incident,) = until(lambda: mona.monitor.incidents(project="fraud"), len)
    return str(incident.ref)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_on_call_mends_an_endpoint(tmp_path: Path) -> None:
    with receiver() as url, up(tmp_path, {"FALAJ_HOOKS_PRIVATE": "127.0.0.0/8"}) as running:
        bank = running.there
        with falaj.connect(bank.here.address, token=running.tokens["fatima"]) as boss:
            on_call = enroll(boss, "on-call-bank", ("operator",))
        incident, failed = prepare(tmp_path, bank, url), {}
        typed = [line for line in commands() if any(kind in line for kind in ELSEWHERE)]
        # Incidents first: a good revision, which a later command goes back from, resolves them by itself.
        for command in sorted(typed, key=lambda line: (line.startswith("falaj serve"), line)):
            if command.startswith("falaj serve rollback"):
                bank.here.serve.deploy(SCORE, bank.model(seed=3), wait=True)
            if command.startswith("falaj serve verdict"):
                assert bank.until(lambda view: view.traffic == {"1": 1.0})
                bank.here.serve.deploy(SCORE, bank.model(seed=4), canary="10%")
            token = bank.token if operation_of(command) in OWNERS else on_call
            words = [*FALAJ, *shlex.split(command.replace("incident:fraud/score-3", incident))[1:]]
            environment = {**os.environ, "FALAJ_TOKEN": token}
            run = [*words, "--at", bank.here.address]
            done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode:
                failed[command] = done.stderr
        assert failed == {}
        assert bank.here.monitor.incidents(project="fraud")[0].state == "resolved"
