"""The ledger against a dictionary: any sequence of transactions gives the same world."""

import tempfile
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from falaj.backends.postgres import PostgresLedgerStore
from falaj.backends.sqlite import SqliteLedgerStore
from falaj.core.context import Actor, CallContext
from falaj.core.errors import Conflict, StaleRevision
from falaj.core.ports import LedgerStore
from falaj.core.ref import Ref
from falaj.store.ledger import Ledger, LedgerWriter

names = st.sampled_from(["a", "b", "c"])
colors = st.sampled_from(["red", "blue"])
acts = st.lists(st.tuples(st.sampled_from(["create", "change", "stale", "delete"]), names, colors), max_size=4)
World = dict[str, tuple[int, str]]


class LedgerMachine(RuleBasedStateMachine):
    """`world` is what is committed; a transaction works on a copy of it."""

    open_store: Callable[[], LedgerStore]

    @initialize()
    def begin(self) -> None:
        self.ledger = Ledger(type(self).open_store())
        self.ctx = CallContext(Actor("ann", "acme"), "uae")
        self.world: World = {}
        self.said: list[str] = []

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()

    @rule(acts=acts, fails=st.booleans(), nested=st.booleans())
    def transaction(self, acts: list[tuple[str, str, str]], fails: bool, nested: bool) -> None:
        world, said = dict(self.world), list(self.said)
        try:
            with self.ledger.write(self.ctx) as tx:
                for act in acts:
                    if nested:
                        with self.ledger.write(self.ctx) as inner:
                            self._act(inner, act, world, said)
                    else:
                        self._act(tx, act, world, said)
                if fails:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            return
        self.world, self.said = world, said

    @rule(many=st.lists(acts, max_size=3), fails=st.lists(st.booleans(), min_size=3, max_size=3))
    def group(self, many: list[list[tuple[str, str, str]]], fails: list[bool]) -> None:
        with self.ledger.group():
            for acts, failing in zip(many, fails, strict=False):
                self.transaction(acts, failing, False)

    @rule()
    @precondition(lambda self: hasattr(self, "ledger"))
    def reopen(self) -> None:
        self.ledger.close()
        self.ledger = Ledger(type(self).open_store())

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "ledger"):
            return
        with self.ledger.read(self.ctx) as tx:
            held = {r.key.name: (r.rev, r.body["color"]) for r in tx.find("thing").records}
            assert held == self.world
            for color in ("red", "blue"):
                found = [r.key.name for r in tx.find("thing", terms={"color": color}).records]
                assert found == sorted(n for n, (_, c) in self.world.items() if c == color)
        assert [fact.event.id for fact in self.ledger.tail()] == self.said

    def _act(self, tx: LedgerWriter, act: tuple[str, str, str], world: World, said: list[str]) -> None:
        what, name, color = act
        ref = Ref("thing", "p", name)
        rev = world.get(name, (0, ""))[0]
        if what == "create" and rev:
            with pytest.raises(Conflict):
                tx.put(ref, {"color": color}, terms={"color": color})
        elif what == "create":
            said.append(tx.emit("add", tx.put(ref, {"color": color}, terms={"color": color}).ref).id)
            world[name] = (1, color)
        elif what == "stale" or not rev:
            with pytest.raises(StaleRevision):
                tx.put(ref, {"color": color}, rev=rev + 1)
        elif what == "change":
            said.append(tx.emit("change", tx.put(ref, {"color": color}, rev=rev, terms={"color": color}).ref).id)
            world[name] = (rev + 1, color)
        else:
            tx.delete(ref, rev)
            said.append(tx.emit("remove", ref.at(f"r{rev}")).id)
            del world[name]


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_the_ledger_is_a_dictionary_with_a_memory(engine: str, request: pytest.FixtureRequest) -> None:
    with tempfile.TemporaryDirectory() as folder:
        count = 0

        class Here(LedgerMachine):
            @initialize()
            def begin(self) -> None:
                nonlocal count
                count += 1
                if engine == "sqlite":
                    url = f"sqlite:{folder}/{count}.db"
                    type(self).open_store = staticmethod(lambda: SqliteLedgerStore(url))
                else:
                    url = request.getfixturevalue("new_postgres")()
                    type(self).open_store = staticmethod(lambda: PostgresLedgerStore(url, {"connections": 2}))
                super().begin()

        examples = 40 if engine == "sqlite" else 8
        run_state_machine_as_test(Here, settings=settings(max_examples=examples, stateful_step_count=20, deadline=None))
