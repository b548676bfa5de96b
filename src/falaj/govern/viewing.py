"""Who may read the values of labelled things, and which things the code of a job may write what it read into.

Statistics, metrics, parameters, tags, notes and error texts of labelled data are reads of it, whatever operation shows
them. So an answer about a labelled thing keeps its values only where the caller holds a role that may `read` the thing
and the residency check lets it be viewed from where they are, for their purpose. Others get the structure that the
answer's classes declare (core/withhold.py). An unlabelled thing costs no judgement.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache
from typing import Any, Protocol

from falaj.core.cell import labelled_cells
from falaj.core.context import Actor, Context, Decision
from falaj.core.errors import Denied
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.core.verb import Verb
from falaj.core.withhold import withhold_items, withhold_values
from falaj.govern.policy import Authorizer, Facts
from falaj.govern.records import DutyFacts, Move, Verdict
from falaj.govern.roles import family_of
from falaj.govern.things import Thing
from falaj.store.ledger import Ledger
from falaj.store.records import Record

CONTAINERS = frozenset({"experiment"})
"""Kinds that only hold others: an answer that names one is judged by the things in it."""
STRUCTURAL = frozenset({"audit.draw", "audit.lineage", "audit.impact", "zones.check", "catalog.provenance"})
"""Operations that answer with names of things, states and rules alone; a statement of provenance leaves values out."""
JOINING = frozenset(
    {"track.start", "outputs.create", "traces.record", "catalog.begin", "catalog.commit", "catalog.confirm"}
    | {"track.register", "store.put"}
)
"""Operations that add a new record, which carries what it is made from, and leave the texts of the named one alone."""
QUIET = frozenset(
    {"track.start", "track.log", "track.end", "track.use", "track.attach", "outputs.create", "outputs.change"}
)
QUIET |= {"outputs.link", "catalog.begin", "catalog.commit", "catalog.confirm", "jobs.tell"}
"""All that a job may write whose submitter may not see its inputs: what these write is withheld, names and all."""
ENTER = "enter"
_NOTHING: Mapping[str, bool] = {}
_NONE: frozenset[tuple[str, str, str, Label, bool]] = frozenset()


class Residency(Protocol):
    """What the guard needs of zones: the answer of place() over the places, rules and grants that stand now."""

    def verdict(self, move: Move, now: float) -> Verdict: ...

    def read_duty_facts(self, ctx: Context, record: Record) -> DutyFacts: ...


class Viewing:
    """Judges reads of values; one instance a house."""

    def __init__(
        self,
        ledger: Ledger,
        authorizer: Authorizer,
        residency: Residency,
        facts_of: Callable[[Context, Thing, bool], Facts],
    ) -> None:
        """`facts_of` gives what policy is asked with: about a caller and a thing, and whether residency allows it."""
        self._ledger = ledger
        self._authorizer = authorizer
        self._residency = residency
        self._facts_of = facts_of
        self._reading_action = cache(self._find_reading_action)

    def show(self, action: str, verb: Verb, ctx: Context, things: Sequence[Thing], answer: Any) -> Any:
        """The answer of an operation as this caller may see it."""
        if action in STRUCTURAL:
            return answer
        if verb.group == "see":
            for thing in things:
                if not _is_plain(thing) and thing.asked.kind not in CONTAINERS:
                    marker = self.refusal(action, ctx, thing)
                    if marker:
                        return withhold_values(answer, marker)
        return withhold_items(answer, _Judge(self, action, ctx, things))

    def refusal(self, action: str, ctx: Context, thing: Thing) -> str:
        """Why the caller may not read the values of a thing, as a marker in their place; empty when they may."""
        return "" if _is_plain(thing) else self.judge_thing(action, ctx, thing)[0]

    def judge_thing(self, action: str, ctx: Context, thing: Thing) -> tuple[str, bool]:
        """The same of a labelled thing, and whether the answer holds for all with its label in its place."""
        carried = self.run_label(ctx) if ctx.actor.kind == "workload" else None
        if carried is not None and not carried.carries(thing.label):
            return _marker(thing, f"this job did not declare it: --inputs NAME={thing.asked.bare}"), False
        move = replace(thing, written=False).move(ctx, "view", "", ctx.actor.jurisdiction)
        verdict = self._residency.verdict(move, ctx.now())
        reading = self._reading_action(action.partition(".")[0])
        facts = self._facts_of(ctx, thing, verdict.allowed)
        if self._authorizer.decide(ctx.actor, reading, thing.cell(), facts).allowed:
            return "", not verdict.grants
        elsewhere = self._authorizer.decide(ctx.actor, reading, thing.cell(), self._facts_of(ctx, thing, True))
        if elsewhere.allowed:
            return _marker(thing, "; ".join(verdict.reasons)), False
        return _marker(thing, elsewhere.reason or "none of your roles may read it"), False

    def check_use(self, action: str, ctx: Context, thing: Thing) -> None:
        """Denied where a role may not read what a caller makes another thing from, wherever that is done.

        That it may not be viewed from where the caller is does not count: what comes of it carries its label.
        """
        if _is_plain(thing):
            return
        decision = self.decide_reading(action, ctx, thing)
        if not decision.allowed:
            raise Denied(decision.reason or "none of your roles may read it", decision.hint, thing.asked)

    def decide_reading(self, action: str, ctx: Context, thing: Thing) -> Decision:
        """Whether the caller may read a thing where it lies; `action` names the service that would read it."""
        reading = self._reading_action(action.partition(".")[0])
        return self._authorizer.decide(ctx.actor, reading, thing.cell(), self._facts_of(ctx, thing, True))

    def run_label(self, ctx: Context) -> Label | None:
        """What the run of a workload carries: the join of the labels of all it was given; None where it is no run."""
        with self._ledger.read(ctx) as tx:
            records = tx.find("run", terms={"id": ctx.actor.run}, limit=1).records
        return records[0].label if records else None

    def workload_label(self, verb: Verb, ctx: Context, things: Sequence[Thing]) -> Label | None:
        """What all that a call of a workload writes must carry; None for people, questions, and its own run.

        A request to an endpoint is no read of what its model was made from.
        """
        if ctx.actor.kind != "workload" or verb.group in ("see", "audit") or verb.name == ENTER:
            return None
        own = [thing.written and (thing.asked.kind, thing.asked.name) == ("run", ctx.actor.run) for thing in things]
        if own and all(own):
            return None  # its own run carries its own label
        return self.run_label(ctx)

    def check_workload(self, action: str, verb: Verb, ctx: Context, things: Sequence[Thing], label: Label) -> None:
        """Denied where a workload whose run carries `label` would read or write past it.

        Code that reads labelled data can put it into any text: a tag, a note, the name of a thing. So it reads only
        what its run carries the label of, and writes only what carries that label too.
        """
        for thing in things:
            if not thing.written and not _is_plain(thing) and not label.carries(thing.label):
                raise Denied(
                    f"{thing.asked} carries the label {thing.label.words}, and this job did not declare it as an input",
                    f"submit the job with --inputs NAME={thing.asked.bare}",
                    thing.asked,
                )
        if label.is_open or verb.group in ("read", "move"):
            return
        unseen = action not in QUIET and not self._may_submitter_view(action, ctx, label)
        if unseen or (not things and action != "jobs.tell"):
            raise Denied(f"a job that reads data under {label.words} may not call {action}", _OWN_PLACES)
        for thing in things:
            if thing.written or not verb.writes:
                self._check_target(action, ctx, thing, label)

    def _check_target(self, action: str, ctx: Context, thing: Thing, label: Label) -> None:
        if thing.record is not None and (thing.label.carries(label) or action in JOINING):
            return
        new = thing.record is None and family_of(thing.asked.kind) == "work"
        if new and (self._is_declared(ctx, thing.asked) or self._may_submitter_view(action, ctx, label)):
            return
        raise Denied(
            f"a job that reads data under {label.words} may not write texts to {thing.asked}, which does not carry it",
            _OWN_PLACES,
            thing.asked,
        )

    def _is_declared(self, ctx: Context, name: Ref) -> bool:
        job = self._job_of(ctx)
        return job is not None and str(name.bare) in job.body["outputs"].values()

    def _may_submitter_view(self, action: str, ctx: Context, label: Label) -> bool:
        """True when the job's submitter may read what it reads: then the names it chooses tell them nothing new."""
        job = self._job_of(ctx)
        if job is None:
            return False
        who = job.body["who"]
        submitter = Actor(
            who["id"], ctx.tenant, roles=frozenset(who["roles"]), projects=frozenset(who["projects"]),
            jurisdiction=who["jurisdiction"],
        )  # fmt: skip
        thing = Thing(job.ref, False, job, job.label.join(label), job.zone or ctx.zone)
        return not self.refusal(action, replace(ctx, actor=submitter, purpose=who["purpose"]), thing)

    def _job_of(self, ctx: Context) -> Record | None:
        with self._ledger.read(ctx) as tx:
            records = tx.find("job", terms={"id": ctx.actor.run}, limit=1).records
        return records[0] if records else None

    def judge(self, action: str, ctx: Context, things: Sequence[Thing]) -> Callable[[Record], str]:
        """What a context answers about a record: for searches, which must not compare what they may not show."""
        return _Judge(self, action, ctx, things).judge_record

    def labelled(self, ctx: Context, kind: str) -> bool:
        """Whether any record of a kind carries a label that restricts who may read it."""
        with self._ledger.read(ctx) as tx:
            return bool(labelled_cells(tx.cells(kind)))

    def find(self, ctx: Context, ref: Ref) -> Record | None:
        """The record behind a name in an answer."""
        with self._ledger.read(ctx) as tx:
            return tx.get(ref)

    def _find_reading_action(self, desk: str) -> str:
        readings = [name for name, group in self._authorizer.actions.items() if group == "read"]
        return next((name for name in readings if name.startswith(f"{desk}.")), "catalog.open")


