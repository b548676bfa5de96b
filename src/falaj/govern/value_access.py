"""Who may read the values of labelled things, and which things the code of a job may write what it read into.

Statistics, metrics, parameters, tags, notes and error texts of labelled data are reads of it, whatever operation shows
them. So an answer about a labelled thing keeps its values only where the caller holds a role that may `read` the thing
and the residency check lets it be viewed from where they are, for their purpose. Others get the structure that the
answer's classes declare (core/withholding.py). An unlabelled thing costs no judgement.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache
from typing import Any, Protocol

from falaj.core.context import Actor, CallContext, PolicyDecision
from falaj.core.errors import Denied
from falaj.core.label import Label
from falaj.core.operation import Operation
from falaj.core.policy_scope import filter_limited_scopes
from falaj.core.ref import Ref
from falaj.core.withholding import withhold_items, withhold_values
from falaj.govern.authorizer import Authorizer, PolicyFacts
from falaj.govern.call_resources import CallResource
from falaj.govern.records import DataMovement, DutyFacts, ResidencyVerdict
from falaj.govern.roles import find_family
from falaj.store.ledger import Ledger
from falaj.store.records import LedgerRecord

CONTAINER_KINDS = frozenset({"experiment"})
"""Kinds that only hold others: an answer that names one is judged by the things in it."""
STRUCTURAL_ACTIONS = frozenset({"audit.draw", "audit.lineage", "audit.impact", "zones.check", "catalog.provenance"})
"""Operations that answer with names of things, states and rules alone; a statement of provenance leaves values out."""
JOINING_ACTIONS = frozenset(
    {"track.start", "outputs.create", "traces.record", "catalog.begin", "catalog.commit", "catalog.confirm"}
    | {"track.register", "store.put"}
)
"""Operations that add a new record, which carries what it is made from, and leave the texts of the named one alone."""
QUIET_ACTIONS = frozenset(
    {"track.start", "track.log", "track.end", "track.use", "track.attach", "outputs.create", "outputs.change"}
)
QUIET_ACTIONS |= {"outputs.link", "catalog.begin", "catalog.commit", "catalog.confirm", "jobs.tell"}
"""All that a job may write whose submitter may not see its inputs: what these write is withheld, names and all."""
ENTER_OPERATION = "enter"
_NO_KINDS: Mapping[str, bool] = {}
_NO_SCOPES: frozenset[tuple[str, str, str, Label, bool]] = frozenset()


class ResidencyChecker(Protocol):
    """What the guard needs of zones: the answer of place() over the places, rules and grants that stand now."""

    def verdict(self, movement: DataMovement, now: float) -> ResidencyVerdict: ...

    def read_duty_facts(self, ctx: CallContext, record: LedgerRecord) -> DutyFacts: ...


class ValueAccess:
    """Judges reads of values; one instance a house."""

    def __init__(
        self,
        ledger: Ledger,
        authorizer: Authorizer,
        residency: ResidencyChecker,
        collect_facts: Callable[[CallContext, CallResource, bool], PolicyFacts],
    ) -> None:
        """`collect_facts` gives what policy is asked with: about a caller and a thing, and whether residency allows
        it."""
        self._ledger = ledger
        self._authorizer = authorizer
        self._residency = residency
        self.collect_facts = collect_facts
        self.find_reading_action = cache(self.search_reading_action)

    def show(
        self, action: str, operation: Operation, ctx: CallContext, resources: Sequence[CallResource], answer: Any
    ) -> Any:
        """The answer of an operation as this caller may see it."""
        if action in STRUCTURAL_ACTIONS:
            return answer
        if operation.group == "see":
            for resource in resources:
                if not _is_unrestricted(resource) and resource.asked.kind not in CONTAINER_KINDS:
                    marker = self.refusal(action, ctx, resource)
                    if marker:
                        return withhold_values(answer, marker)
        return withhold_items(answer, _AnswerJudge(self, action, ctx, resources))

    def refusal(self, action: str, ctx: CallContext, resource: CallResource) -> str:
        """Why the caller may not read the values of a thing, as a marker in their place; empty when they may."""
        return "" if _is_unrestricted(resource) else self.judge_thing(action, ctx, resource)[0]

    def judge_thing(self, action: str, ctx: CallContext, resource: CallResource) -> tuple[str, bool]:
        """The same of a labelled thing, and whether the answer holds for all with its label in its place."""
        run_label = self.run_label(ctx) if ctx.actor.kind == "workload" else None
        if run_label is not None and not run_label.carries(resource.label):
            return _make_marker(resource, f"this job did not declare it: --inputs NAME={resource.asked.bare}"), False
        movement = replace(resource, written=False).move(ctx, "view", "", ctx.actor.jurisdiction)
        verdict = self._residency.verdict(movement, ctx.now())
        reading_action = self.find_reading_action(action.partition(".")[0])
        facts = self.collect_facts(ctx, resource, verdict.allowed)
        if self._authorizer.decide(ctx.actor, reading_action, resource.cell(), facts).allowed:
            return "", not verdict.grants
        anywhere_decision = self._authorizer.decide(
            ctx.actor, reading_action, resource.cell(), self.collect_facts(ctx, resource, True)
        )
        if anywhere_decision.allowed:
            return _make_marker(resource, "; ".join(verdict.reasons)), False
        return _make_marker(resource, anywhere_decision.reason or "none of your roles may read it"), False

    def check_use(self, action: str, ctx: CallContext, resource: CallResource) -> None:
        """Denied where a role may not read what a caller makes another thing from, wherever that is done.

        That it may not be viewed from where the caller is does not count: what comes of it carries its label.
        """
        if _is_unrestricted(resource):
            return
        decision = self.decide_reading(action, ctx, resource)
        if not decision.allowed:
            raise Denied(decision.reason or "none of your roles may read it", decision.hint, resource.asked)

    def decide_reading(self, action: str, ctx: CallContext, thing: CallResource) -> PolicyDecision:
        """Whether the caller may read a thing where it lies; `action` names the service that would read it."""
        reading = self.find_reading_action(action.partition(".")[0])
        return self._authorizer.decide(ctx.actor, reading, thing.cell(), self.collect_facts(ctx, thing, True))

    def run_label(self, ctx: CallContext) -> Label | None:
        """What the run of a workload carries: the join of the labels of all it was given; None where it is no run."""
        with self._ledger.read(ctx) as tx:
            records = tx.find("run", terms={"id": ctx.actor.run}, limit=1).records
        return records[0].label if records else None

    def workload_label(self, operation: Operation, ctx: CallContext, resources: Sequence[CallResource]) -> Label | None:
        """What all that a call of a workload writes must carry; None for people, questions, and its own run.

        A request to an endpoint is no read of what its model was made from.
        """
        if ctx.actor.kind != "workload" or operation.group in ("see", "audit") or operation.name == ENTER_OPERATION:
            return None
        writes_own_run = [
            resource.written and (resource.asked.kind, resource.asked.name) == ("run", ctx.actor.run)
            for resource in resources
        ]
        if writes_own_run and all(writes_own_run):
            return None  # its own run carries its own label
        return self.run_label(ctx)

    def check_workload(
        self, action: str, operation: Operation, ctx: CallContext, resources: Sequence[CallResource], label: Label
    ) -> None:
        """Denied where a workload whose run carries `label` would read or write past it.

        Code that reads labelled data can put it into any text: a tag, a note, the name of a thing. So it reads only
        what its run carries the label of, and writes only what carries that label too.
        """
        for resource in resources:
            if not resource.written and not _is_unrestricted(resource) and not label.carries(resource.label):
                raise Denied(
                    f"{resource.asked} carries the label {resource.label.words}, "
                    "and this job did not declare it as an input",
                    f"submit the job with --inputs NAME={resource.asked.bare}",
                    resource.asked,
                )
        if label.is_open or operation.group in ("read", "move"):
            return
        is_unseen = action not in QUIET_ACTIONS and not self.can_submitter_view(action, ctx, label)
        if is_unseen or (not resources and action != "jobs.tell"):
            raise Denied(f"a job that reads data under {label.words} may not call {action}", _OWN_OUTPUT_HINT)
        for resource in resources:
            if resource.written or not operation.writes:
                self.require_write_target(action, ctx, resource, label)

    def require_write_target(self, action: str, ctx: CallContext, resource: CallResource, label: Label) -> None:
        if resource.record is not None and (resource.label.carries(label) or action in JOINING_ACTIONS):
            return
        is_new_work = resource.record is None and find_family(resource.asked.kind) == "work"
        if is_new_work and (self._is_declared(ctx, resource.asked) or self.can_submitter_view(action, ctx, label)):
            return
        raise Denied(
            f"a job that reads data under {label.words} may not write "
            f"texts to {resource.asked}, which does not carry it",
            _OWN_OUTPUT_HINT,
            resource.asked,
        )

    def _is_declared(self, ctx: CallContext, name: Ref) -> bool:
        job = self.find_job(ctx)
        return job is not None and str(name.bare) in job.body["outputs"].values()

    def can_submitter_view(self, action: str, ctx: CallContext, label: Label) -> bool:
        """True when the job's submitter may read what it reads: then the names it chooses tell them nothing new."""
        job = self.find_job(ctx)
        if job is None:
            return False
        submitter_fields = job.body["who"]
        submitter = Actor(
            submitter_fields["id"],
            ctx.tenant,
            roles=frozenset(submitter_fields["roles"]),
            projects=frozenset(submitter_fields["projects"]),
            jurisdiction=submitter_fields["jurisdiction"],
        )
        resource = CallResource(job.ref, False, job, job.label.join(label), job.zone or ctx.zone)
        return not self.refusal(action, replace(ctx, actor=submitter, purpose=submitter_fields["purpose"]), resource)

    def find_job(self, ctx: CallContext) -> LedgerRecord | None:
        with self._ledger.read(ctx) as tx:
            records = tx.find("job", terms={"id": ctx.actor.run}, limit=1).records
        return records[0] if records else None

    def judge(self, action: str, ctx: CallContext, resources: Sequence[CallResource]) -> Callable[[LedgerRecord], str]:
        """What a context answers about a record: for searches, which must not compare what they may not show."""
        return _AnswerJudge(self, action, ctx, resources).judge_record

    def labelled(self, ctx: CallContext, kind: str) -> bool:
        """Whether any record of a kind carries a label that restricts who may read it."""
        with self._ledger.read(ctx) as tx:
            return bool(filter_limited_scopes(tx.cells(kind)))

    def find(self, ctx: CallContext, ref: Ref) -> LedgerRecord | None:
        """The record behind a name in an answer."""
        with self._ledger.read(ctx) as tx:
            return tx.get(ref)

    def search_reading_action(self, service_name: str) -> str:
        read_actions = [name for name, group in self._authorizer.actions.items() if group == "read"]
        return next((name for name in read_actions if name.startswith(f"{service_name}.")), "catalog.open")


