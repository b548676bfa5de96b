"""Approvals: four eyes over exact digests. A pure judgement of what people said, and the desk where they say it.

An approval is about one action on one digest; its name is made of both, so another digest is another approval and a
change of anything voids what was said. Voices are counted by person (what the identity provider calls them), never by
account, and two people count as two only if neither made the credential of the other.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Denied, Invalid
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.govern.officer_notices import NoticeOperations, mark_notices_answered
from falaj.govern.records import ApprovalQuestion, ApprovalStanding, ApprovalState, ApprovalVote
from falaj.govern.supporting_documents import DocumentOperations
from falaj.store.blob_store import BlobStore
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord, with_next_cursor

APPROVING_ROLES = ("approver", "dpo")
RUN_ACCOUNT_PREFIX = "run."
"""How the accounts of runs begin; nobody else is called so."""
EMERGENCY_PERIOD_S = 24 * 3600.0
DAY_S = 86_400.0
MAX_DAYS = 366
MAX_APPROVERS = 9
APPROVAL_KIND, APPROVALS_PROJECT = "approval", "approvals"
_ACTION_PATTERN = r"[a-z][a-z0-9-]{0,30}\.[a-z][a-z0-9-]{0,30}"
_DIGEST_PATTERN = r"[A-Za-z0-9][A-Za-z0-9:._-]{15,199}"
_OTHER_DIGEST_REASON = "the digest is another one than was asked about"
_CREDENTIAL_BY_ASKER_REASON = "the credential was made by the person who asks, or by an author"
_OWNER_PERSON_PREFIX = "os:"
"""Prefix of the person of an embedded folder's owner. The owner enrols all accounts there, and holds the keys: that
bars the others from approving the owner's own requests, and the owner from nothing."""


def evaluate_approval(approval: ApprovalQuestion, now: float) -> ApprovalStanding:
    """Where it stands at `now`. Trusts no earlier check: every voice is judged again, here."""
    counted_votes = _list_counted_votes(approval, now)
    vote_count, officer_count = len(counted_votes), sum("dpo" in vote.roles for vote in counted_votes)
    missing = max(0, approval.needs - vote_count)
    missing_dpo = max(0, approval.dpo - officer_count)

    def build_standing(state: str, ends_at: float, reason: str, ratify: bool = False) -> ApprovalStanding:
        return ApprovalStanding(state, vote_count, missing, missing_dpo, ends_at, reason, ratify)

    refusal = next((vote for vote in approval.voices if vote.says == "refuse"), None)
    if refusal is not None:
        return build_standing("refused", refusal.at, f"{refusal.actor} refused it")
    if now >= approval.expires:
        return build_standing("expired", approval.expires, "its time is over")
    deadline = counted_votes[0].at + EMERGENCY_PERIOD_S if approval.emergency and counted_votes else approval.expires
    if not missing and not missing_dpo and _compute_completed_at(approval, counted_votes) < deadline:
        return build_standing("granted", approval.expires, "enough people gave it")
    if approval.emergency and counted_votes:
        if now >= deadline:
            return build_standing("lapsed", deadline, "nobody ratified the emergency in time: undo what it allowed")
        return build_standing(
            "emergency", min(deadline, approval.expires), "one person gave it; others must ratify it", ratify=True
        )
    emergency_note = "; an emergency: the first of them lets it go on, for 24 hours" if approval.emergency else ""
    return build_standing("waiting", approval.expires, _describe_missing(missing, missing_dpo) + emergency_note)


def compute_current_standing(approval: ApprovalQuestion, now: float) -> ApprovalStanding:
    """Return where it stands now, by the clock of this replica and the times that the approval records."""
    return evaluate_approval(approval, latest_time(approval, now))


def latest_time(approval: ApprovalQuestion, now: float) -> float:
    """Return the later of `now` and the times that the approval records.

    The clocks of replicas differ: an answer in the ledger was given, also where another replica dated it after `now`.
    """
    return max(now, approval.asked, *(voice.at for voice in approval.voices))


