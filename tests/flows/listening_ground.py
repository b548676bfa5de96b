"""A town where flows are begun: everything is real; runs begin, and wait for a loop that nobody turns."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from falaj.core.context import Actor, CallContext
from falaj.core.errors import FalajError
from falaj.core.ref import Ref
from falaj.flows.records import STEP_JOB, FlowPlan, StepPlan
from falaj.flows.start_loop import StartLoop
from falaj.jobs.attempts import to_submitter
from falaj.jobs.records import JobSpec
from falaj.server import LocalClient
from falaj.store.reconcile_loop import LoopIteration, system_context
from tests.town import Town

FLOW = Ref.parse("flow:fraud/retrain")


class Troubled:
    """The desk of flows as an owner calls it. Where a test says so there is trouble when a run is to begin."""

    def __init__(self, ground: "Ground", actor: Actor, purpose: str) -> None:
        self._ground = ground
        self._real = LocalClient(ground.town.house, actor, purpose).flows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def start(self, *args: Any, **named: Any) -> Any:
        self._ground.asked += 1
        if self._ground.trouble is not None:
            raise self._ground.trouble
        return self._real.start(*args, **named)


class Ground:
    """A town, its loop of starts and a clock that is moved by hand."""

    def __init__(self, home: Path, **more: Any) -> None:
        self.town = Town(home, **more)
        self.ledger = self.town.house.ledger
        self.before: set[Ref] = set()
        self.asked = 0
        self.trouble: FalajError | None = None
        self.later_s = 0.0
        self.loop = self.new_loop()
        self.token = 1
        self.amal = self.town.as_("amal")
        self.town.as_("admin").clusters.change("local", {"tenants": "bank"})
        step = StepPlan("wait", STEP_JOB, spec=JobSpec(command=("python3", "-c", "pass")))
        params = {"endpoint": "", "cause": "", "depth": "", "data": "", "rows": 0, "day": ""}
        self.amal.flows.add(FLOW, FlowPlan((step,), params))

    @property
    def runs(self) -> dict[str, tuple[dict[str, Any], str]]:
        """By cause, the runs that this test began, oldest first: what they were given, and by what."""
        found = [one for one in self.amal.flows.runs(FLOW, limit=1000).runs if one.ref not in self.before]
        found.sort(key=lambda one: int(one.ref.name.rpartition("-")[2]))
        return {one.cause: ({k: v for k, v in one.params.items() if v}, one.begun_by) for one in found}

    def owner(self, cause: str) -> str:
        """In whose name a run goes."""
        ref = next(one.ref for one in self.amal.flows.runs(FLOW).runs if one.cause == cause)
        with self.ledger.read(self.ctx("amal")) as tx:
            return str(tx.need(ref.bare).body["who"]["id"])

    def fresh(self) -> None:
        """Nothing asked for yet; what was said before lies behind the cursor."""
        self.turn()
        self.before = {one.ref for one in self.amal.flows.runs(FLOW, limit=1000).runs}
        self.asked, self.trouble, self.later_s = 0, None, 0.0
        self.crash()

    def new_loop(self) -> StartLoop:
        """The loop as a process that has just begun has it."""
        act = lambda actor, purpose: SimpleNamespace(flows=Troubled(self, actor, purpose))  # noqa: E731
        return StartLoop(self.ledger, SimpleNamespace(act=act))  # type: ignore[arg-type]

    def crash(self) -> None:
        """Another process leads from here on, and knows what was written down."""
        self.loop, self.token = self.new_loop(), self.token + 1

    def now(self) -> float:
        import time

        return time.time() + self.later_s

    def turn(self, times: int = 1) -> None:
        ctx = replace(system_context("starts", self.town.house.settings.zone), now=self.now)
        for _ in range(times):
            self.loop.step(LoopIteration(ctx, self.token, lambda: True))

    def ctx(self, name: str) -> CallContext:
        return CallContext(self.town.actor(name), self.town.house.settings.zone, now=self.now, purpose="fraud")

    def say(self, verb: str, ref: str, who: str = "amal", actor: str = "", **body: Any) -> None:
        """An event about a thing that is there, or made now; by `actor` for somebody."""
        ctx = self.ctx(who)
        with self.ledger.write(replace(ctx, actor=replace(ctx.actor, id=actor, behalf=who)) if actor else ctx) as tx:
            thing = tx.get(Ref.parse(ref)) or tx.put(Ref.parse(ref), {})
            tx.emit(verb, thing.ref, (), **body)

    def watch(self, name: str = "score", params: dict[str, str] | None = None, who: str = "amal") -> None:
        body = {"who": to_submitter(self.ctx(who)), "plan": {"acting": {"params": params or {}}}}
        with self.ledger.write(self.ctx(who)) as tx:
            tx.emit("monitor.add", tx.put(Ref("watch", "fraud", name), body).ref)

    def verdict(self, id_: str = "v-1", **more: Any) -> None:
        said = {"action": "retrain", "cause": "drift of amount", "flow": str(FLOW), "endpoint": "endpoint:fraud/score"}
        self.say("monitor.verdict", "watch:fraud/score", id=id_, model="model:fraud/m@v1", since=1.5, **said | more)
