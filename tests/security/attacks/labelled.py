"""A bank with labelled data: people with and without the right to read it, and jobs that leak it.

`Bank.run_leaky_job("bob")` runs a real job that writes what it read into every text a job can write.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from falaj.api.http_server import create_http_server
from falaj.console.handlers import ConsoleHandler
from falaj.core.errors import FalajError
from falaj.jobs.attempts import to_workload
from falaj.jobs.records import JobView
from falaj.server import LocalClient
from tests.jobs.lab import Lab
from tests.people import enroll
from tests.town import Town

LABEL = "AE-PDPL,sensitive,purpose=fraud"
CANARY = "canary784"
"""Part of every value of the labelled data, and of every text that a job made from it."""
ROWS = f"id,name,iban\n1,Amal-{CANARY}a,AE07-{CANARY}b\n2,Omar-{CANARY}c,AE46-{CANARY}d\n"
SEEING = ("fatima", "omar", "badr", "ola", "sami", "dana")
"""Administrator, auditor, approver, operator, security officer and data protection officer: none may read data."""
LEAK = """
import pathlib, sys
from falaj import worker
here = worker.attempt()
text = (pathlib.Path(here.inputs["data"]) / "people.csv").read_text()
rows = text.split()[1:]
for row in rows:
    here.metric(row.replace(",", "."), 784.784)
here.note(rows[0])
here.progress(784784, 7847840)
name = rows[0].split(",")[1]
(pathlib.Path(here.outputs["made"]) / "made.csv").write_text(f"{name},n\\n1,2\\n")
print(rows[0], file=sys.stderr)
sys.exit(EXIT)
"""
WORD = f"Amal-{CANARY}a"


class Bank(Town):
    """The town with a person abroad (bob), labelled data, and things without a label beside it."""

    url = ""
    """Where it is served, once it is."""

    def __init__(self, home: Path) -> None:
        super().__init__(home / "town")
        self.home = home
        self.as_("admin").clusters.change("local", {"tenants": "bank"})
        self.tokens["bob"] = enroll(self.as_("fatima"), "bob", ("data-scientist",), jurisdiction="US")
        data = home / "data"
        data.mkdir()
        (data / "people.csv").write_text(ROWS)
        amal = self.as_("amal")
        self.data = str(amal.catalog.publish("dataset:fraud/people", str(data), label=LABEL).ref)
        plain = home / "plain"
        plain.mkdir()
        (plain / "plain.csv").write_text("a,b\n1,2\n")
        amal.catalog.publish("model:fraud/plain", str(plain))
        amal.track.create("experiment:fraud/plain")
        self.plain_run = str(amal.track.start("experiment:fraud/plain").ref)

    def run_leaky_job(self, person: str, exit_code: int = 0) -> JobView:
        """A job that reads the labelled data and writes it into whatever text it can."""
        lab = Lab(self.home, self.as_(person))
        more = {"inputs": {"data": "dataset:fraud/people"}, "outputs": {"made": f"dataset:fraud/made-{person}"}}
        script = LEAK.replace("EXIT", str(exit_code))
        return lab.done(lab.submit(script, f"leak-{person}-{exit_code}", project="fraud", retries=0, **more))

    def attempt_of(self, job: JobView) -> Any:
        """The platform with the token that an attempt of the job would be given."""
        system = self.house.system()
        with self.house.ledger.read(system) as tx:
            record = tx.need(job.ref, "bank")
        actor = self.house.desks["jobs"].staging.actor(system, record, "ae-dubai")
        token = self.house.workloads.issue(to_workload(actor), system.now(), 600)
        return LocalClient(self.house, self.house.authenticate(token), "fraud")

    def leak_through(self, attempt: Any, run: Any) -> dict[str, str]:
        """Every text that an attempt can write through the API, with what came of it."""
        experiment, model = "experiment:fraud/plain", "model:fraud/plain"
        tries: dict[str, Callable[[], Any]] = {
            "log": lambda: attempt.track.log(run, params={WORD: WORD}, tags={WORD: WORD}),
            "title": lambda: attempt.track.end(run, status="", title=WORD),
            "attach": lambda: attempt.track.attach(run, f"{WORD}.txt", WORD.encode()),
            "run": lambda: attempt.track.start(experiment, title=WORD, tags={WORD: WORD}),
            "output": lambda: attempt.outputs.create(experiment, title=WORD, params={WORD: WORD}),
            "run-id": lambda: attempt.track.start(experiment, run="7" * 32),
            "annotate": lambda: attempt.catalog.annotate(model, message=WORD),
            "alias": lambda: attempt.catalog.tag(model, "named-by-code"),
            "describe": lambda: attempt.catalog.describe(model, about=WORD),
            "other-run": lambda: attempt.track.log(self.plain_run, tags={"leak": WORD}),
            "experiment": lambda: attempt.track.create("experiment:fraud/named-by-code", title=WORD),
            "retitle": lambda: attempt.track.change(experiment, title=WORD),
            "trace": lambda: attempt.traces.record(experiment, f"tr-{'7' * 32}", facts={"request": WORD}),
            "approval": lambda: attempt.approvals.ask("x.y", "0" * 64, WORD),
            "blob": lambda: attempt.store.put("blob:fraud/named-by-code", b"x"),
            "consent": lambda: attempt.privacy.ask("access", WORD),
        }
        return {name: _outcome(act) for name, act in tries.items()}


def _outcome(act: Callable[[], Any]) -> str:
    try:
        act()
    except FalajError as error:
        return type(error).__name__
    return "done"


@contextmanager
def serving(bank: Bank) -> Iterator[str]:
    """The real server in front of it, in a thread; gives its address."""
    server, _ = create_http_server(bank.house, listen="127.0.0.1:0", create_page_handler=ConsoleHandler)
    up = threading.Event()
    thread = threading.Thread(target=server.go, args=(lambda _: up.set(), None), daemon=True)
    thread.start()
    assert up.wait(60)
    try:
        yield server.url
    finally:
        server.should_exit = True
        thread.join(20)


class RateLimitedTransport(httpx.HTTPTransport):
    """Sends a request that the server refuses for its rate again after the time that it names.

    An answer of 429 shows no value, so a walk that took it for an answer would find no leak behind it.
    """

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        while (response := super().handle_request(request)).status_code == 429:
            response.close()
            time.sleep(float(response.headers["retry-after"]))  # the server's own word on when to send again
        return response


def line(url: str, token: str) -> httpx.Client:
    """An HTTP client with this token."""
    headers = {"authorization": f"Bearer {token}", "falaj-purpose": "fraud"}
    return httpx.Client(base_url=url, headers=headers, transport=RateLimitedTransport(), trust_env=False, timeout=30)