class _Judge:
    """The judgements of one call, each made once."""

    __slots__ = ("_action", "_alike", "_ctx", "_kinds", "_things", "_viewing")

    def __init__(self, viewing: Viewing, action: str, ctx: Context, things: Sequence[Thing]) -> None:
        # One is made for every call, and few calls have anything to judge: the tables come with the first question.
        self._viewing, self._action, self._ctx, self._things = viewing, action, ctx, things
        self._kinds: Mapping[str, bool] = _NOTHING
        self._alike: Set[tuple[str, str, str, Label, bool]] = _NONE

    def __call__(self, ref: Ref, item: Any) -> str:
        """The marker for one item of an answer, or nothing."""
        for thing in self._things:
            if thing.record is None or ref != (thing.ref if thing.record.key.version else thing.ref.bare):
                continue
            if not thing.written:
                return self._viewing.refusal(self._action, self._ctx, thing)
            if _is_plain(thing) and (self._ctx.label is None or self._ctx.label.is_open):
                return ""  # and this call wrote nothing into it that is not
        if not self.is_labelled(ref.kind):
            return ""
        label = getattr(item, "label", None)
        # A run says itself what it carries and where it lies: pages of thousands need no look at each record.
        if isinstance(label, Label) and hasattr(item, "zone") and (label.is_open or self._is_alike(ref, item)):
            return ""
        record = self._viewing.find(self._ctx, ref)
        return self.judge_record(record) if record is not None else ""

    def judge_record(self, record: Record) -> str:
        """The marker for a record, or nothing."""
        if (record.label.is_open and not record.restricted) or family_of(record.key.kind) != "work":
            return ""
        # A grant may be about one thing by name, so only a permission that needed none is good for all like it.
        alike = (record.key.kind, record.key.project, record.zone, record.label, record.restricted)
        if alike in self._alike:
            return ""
        thing = Thing(record.ref, False, record, record.label, record.zone or self._ctx.zone)
        marker, for_all = self._viewing.judge_thing(self._action, self._ctx, thing)
        if for_all:
            self._alike = {*self._alike, alike}
        return marker

    def _is_alike(self, ref: Ref, item: Any) -> bool:
        return (ref.kind, ref.project, item.zone, item.label, False) in self._alike

    def is_labelled(self, kind: str) -> bool:
        """True when a record of this kind may carry a label, so that it could be withheld."""
        labelled = self._kinds.get(kind)
        if labelled is None:
            labelled = self._viewing.labelled(self._ctx, kind)
            self._kinds = {**self._kinds, kind: labelled}
        return labelled


_OWN_PLACES = "write to the job's own run, or to outputs that the job declared with --outputs"


def _is_plain(thing: Thing) -> bool:
    """True when nothing restricts who may read its values: no label, or a kind whose records hold none."""
    return (thing.label.is_open and not thing.restricted) or family_of(thing.asked.kind) != "work"


def _marker(thing: Thing, why: str) -> str:
    return f"withheld: needs read on {thing.asked} (label {thing.label.words}): {why}"[:500]