class _AnswerJudge:
    """The judgements of one call, each made once."""

    __slots__ = ("_action", "_allowed_scopes", "_ctx", "_labelled_kinds", "_resources", "_value_access")

    def __init__(
        self, _value_access: ValueAccess, action: str, ctx: CallContext, resources: Sequence[CallResource]
    ) -> None:
        # One is made for every call, and few calls have anything to judge: the tables come with the first question.
        self._value_access, self._action, self._ctx, self._resources = _value_access, action, ctx, resources
        self._labelled_kinds: Mapping[str, bool] = _NO_KINDS
        self._allowed_scopes: Set[tuple[str, str, str, Label, bool]] = _NO_SCOPES

    def __call__(self, ref: Ref, item: Any) -> str:
        """The marker for one item of an answer, or nothing."""
        for resource in self._resources:
            if resource.record is None or ref != (resource.ref if resource.record.key.version else resource.ref.bare):
                continue
            if not resource.written:
                return self._value_access.refusal(self._action, self._ctx, resource)
            if _is_unrestricted(resource) and (self._ctx.label is None or self._ctx.label.is_open):
                return ""  # and this call wrote nothing into it that is not
        if not self.is_labelled(ref.kind):
            return ""
        label = getattr(item, "label", None)
        # A run says itself what it carries and where it lies: pages of thousands need no look at each record.
        if (
            isinstance(label, Label)
            and hasattr(item, "zone")
            and (label.is_open or self._is_in_allowed_scope(ref, item))
        ):
            return ""
        record = self._value_access.find(self._ctx, ref)
        return self.judge_record(record) if record is not None else ""

    def judge_record(self, record: LedgerRecord) -> str:
        """The marker for a record, or nothing."""
        if (record.label.is_open and not record.restricted) or find_family(record.key.kind) != "work":
            return ""
        # A grant may be about one thing by name, so only a permission that needed none is good for all like it.
        scope_key = (record.key.kind, record.key.project, record.zone, record.label, record.restricted)
        if scope_key in self._allowed_scopes:
            return ""
        resource = CallResource(record.ref, False, record, record.label, record.zone or self._ctx.zone)
        marker, holds_for_all = self._value_access.judge_thing(self._action, self._ctx, resource)
        if holds_for_all:
            self._allowed_scopes = {*self._allowed_scopes, scope_key}
        return marker

    def _is_in_allowed_scope(self, ref: Ref, item: Any) -> bool:
        return (ref.kind, ref.project, item.zone, item.label, False) in self._allowed_scopes

    def is_labelled(self, kind: str) -> bool:
        """True when a record of this kind may carry a label, so that it could be withheld."""
        has_labels = self._labelled_kinds.get(kind)
        if has_labels is None:
            has_labels = self._value_access.labelled(self._ctx, kind)
            self._labelled_kinds = {**self._labelled_kinds, kind: has_labels}
        return has_labels


_OWN_OUTPUT_HINT = "write to the job's own run, or to outputs that the job declared with --outputs"


def _is_unrestricted(resource: CallResource) -> bool:
    """True when nothing restricts who may read its values: no label, or a kind whose records hold none."""
    return (resource.label.is_open and not resource.restricted) or find_family(resource.asked.kind) != "work"


def _make_marker(resource: CallResource, _reason: str) -> str:
    return f"withheld: needs read on {resource.asked} (label {resource.label.words}): {_reason}"[:500]
