"""The loop of watches: cut what was counted into windows, compare, decide, act once.

A window is judged in one transaction with the cursor that moves over it: killed anywhere, the next turn finds all or
nothing of it. What acts does so in the name of the watch's owner (monitor/acting.py).
"""

from dataclasses import replace
from typing import Any

from falaj.core.context import Context
from falaj.core.errors import Conflict, FalajError
from falaj.core.ref import Ref
from falaj.fleet.use import every, tenants
from falaj.monitor import watches
from falaj.monitor.basing import Basing, known
from falaj.monitor.judging import Judging, live_in, new_entry
from falaj.monitor.plans import plan_in
from falaj.monitor.records import OK, WatchPlan
from falaj.monitor.service import Monitor
from falaj.monitor.watches import WATCH, Body
from falaj.monitor.windows import LATE_S, grace_s, slot_of
from falaj.serve import books
from falaj.serve.blocks import Whose
from falaj.serve.watch import Watch
from falaj.store.ledger import Ledger
from falaj.store.loop import Turn
from falaj.store.records import Record

EVERY_S = 2.0
BASE_S, NEWER_S, TIDY_S = 5.0, 30.0, 60.0
"""How often we look after the job of a baseline, for another one, and for sketches that can be summed up."""
DAY_S = 86400.0
MOST_REVISIONS = 8
Key = tuple[str, Ref]