def find_vote_objection(approval: ApprovalQuestion, vote: ApprovalVote) -> str:
    """Why this voice does not count, or nothing when it does."""
    if vote.kind != "person":
        return "only people approve, never a service account or a workload"
    if vote.behalf:
        return "nobody approves on behalf of another"
    if approval.asker in (vote.person, vote.actor):
        return "whoever asks does not approve"
    if vote.person in approval.barred or vote.actor in approval.barred:
        emergency_note = ", nor does anybody whose last emergency nobody ratified" if approval.emergency else ""
        return f"an author does not approve the own work{emergency_note}"
    if set(vote.makers) & {approval.asker, *approval.barred}:
        return _CREDENTIAL_BY_ASKER_REASON
    if vote.person in approval.asker_makers and not vote.person.startswith(_OWNER_PERSON_PREFIX):
        return "you made the credential of the person who asks"
    if not set(vote.roles) & set(approval.roles):
        return f"this needs one of the roles {', '.join(approval.roles)}"
    return "" if vote.digest == approval.digest else _OTHER_DIGEST_REASON


def with_stricter_rules(
    approval: ApprovalQuestion, barred: tuple[str, ...] = (), min_approvers: int = 0, min_officers: int = 0
) -> ApprovalQuestion:
    """The same question under rules at least as strict: whoever asked cannot have made it easier."""
    return replace(
        approval,
        barred=(*approval.barred, *barred),
        needs=max(min_approvers, approval.needs),
        dpo=max(min_officers, approval.dpo),
    )


def _list_counted_votes(approval: ApprovalQuestion, now: float) -> list[ApprovalVote]:
    """One voice a person, the earliest; a person and the maker of that person's credential count as one."""
    counted_votes: list[ApprovalVote] = []
    for vote in sorted(approval.voices, key=lambda vote_item: vote_item.at):
        is_timely = approval.asked <= vote.at <= now and vote.at < approval.expires
        if vote.says != "give" or not is_timely or find_vote_objection(approval, vote):
            continue
        if all(is_independent(vote, earlier_vote) for earlier_vote in counted_votes):
            counted_votes.append(vote)
    return counted_votes


def is_independent(first_vote: ApprovalVote, second_vote: ApprovalVote) -> bool:
    """True for two people of whom neither made the credential of the other."""
    if first_vote.person == second_vote.person:
        return False
    credential_pairs = (first_vote.person, second_vote.makers), (second_vote.person, first_vote.makers)
    return not any(
        person in makers and not person.startswith(_OWNER_PERSON_PREFIX) for person, makers in credential_pairs
    )


def _compute_completed_at(approval: ApprovalQuestion, counted_votes: list[ApprovalVote]) -> float:
    """When the last voice it needed was heard."""
    officer_vote_times = [vote.at for vote in counted_votes if "dpo" in vote.roles]
    enough_at = counted_votes[approval.needs - 1].at if approval.needs else approval.asked
    return max(enough_at, officer_vote_times[approval.dpo - 1]) if approval.dpo else enough_at


def _describe_missing(people_count: int, officer_count: int) -> str:
    people_text = f"{people_count} more {'person' if people_count == 1 else 'people'}" if people_count else ""
    officer_text = f"{officer_count} of the role dpo" if officer_count else ""
    return "it waits for " + (
        f"{people_text}, {officer_text}" if people_text and officer_text else people_text or officer_text
    )


GrantEffect = Callable[[CallContext, LedgerWriter, ApprovalQuestion], None]
"""What a service does in the transaction in which an approval becomes granted."""


