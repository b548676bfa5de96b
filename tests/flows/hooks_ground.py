"""A town whose hooks are told: real records, real sockets, a loop that turns when it is told to."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from falaj.core.context import CallContext
from falaj.core.ref import Ref
from falaj.flows.event_mail import Mailer
from falaj.flows.http_sender import WebhookPoster
from falaj.flows.webhook_delivery import WebhookLoop
from falaj.store.reconcile_loop import LoopIteration, system_context
from tests.town import Town

HOOK = Ref.parse("hook:fraud/ci")


class Telling:
    """The town, its loop of hooks, and a clock that is moved by hand."""

    def __init__(self, home: Path, **more: Any) -> None:
        self.town = Town(home, **{"hooks.private": ("127.0.0.0/8",), **more})
        self.ledger = self.town.house.ledger
        self.mona = self.town.as_("mona")
        self.later_s, self.token = 0.0, 1
        self.post: WebhookPoster | None = None
        self.mailer: Mailer | None = None
        self.loop = self.new_loop()

    def new_loop(self) -> WebhookLoop:
        return WebhookLoop(self.ledger, self.town.house.desks["flows"], self.post, self.mailer)

    def crash(self) -> None:
        """Another process leads from here on."""
        self.loop.close()
        self.loop, self.token = self.new_loop(), self.token + 1

    def now(self) -> float:
        return time.time() + self.later_s

    def turn(self) -> None:
        ctx = replace(system_context("hooks", self.town.house.settings.zone), now=self.now)
        self.loop.step(LoopIteration(ctx, self.token, lambda: True))

    def until(self, done: Callable[[], bool]) -> None:
        """Turn the loop until something is so."""
        deadline = time.monotonic() + 20
        while not done():
            self.turn()
            assert time.monotonic() < deadline, "it never came"

    def ctx(self, name: str) -> CallContext:
        return CallContext(self.town.actor(name), self.town.house.settings.zone, purpose="fraud")

    def say(self, verb: str = "catalog.promote", ref: str = "model:fraud/m", who: str = "mona", **body: Any) -> str:
        with self.ledger.write(self.ctx(who)) as tx:
            thing = tx.get(Ref.parse(ref)) or tx.put(Ref.parse(ref), {})
            return tx.emit(verb, thing.ref, (), **body).id

    def view(self, hook: Ref = HOOK) -> Any:
        return next(one for one in self.mona.flows.hooks() if one.ref == hook)