class MonitorLoop:
    """Looks at every watch, for every tenant."""

    name = "monitor"
    every_s = EVERY_S

    def __init__(self, ledger: Ledger, desk: Monitor) -> None:
        self._ledger = ledger
        self._desk = desk
        self._judging = Judging(ledger, desk)
        self._token = -1
        self._watch: Watch
        self._served: dict[Key, Record] = {}
        self._watches: dict[Key, Record] = {}
        self._due: dict[Key, float] = {}
        self._based: dict[tuple[Key, int], float] = {}
        self._tidied: dict[Key, float] = {}

    def step(self, turn: Turn) -> bool:
        """One look at each; one that is in trouble holds up no other."""
        self._read(turn)
        failure, more = None, False
        for tenant, ref in sorted(self._served.keys() | self._watches.keys()):
            if not turn.alive():
                return False
            try:
                more |= self._tend(replace(turn.ctx, tenant=tenant), (tenant, ref))
            except FalajError as error:
                # Where somebody wrote first there is nothing wrong: the next turn looks again.
                self._again(turn.ctx, (tenant, ref))
                failure = failure if isinstance(error, Conflict) else failure or error
        if failure is not None:
            raise failure
        return more

    # What there is.

    def _read(self, turn: Turn) -> None:
        """Everything at first, then what the log says has changed."""
        if turn.token != self._token:
            self._watch = Watch(self._ledger, books.ENDPOINT, WATCH)
            with self._ledger.read(turn.ctx) as tx:
                each = [(tenant, kind) for tenant in tenants(self._ledger) for kind in (books.ENDPOINT, WATCH)]
                found = [one for tenant, kind in each for one in every(tx, kind, tenant)]
            self._served = {_key(one): one for one in found if one.key.kind == books.ENDPOINT}
            self._watches = {_key(one): one for one in found if one.key.kind == WATCH}
            self._token, self._due, self._based, self._tidied = turn.token, {}, {}, {}
            return
        for tenant, ref in {(tenant, watches.endpoint_of(ref)) for tenant, ref in self._watch.changed()}:
            self._again(turn.ctx, (tenant, ref))

    def _again(self, ctx: Context, key: Key) -> None:
        """Read an endpoint and its watch anew."""
        tenant, ref = key
        with self._ledger.read(replace(ctx, tenant=tenant)) as tx:
            for held, name in ((self._served, ref), (self._watches, watches.watch_of(ref))):
                found = tx.get(name)
                if found is not None:
                    held[key] = found
                else:
                    held.pop(key, None)
        self._due.pop(key, None)

    # One of them.

    def _tend(self, ctx: Context, key: Key) -> bool:
        served, record = self._served.get(key), self._watches.get(key)
        if served is None:
            self._forget(ctx, key, record)
            return False
        if not served.body["revisions"] or (record is not None and record.body["removed"]):
            return False
        if record is None:
            record = self._watches[key] = self._begin(ctx, served)
        ctx = replace(ctx, actor=replace(ctx.actor, behalf=record.body["who"]["id"]))
        record = self._watches[key] = self._revised(ctx, served, record)
        for number in live_in(served.body):
            record = self._watches[key] = self._base(ctx, served, record, number)
        more, now = False, ctx.now()
        if now >= self._due.get(key, 0.0):
            judged = self._judging.turn(ctx, served, record)
            more = judged is not None
            every_s = plan_in(record.body).every_s
            # Something may be left to judge; where nothing is, nothing will be before the next slot is closed.
            grace = grace_s(every_s)
            self._due[key] = 0.0 if more else slot_of(now - grace, every_s) + every_s + grace
            record = self._watches[key] = judged or record
            self._tidy(ctx, served, record)
        if self._desk.tend(ctx, record, now):
            self._again(ctx, key)
        return more

    def _begin(self, ctx: Context, served: Record) -> Record:
        """A watch that nobody asked for: people are told, and nothing acts. It is the deployer's."""
        who = served.body["revisions"][-1]["who"]
        with self._ledger.write(ctx) as tx:
            body = {**watches.new_watch(ctx, WatchPlan(), who), "by_itself": True}
            name, terms = watches.watch_of(served.ref), watches.watch_terms(body)
            record = tx.put(name, body, label=served.label, zone=served.zone, terms=terms)
            tx.emit("monitor.add", record.ref, (served.ref,), by_itself=1)
        return record

    def _revised(self, ctx: Context, served: Record, record: Record) -> Record:
        """With every revision that answers now; under all that the endpoint carries."""
        live, of, label = live_in(served.body), served.body["id"], record.label.join(served.label)
        # Another endpoint of the same name has other models behind the same numbers.
        same = record.body.get("of", of) == of
        old = record.body["revisions"] if same else {}
        if live <= {int(one) for one in old} and label == record.label and same:
            return record
        made = {one["number"]: float(one["made_at"]) for one in served.body["revisions"]}
        plan, now = plan_in(record.body), ctx.now()
        fresh = {
            str(one): new_entry(max(made.get(one, now), now - plan.every_s)) for one in live if str(one) not in old
        }
        kept = sorted(({**old, **fresh}).items(), key=lambda one: int(one[0]))
        gone = [name for name, _ in kept if int(name) not in live][: max(0, len(kept) - MOST_REVISIONS)]
        body = {**record.body, "of": of, "revisions": {name: entry for name, entry in kept if name not in gone}}
        if not same:
            body |= {"counted": {}, "machine": {}, "state": OK}
            self._desk.kept.delete(ctx.tenant, served.ref.bare)
            self._desk.baselines.delete(ctx.tenant, served.ref.bare)
        number = max(live, default=0)
        return self._save(ctx, replace(record, label=label), body, "monitor.revision", revision=number)

    def _base(self, ctx: Context, served: Record, record: Record, number: int) -> Record:
        """Look for a revision's baseline, or for a newer one, now and then."""
        key, now, entry = _key(served), ctx.now(), record.body["revisions"][str(number)]
        waiting = bool(entry["job"]) and not entry["profile"]
        if abs(now - self._based.get((key, number), 0.0)) < (BASE_S if waiting else NEWER_S):
            return record
        self._based[key, number] = now
        revision = books.revision_at(served.body, number)
        if revision is None:
            return record
        with self._ledger.read(ctx) as tx:
            seen = known(tx, Ref.parse(revision["model"]), entry)
        if entry["profile"] and (seen.made is None or str(seen.made) in (entry["baseline"], entry["bad"])):
            return record
        _, here = self._desk.behalf(ctx, record)
        look = Basing(here, self._desk.serve.journal, plan_in(record.body), now)
        based, entry = look.look(ctx.tenant, served.ref.bare, revision, entry, seen)
        if based is not None:
            self._desk.baselines.keep(_whose(served), based)
            entry = {**entry, "profile": based.digest, "baseline": based.source, "evidence": []}
        body = {**record.body, "revisions": {**record.body["revisions"], str(number): entry}}
        if body == record.body:
            return record
        return self._save(
            ctx, record, body, "monitor.baseline", revision=number, source=entry["baseline"] or entry["note"]
        )

    def _save(self, ctx: Context, record: Record, body: Body, said: str, **more: Any) -> Record:
        with self._ledger.write(ctx) as tx:
            kept = tx.put(record.key, body, rev=record.rev, label=record.label, terms=watches.watch_terms(body))
            tx.emit(said, kept.ref, **more)
        return kept

    def _tidy(self, ctx: Context, served: Record, record: Record) -> None:
        """Now and then: join what every window has seen, and remove what was kept long enough and no hold keeps."""
        key, now = _key(served), ctx.now()
        if abs(now - self._tidied.get(key, 0.0)) < TIDY_S:
            return
        self._tidied[key] = now
        live = live_in(served.body)
        ends = [one["until"] for name, one in record.body["revisions"].items() if int(name) in live]
        self._desk.serve.sketches.tidy(_whose(served), now, min([*ends, now]) - LATE_S)
        if self._desk.serve.destruction.is_held(ctx, served):
            return
        days = books.rules_in(served.body).keep_days
        self._desk.kept.expire(key[0], key[1], now - days * DAY_S)

    def _forget(self, ctx: Context, key: Key, record: Record | None) -> None:
        """The endpoint is gone, and its watch with it."""
        tenant, ref = key
        if record is not None:
            with self._ledger.write(ctx) as tx:
                tx.delete(record.key, record.rev)
                tx.emit("monitor.removed", record.ref)
        self._desk.kept.delete(tenant, ref)
        self._desk.baselines.delete(tenant, ref)
        self._watches.pop(key, None)


def _key(record: Record) -> Key:
    return record.key.tenant, Ref(books.ENDPOINT, record.key.project, record.key.name)


def _whose(served: Record) -> Whose:
    return Whose(served.key.tenant, served.ref.bare, served.body["zone"])