class ApprovalService(DocumentOperations, NoticeOperations):
    """Four eyes: ask, give, refuse, over exact digests."""

    def __init__(
        self,
        ledger: Ledger,
        get_person: Callable[[str, str], str] | None = None,
        blobs: BlobStore | None = None,
    ) -> None:
        """`person_of(tenant, account)` gives the person behind an account, so that an author has no second voice.

        `blobs` keeps the bytes of supporting documents.
        """
        self._ledger = ledger
        self._blobs = blobs
        self.get_person = get_person
        self._watchers: tuple[Callable[[], None], ...] = ()
        self._effects: dict[str, GrantEffect] = {}

    @operation(reads=("about",), group="write")
    def ask(
        self,
        ctx: CallContext,
        action: Annotated[str, "what the approval is for, as desk.verb"],
        digest: Annotated[str, "the exact digest people are asked to approve"],
        reason: Annotated[str, "why, for those who decide"],
        about: Annotated[Ref | None, "the thing it is about; its author cannot approve"] = None,
        needs: Annotated[int, "how many different people must approve, besides you"] = 2,
        days: Annotated[int, "days until the question, and any answer, ends"] = 7,
        emergency: Annotated[
            bool, "one person suffices for 24 hours; then it lapses unless the others ratify it"
        ] = False,
    ) -> ApprovalState:
        """Ask people to approve one exact digest for one action.

        Nobody approves what they asked for or wrote. Any change is another digest and needs asking again.

        Example:
            falaj approvals ask catalog.promote sha256:9f… --reason "passed the bias test" --about model:fraud/scorer@v3
        """
        if not 1 <= days <= MAX_DAYS:
            raise Invalid(f"an approval of {days} days", f"1 to {MAX_DAYS} days")
        if action in self._effects:
            raise Invalid(f"{action} is asked for by the platform itself", "see who waits: falaj approvals list")
        with self._ledger.write(ctx) as tx:
            authors = self.persons(ctx, tx.need(about).author) if about is not None else ()
            question = ApprovalQuestion(
                action=action,
                digest=digest,
                needs=needs,
                dpo=0,
                roles=APPROVING_ROLES,
                asker=ctx.actor.person,
                barred=(ctx.actor.id, *authors),
                reason=reason,
                asked=ctx.now(),
                expires=ctx.now() + days * DAY_S,
                about=str(about or ""),
                emergency=emergency,
            )
            return self.propose(ctx, tx, question)

    @operation(writes=("approval",), group="approve")
    def give(
        self,
        ctx: CallContext,
        approval: Annotated[Ref, "the approval, as list shows it"],
        digest: Annotated[str, "the digest you looked at; refused when it is not the one asked about"] = "",
        reason: Annotated[str, "what you want remembered with it"] = "",
    ) -> ApprovalState:
        """Say yes, as yourself.

        Example:
            falaj approvals give approval:approvals/zones.grant.3b1f… --digest sha256:9f…
        """
        return self.record_vote(ctx, approval, "give", digest, reason)

    @operation(writes=("approval",), group="approve")
    def refuse(
        self,
        ctx: CallContext,
        approval: Annotated[Ref, "the approval, as list shows it"],
        reason: Annotated[str, "why not"],
    ) -> ApprovalState:
        """Say no. It ends the question, and ends an approval that was already given.

        Example:
            falaj approvals refuse approval:approvals/zones.grant.3b1f… --reason "the contract has no audit clause"
        """
        return self.record_vote(ctx, approval, "refuse", "", reason)

    @operation(reads=("approval",))
    def show(self, ctx: CallContext, approval: Annotated[Ref, "the approval"]) -> ApprovalState:
        """Show one approval, who said what, and what it still waits for.

        Example:
            falaj approvals show approval:approvals/zones.grant.3b1f…
        """
        with self._ledger.read(ctx) as tx:
            return _build_state(tx.need(_require_approval_ref(approval)), ctx.now())

    @operation()
    def list(
        self,
        ctx: CallContext,
        state: Annotated[str, "only those that stand so: waiting, granted, emergency, refused, expired, lapsed"] = "",
        action: Annotated[str, "only those for this action"] = "",
        limit: Annotated[int, "at most so many, newest first"] = 100,
        after: Annotated[str, "`more` of the last one before"] = "",
    ) -> tuple[ApprovalState, ...]:
        """List approvals, newest first.

        Example:
            falaj approvals list --state waiting
        """
        terms, scopes, listed = {"action": action} if action else {}, ctx.cells(APPROVAL_KIND), list[ApprovalState]()
        with self._ledger.read(ctx) as tx:
            while True:
                page = tx.find(APPROVAL_KIND, terms=terms, scopes=scopes, newest_first=True, after=after, limit=limit)
                states = [_build_state(record, ctx.now()) for record in page.records]
                listed += [
                    approval_state for approval_state in states if not state or approval_state.standing.state == state
                ]
                after = page.next
                # How a question stands is a matter of time, too, and so no index knows it.
                if listed or not after:
                    return with_next_cursor(listed, after)

    def propose(self, ctx: CallContext, tx: LedgerWriter, question: ApprovalQuestion) -> ApprovalState:
        """Put a question in a transaction of a room of ours; the same question again is found, not asked twice."""
        _validate_question(question)
        # The person a run acts for is behind what it asks, and may not approve it either.
        represented_persons = self.persons(ctx, ctx.actor.behalf) if ctx.actor.behalf else ()
        makers = question.asker_makers or ctx.actor.makers
        question = replace(question, asker_makers=makers, barred=(*question.barred, *represented_persons))
        ref = make_approval_ref(question.action, question.digest)
        earlier_record = tx.get(ref)
        if earlier_record is not None:
            state = _build_state(earlier_record, ctx.now())
            if state.standing.state in ("waiting", "granted", "emergency"):
                if _is_as_strict(state.approval, question):
                    return state
                question = _merge_questions(state.approval, question)
            if state.standing.state == "refused":
                raise Conflict(f"{ref} was refused", "change what was refused: another digest is another question", ref)
        terms = {"action": question.action, "asker": question.asker}
        record = tx.put(ref, to_plain(question), rev=earlier_record.rev if earlier_record else None, terms=terms)
        tx.emit(
            "approvals.ask",
            record.ref,
            action=question.action,
            digest=question.digest,
            needs=question.needs,
            dpo=question.dpo,
            emergency=int(question.emergency),
            about=question.about,
        )
        self.notify_watchers_after(tx)
        return _build_state(record, ctx.now())

    def demand(
        self,
        ctx: CallContext,
        action: str,
        digest: str,
        *,
        min_approvers: int = 2,
        min_officers: int = 0,
        authors: tuple[str, ...] = (),
        allow_emergency: bool = False,
    ) -> ApprovalQuestion:
        """The approval that stands for exactly this, or Denied with the command that is missing. For rooms.

        `authors` (accounts or persons) have no voice, whatever the question said.
        """
        ref = make_approval_ref(action, digest)
        with self._ledger.read(ctx) as tx:
            approval = find_approval(tx, action, digest, tenant=ctx.tenant)
        if approval is None:
            hint = f"falaj approvals ask {action} {digest} --needs {min_approvers} --reason …"
            raise Denied(f"{action} needs the approval of {min_approvers} people, and nobody asked them", hint, ref)
        barred_persons = tuple(person for author in authors for person in self.persons(ctx, author))
        approval = with_stricter_rules(approval, barred_persons, min_approvers, min_officers)
        current_standing = compute_current_standing(approval, ctx.now())
        if current_standing.granted or (allow_emergency and current_standing.state == "emergency"):
            return approval
        raise Denied(
            f"{action} is not approved: {current_standing.why}", f"an approver runs: falaj approvals give {ref}", ref
        )

    def persons(self, ctx: CallContext, account_name: str) -> tuple[str, ...]:
        """The account and, where they are known, the person behind it and, of a run's, whoever let that run work."""
        persons = (
            (account_name,) if self.get_person is None else (account_name, self.get_person(ctx.tenant, account_name))
        )
        if not account_name.startswith(RUN_ACCOUNT_PREFIX):
            return persons
        with self._ledger.read(ctx) as tx:
            run_records = tx.find(
                "run", tenant=ctx.tenant, name=account_name.removeprefix(RUN_ACCOUNT_PREFIX), limit=1
            ).records
        return (*persons, *(person for run_record in run_records for person in self.persons(ctx, run_record.author)))

    def on_granted(self, action: str, effect: GrantEffect) -> None:
        """Run `effect` when an approval of this action becomes granted. Only the platform asks for such approvals."""
        self._effects[action] = effect

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when what people said has changed, in this process."""
        self._watchers += (callback,)

    def record_vote(self, ctx: CallContext, ref: Ref, answer: str, digest: str, reason: str) -> ApprovalState:
        ref = _require_approval_ref(ref)
        with self._ledger.write(ctx) as tx:
            record = tx.need(ref)
            approval = _read_approval(record)
            vote = _create_vote(ctx, latest_time(approval, ctx.now()), answer, digest or approval.digest, reason)
            _require_valid_vote(ctx, approval, vote, ref)
            changed_approval = replace(approval, voices=(*approval.voices, vote))
            record = tx.put(ref, to_plain(changed_approval), rev=record.rev)
            mark_notices_answered(ctx, tx, ref)
            state = _build_state(record, ctx.now())
            tx.emit(
                f"approvals.{answer}",
                record.ref,
                action=approval.action,
                digest=approval.digest,
                state=state.standing.state,
                reason=reason,
            )
            if answer == "give" and state.standing.granted and approval.action in self._effects:
                self._effects[approval.action](ctx, tx, changed_approval)
            self.notify_watchers_after(tx)
        return state

    def notify_watchers_after(self, tx: LedgerWriter) -> None:
        def notify_watchers(durable: bool) -> None:
            if durable:
                for watcher in self._watchers:
                    watcher()

        tx.after(notify_watchers)


def make_approval_ref(action: str, digest: str) -> Ref:
    """The one name of the question whether `action` may be done with exactly `digest`."""
    digest_tail = hashlib.sha256(f"{action}\0{digest}".encode()).hexdigest()[:32]
    return Ref(APPROVAL_KIND, APPROVALS_PROJECT, f"{action}.{digest_tail}")


def find_approval(tx: LedgerReader, action: str, digest: str, *, tenant: str) -> ApprovalQuestion | None:
    """What was asked and said about exactly this, or None."""
    record = tx.get(make_approval_ref(action, digest), tenant=tenant)
    if record is None:
        return None
    approval = _read_approval(record)
    return approval if (approval.action, approval.digest) == (action, digest) else None


def _validate_question(question: ApprovalQuestion) -> None:
    if not re.fullmatch(_ACTION_PATTERN, question.action):
        raise Invalid(f"{question.action!r:.60} is no action", "desk.verb, for example catalog.promote")
    if not re.fullmatch(_DIGEST_PATTERN, question.digest):
        raise Invalid("that is no digest", "the exact digest of what is to be approved, for example sha256:…")
    if not 1 <= question.needs <= MAX_APPROVERS or question.dpo > question.needs:
        raise Invalid(f"an approval by {question.needs} people", f"1 to {MAX_APPROVERS}")
    if not question.reason.strip():
        raise Invalid("nobody can decide without a reason", "--reason says why, for those who decide")


def _is_as_strict(earlier_question: ApprovalQuestion, new_question: ApprovalQuestion) -> bool:
    """True when what was asked before is no easier to pass than what is asked now."""
    earlier_barred = {earlier_question.asker, *earlier_question.barred}
    has_no_fewer_rules = (
        earlier_question.needs >= new_question.needs
        and earlier_question.dpo >= new_question.dpo
        and set(earlier_question.roles) <= set(new_question.roles)
    )
    has_all_makers = set(earlier_question.asker_makers) >= set(new_question.asker_makers)
    return (
        has_no_fewer_rules
        and has_all_makers
        and earlier_barred >= {new_question.asker, *new_question.barred}
        and (new_question.emergency or not earlier_question.emergency)
    )


def _merge_questions(earlier_question: ApprovalQuestion, new_question: ApprovalQuestion) -> ApprovalQuestion:
    """One question under the rules of both: asking again makes it harder, and never loses what people said."""
    roles = tuple(role for role in earlier_question.roles if role in new_question.roles) or new_question.roles
    merged = with_stricter_rules(
        earlier_question, (new_question.asker, *new_question.barred), new_question.needs, new_question.dpo
    )
    makers = tuple(dict.fromkeys((*earlier_question.asker_makers, *new_question.asker_makers)))
    return replace(
        merged, roles=roles, emergency=earlier_question.emergency and new_question.emergency, asker_makers=makers
    )


def _require_valid_vote(ctx: CallContext, approval: ApprovalQuestion, vote: ApprovalVote, ref: Ref) -> None:
    """Refuse a voice that could not count, so that its speaker hears it now."""
    current_standing = compute_current_standing(approval, vote.at)
    if current_standing.state in ("refused", "expired", "lapsed"):
        raise Conflict(f"{ref} is over: {current_standing.why}", "ask again with falaj approvals ask", ref)
    if vote.says == "refuse" and approval.asker == vote.person:
        return
    if ctx.actor.tenant != ctx.tenant or ctx.actor.run:
        raise Denied("only people of this tenant approve here", "ask one of its approvers", ref)
    objection = find_vote_objection(approval, vote)
    if objection:
        raise Denied(
            f"your voice does not count here: {objection}", _make_objection_hint(approval, objection, ref), ref
        )
    if vote.says == "give" and any(earlier_vote.person == vote.person for earlier_vote in approval.voices):
        raise Conflict("you have approved it already", "another person must", ref)
    if vote.says == "give" and not all(
        is_independent(vote, other_vote) for other_vote in _list_counted_votes(approval, vote.at)
    ):
        raise Denied(
            "your voice does not count here: you made the credential of a person who approved it, or that person yours",
            _make_objection_hint(approval, "", ref),
            ref,
        )


def _make_objection_hint(approval: ApprovalQuestion, objection: str, ref: Ref) -> str:
    """What helps after a voice was refused for the reason `objection`."""
    if objection == _OTHER_DIGEST_REASON:
        return f"look at what is asked: falaj approvals show {ref.bare}"
    roles = " or ".join(approval.roles)
    if objection == _CREDENTIAL_BY_ASKER_REASON:
        return f"have another person ask, or a person approve ({roles}) whom the asker did not enrol"
    return f"another person with the role {roles} can"


def _create_vote(ctx: CallContext, at: float, answer: str, digest: str, reason: str) -> ApprovalVote:
    actor = ctx.actor
    return ApprovalVote(
        says=answer,
        person=actor.person,
        actor=actor.id,
        kind=actor.kind,
        roles=tuple(sorted(actor.roles)),
        at=at,
        digest=digest,
        behalf=actor.behalf,
        reason=reason,
        makers=actor.makers,
    )


def _require_approval_ref(ref: Ref) -> Ref:
    if ref.kind != APPROVAL_KIND:
        raise Invalid(f"{ref} is not an approval", "falaj approvals list shows them", ref)
    return ref.bare


def _read_approval(record: LedgerRecord) -> ApprovalQuestion:
    approval: ApprovalQuestion = from_plain(ApprovalQuestion, record.body)
    return approval


def _build_state(record: LedgerRecord, now: float) -> ApprovalState:
    approval = _read_approval(record)
    return ApprovalState(record.ref.bare, approval, compute_current_standing(approval, now))
