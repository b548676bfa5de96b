"""A town where flows are begun: everything is real but the runs themselves, which are written down as asked for."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from falaj.core.context import Actor, Context
from falaj.core.errors import FalajError
from falaj.core.ref import Ref
from falaj.flows.listening import StartLoop
from falaj.platform import Platform
from falaj.serve.books import who_of
from falaj.store.loop import Turn, house_context
from tests.town import Town

FLOW = Ref.parse("flow:fraud/retrain")


class Starting:
    """The verbs of flows as an owner calls them; `start` remembers, once a cause."""

    def __init__(self, ground: "Ground", actor: Actor, purpose: str) -> None:
        self._ground, self._actor = ground, actor
        self._real = Platform(ground.town.house, actor, purpose).flows

    def hear(self, kind: str) -> tuple[str, ...]:
        found: tuple[str, ...] = self._real.hear(kind)
        return found

    def show(self, flow: Ref) -> Any:
        return SimpleNamespace(plan=SimpleNamespace(params={"endpoint": None, "cause": "", "depth": 1}))

    def start(self, flow: Ref, params: dict[str, Any], *, cause: str, begun_by: str) -> None:
        self._ground.asked += 1
        if self._ground.trouble is not None:
            raise self._ground.trouble
        self._ground.runs.setdefault(cause, (str(flow), params, self._actor.behalf, begun_by))


class Ground:
    """A town, its loop of starts and a clock that is moved by hand."""

    def __init__(self, home: Path, **more: Any) -> None:
        self.town = Town(home, **more)
        self.ledger = self.town.house.ledger
        self.runs: dict[str, tuple[str, dict[str, Any], str, str]] = {}
        self.asked = 0
        self.trouble: FalajError | None = None
        self.later_s = 0.0
        self.loop = self.new_loop()
        self.token = 1
        self.amal = self.town.as_("amal")
        with self.ledger.write(self.ctx("amal")) as tx:
            tx.emit("flows.save", tx.put(FLOW, {"plan": {}}).ref)

    def new_loop(self) -> StartLoop:
        """The loop as a process that has just begun has it."""
        act = lambda actor, purpose: SimpleNamespace(flows=Starting(self, actor, purpose))  # noqa: E731
        return StartLoop(self.ledger, SimpleNamespace(act=act))  # type: ignore[arg-type]

    def crash(self) -> None:
        """Another process leads from here on, and knows what was written down."""
        self.loop, self.token = self.new_loop(), self.token + 1

    def now(self) -> float:
        import time

        return time.time() + self.later_s

    def turn(self, times: int = 1) -> None:
        ctx = replace(house_context("starts", self.town.house.settings.zone), now=self.now)
        for _ in range(times):
            self.loop.step(Turn(ctx, self.token, lambda: True))

    def ctx(self, name: str) -> Context:
        return Context(self.town.actor(name), self.town.house.settings.zone, now=self.now, purpose="fraud")

    def say(self, verb: str, ref: str, who: str = "amal", **body: Any) -> None:
        """An event about a thing that is there, or made now."""
        with self.ledger.write(self.ctx(who)) as tx:
            thing = tx.get(Ref.parse(ref)) or tx.put(Ref.parse(ref), {})
            tx.emit(verb, thing.ref, (), **body)

    def watch(self, name: str = "score", params: dict[str, str] | None = None, who: str = "amal") -> None:
        body = {"who": who_of(self.ctx(who)), "plan": {"acting": {"params": params or {}}}}
        with self.ledger.write(self.ctx(who)) as tx:
            tx.emit("monitor.add", tx.put(Ref("watch", "fraud", name), body).ref)

    def verdict(self, id_: str = "v-1", **more: Any) -> None:
        said = {"action": "retrain", "cause": "drift of amount", "flow": str(FLOW), "endpoint": "endpoint:fraud/score"}
        self.say("monitor.verdict", "watch:fraud/score", id=id_, model="model:fraud/m@v1", since=1.5, **said | more)
