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

from falaj.core.context import Context
from falaj.core.errors import Conflict, Denied, Invalid
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.officer_notices import OfficerNotices, mark_answered
from falaj.govern.records import Approval, ApprovalState, Standing, Voice
from falaj.govern.supporting_documents import SupportingDocuments
from falaj.store.blobs import BlobStore
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.records import Record, going_on

ROLES = ("approver", "dpo")
OF_RUN = "run."
"""How the accounts of runs begin; nobody else is called so."""
EMERGENCY_S = 24 * 3600.0
DAY_S = 86_400.0
MAX_DAYS = 366
MAX_NEEDS = 9
KIND, PROJECT = "approval", "approvals"
_ACTION = r"[a-z][a-z0-9-]{0,30}\.[a-z][a-z0-9-]{0,30}"
_DIGEST = r"[A-Za-z0-9][A-Za-z0-9:._-]{15,199}"
_OTHER = "the digest is another one than was asked about"
_MADE_BY_ASKER = "the credential was made by the person who asks, or by an author"
_OWNER = "os:"
"""Prefix of the person of an embedded folder's owner. The owner enrols all accounts there, and holds the keys: that
bars the others from approving the owner's own requests, and the owner from nothing."""


def standing(approval: Approval, now: float) -> Standing:
    """Where it stands at `now`. Trusts no earlier check: every voice is judged again, here."""
    good = _counted(approval, now)
    given, officers = len(good), sum("dpo" in voice.roles for voice in good)
    missing = max(0, approval.needs - given)
    missing_dpo = max(0, approval.dpo - officers)

    def said(state: str, until: float, why: str, ratify: bool = False) -> Standing:
        return Standing(state, given, missing, missing_dpo, until, why, ratify)

    refused = next((voice for voice in approval.voices if voice.says == "refuse"), None)
    if refused is not None:
        return said("refused", refused.at, f"{refused.actor} refused it")
    if now >= approval.expires:
        return said("expired", approval.expires, "its time is over")
    deadline = good[0].at + EMERGENCY_S if approval.emergency and good else approval.expires
    if not missing and not missing_dpo and _complete_at(approval, good) < deadline:
        return said("granted", approval.expires, "enough people gave it")
    if approval.emergency and good:
        if now >= deadline:
            return said("lapsed", deadline, "nobody ratified the emergency in time: undo what it allowed")
        return said(
            "emergency", min(deadline, approval.expires), "one person gave it; others must ratify it", ratify=True
        )
    hurry = "; an emergency: the first of them lets it go on, for 24 hours" if approval.emergency else ""
    return said("waiting", approval.expires, _missing(missing, missing_dpo) + hurry)


def current_standing(approval: Approval, now: float) -> Standing:
    """Return where it stands now, by the clock of this replica and the times that the approval records."""
    return standing(approval, latest_time(approval, now))


def latest_time(approval: Approval, now: float) -> float:
    """Return the later of `now` and the times that the approval records.

    The clocks of replicas differ: an answer in the ledger was given, also where another replica dated it after `now`.
    """
    return max(now, approval.asked, *(voice.at for voice in approval.voices))


def may_speak(approval: Approval, voice: Voice) -> str:
    """Why this voice does not count, or nothing when it does."""
    if voice.kind != "person":
        return "only people approve, never a service account or a workload"
    if voice.behalf:
        return "nobody approves on behalf of another"
    if approval.asker in (voice.person, voice.actor):
        return "whoever asks does not approve"
    if voice.person in approval.barred or voice.actor in approval.barred:
        hasty = ", nor does anybody whose last emergency nobody ratified" if approval.emergency else ""
        return f"an author does not approve the own work{hasty}"
    if set(voice.makers) & {approval.asker, *approval.barred}:
        return _MADE_BY_ASKER
    if voice.person in approval.asker_makers and not voice.person.startswith(_OWNER):
        return "you made the credential of the person who asks"
    if not set(voice.roles) & set(approval.roles):
        return f"this needs one of the roles {', '.join(approval.roles)}"
    return "" if voice.digest == approval.digest else _OTHER


def stricter(approval: Approval, barred: tuple[str, ...] = (), needs: int = 0, dpo: int = 0) -> Approval:
    """The same question under rules at least as strict: whoever asked cannot have made it easier."""
    return replace(
        approval, barred=(*approval.barred, *barred), needs=max(needs, approval.needs), dpo=max(dpo, approval.dpo)
    )


def _counted(approval: Approval, now: float) -> list[Voice]:
    """One voice a person, the earliest; a person and the maker of that person's credential count as one."""
    counted: list[Voice] = []
    for voice in sorted(approval.voices, key=lambda v: v.at):
        timely = approval.asked <= voice.at <= now and voice.at < approval.expires
        if voice.says != "give" or not timely or may_speak(approval, voice):
            continue
        if all(is_independent(voice, earlier) for earlier in counted):
            counted.append(voice)
    return counted


def is_independent(first: Voice, second: Voice) -> bool:
    """True for two people of whom neither made the credential of the other."""
    if first.person == second.person:
        return False
    pairs = (first.person, second.makers), (second.person, first.makers)
    return not any(person in makers and not person.startswith(_OWNER) for person, makers in pairs)


def _complete_at(approval: Approval, good: list[Voice]) -> float:
    """When the last voice it needed was heard."""
    officers = [voice.at for voice in good if "dpo" in voice.roles]
    enough = good[approval.needs - 1].at if approval.needs else approval.asked
    return max(enough, officers[approval.dpo - 1]) if approval.dpo else enough


def _missing(people: int, officers: int) -> str:
    who = f"{people} more {'person' if people == 1 else 'people'}" if people else ""
    dpo = f"{officers} of the role dpo" if officers else ""
    return "it waits for " + (f"{who}, {dpo}" if who and dpo else who or dpo)


Effect = Callable[[Context, Writer, Approval], None]
"""What a service does in the transaction in which an approval becomes granted."""


class Approvals(SupportingDocuments, OfficerNotices):
    """Four eyes: ask, give, refuse, over exact digests."""

    def __init__(
        self,
        ledger: Ledger,
        person_of: Callable[[str, str], str] | None = None,
        blobs: BlobStore | None = None,
    ) -> None:
        """`person_of(tenant, account)` gives the person behind an account, so that an author has no second voice.

        `blobs` keeps the bytes of supporting documents.
        """
        self._ledger = ledger
        self._blobs = blobs
        self._person_of = person_of
        self._watchers: tuple[Callable[[], None], ...] = ()
        self._effects: dict[str, Effect] = {}

    @verb(reads=("about",), group="write")
    def ask(
        self,
        ctx: Context,
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
            question = Approval(
                action=action,
                digest=digest,
                needs=needs,
                dpo=0,
                roles=ROLES,
                asker=ctx.actor.person,
                barred=(ctx.actor.id, *authors),
                reason=reason,
                asked=ctx.now(),
                expires=ctx.now() + days * DAY_S,
                about=str(about or ""),
                emergency=emergency,
            )
            return self.propose(ctx, tx, question)

    @verb(writes=("approval",), group="approve")
    def give(
        self,
        ctx: Context,
        approval: Annotated[Ref, "the approval, as list shows it"],
        digest: Annotated[str, "the digest you looked at; refused when it is not the one asked about"] = "",
        reason: Annotated[str, "what you want remembered with it"] = "",
    ) -> ApprovalState:
        """Say yes, as yourself.

        Example:
            falaj approvals give approval:approvals/zones.grant.3b1f… --digest sha256:9f…
        """
        return self._speak(ctx, approval, "give", digest, reason)

    @verb(writes=("approval",), group="approve")
    def refuse(
        self,
        ctx: Context,
        approval: Annotated[Ref, "the approval, as list shows it"],
        reason: Annotated[str, "why not"],
    ) -> ApprovalState:
        """Say no. It ends the question, and ends an approval that was already given.

        Example:
            falaj approvals refuse approval:approvals/zones.grant.3b1f… --reason "the contract has no audit clause"
        """
        return self._speak(ctx, approval, "refuse", "", reason)

    @verb(reads=("approval",))
    def show(self, ctx: Context, approval: Annotated[Ref, "the approval"]) -> ApprovalState:
        """Show one approval, who said what, and what it still waits for.

        Example:
            falaj approvals show approval:approvals/zones.grant.3b1f…
        """
        with self._ledger.read(ctx) as tx:
            return _state(tx.need(_mutable(approval)), ctx.now())

    @verb()
    def list(
        self,
        ctx: Context,
        state: Annotated[str, "only those that stand so: waiting, granted, emergency, refused, expired, lapsed"] = "",
        action: Annotated[str, "only those for this action"] = "",
        limit: Annotated[int, "at most so many, newest first"] = 100,
        after: Annotated[str, "`more` of the last one before"] = "",
    ) -> tuple[ApprovalState, ...]:
        """List approvals, newest first.

        Example:
            falaj approvals list --state waiting
        """
        terms, cells, found = {"action": action} if action else {}, ctx.cells(KIND), list[ApprovalState]()
        with self._ledger.read(ctx) as tx:
            while True:
                page = tx.find(KIND, terms=terms, cells=cells, newest=True, after=after, limit=limit)
                states = [_state(record, ctx.now()) for record in page.records]
                found += [one for one in states if not state or one.standing.state == state]
                after = page.next
                # How a question stands is a matter of time, too, and so no index knows it.
                if found or not after:
                    return going_on(found, after)

    def propose(self, ctx: Context, tx: Writer, question: Approval) -> ApprovalState:
        """Put a question in a transaction of a room of ours; the same question again is found, not asked twice."""
        _check(question)
        # The person a run acts for is behind what it asks, and may not approve it either.
        behind = self.persons(ctx, ctx.actor.behalf) if ctx.actor.behalf else ()
        makers = question.asker_makers or ctx.actor.makers
        question = replace(question, asker_makers=makers, barred=(*question.barred, *behind))
        ref = approval_ref(question.action, question.digest)
        old = tx.get(ref)
        if old is not None:
            state = _state(old, ctx.now())
            if state.standing.state in ("waiting", "granted", "emergency"):
                if _as_strict(state.approval, question):
                    return state
                question = _both(state.approval, question)
            if state.standing.state == "refused":
                raise Conflict(f"{ref} was refused", "change what was refused: another digest is another question", ref)
        terms = {"action": question.action, "asker": question.asker}
        record = tx.put(ref, to_plain(question), rev=old.rev if old else None, terms=terms)
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
        self._tell_after(tx)
        return _state(record, ctx.now())

    def demand(
        self,
        ctx: Context,
        action: str,
        digest: str,
        *,
        needs: int = 2,
        dpo: int = 0,
        authors: tuple[str, ...] = (),
        emergency: bool = False,
    ) -> Approval:
        """The approval that stands for exactly this, or Denied with the command that is missing. For rooms.

        `authors` (accounts or persons) have no voice, whatever the question said.
        """
        ref = approval_ref(action, digest)
        with self._ledger.read(ctx) as tx:
            approval = find_approval(tx, action, digest, tenant=ctx.tenant)
        if approval is None:
            hint = f"falaj approvals ask {action} {digest} --needs {needs} --reason …"
            raise Denied(f"{action} needs the approval of {needs} people, and nobody asked them", hint, ref)
        barred = tuple(person for author in authors for person in self.persons(ctx, author))
        approval = stricter(approval, barred, needs, dpo)
        now = current_standing(approval, ctx.now())
        if now.granted or (emergency and now.state == "emergency"):
            return approval
        raise Denied(f"{action} is not approved: {now.why}", f"an approver runs: falaj approvals give {ref}", ref)

    def persons(self, ctx: Context, account: str) -> tuple[str, ...]:
        """The account and, where they are known, the person behind it and, of a run's, whoever let that run work."""
        found = (account,) if self._person_of is None else (account, self._person_of(ctx.tenant, account))
        if not account.startswith(OF_RUN):
            return found
        with self._ledger.read(ctx) as tx:
            runs = tx.find("run", tenant=ctx.tenant, name=account.removeprefix(OF_RUN), limit=1).records
        return (*found, *(person for run in runs for person in self.persons(ctx, run.author)))

    def on_granted(self, action: str, effect: Effect) -> None:
        """Run `effect` when an approval of this action becomes granted. Only the platform asks for such approvals."""
        self._effects[action] = effect

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when what people said has changed, in this process."""
        self._watchers += (callback,)

    def _speak(self, ctx: Context, ref: Ref, says: str, digest: str, reason: str) -> ApprovalState:
        ref = _mutable(ref)
        with self._ledger.write(ctx) as tx:
            record = tx.need(ref)
            approval = _approval(record)
            voice = _voice(ctx, latest_time(approval, ctx.now()), says, digest or approval.digest, reason)
            _admit(ctx, approval, voice, ref)
            changed = replace(approval, voices=(*approval.voices, voice))
            record = tx.put(ref, to_plain(changed), rev=record.rev)
            mark_answered(ctx, tx, ref)
            state = _state(record, ctx.now())
            tx.emit(
                f"approvals.{says}",
                record.ref,
                action=approval.action,
                digest=approval.digest,
                state=state.standing.state,
                reason=reason,
            )
            if says == "give" and state.standing.granted and approval.action in self._effects:
                self._effects[approval.action](ctx, tx, changed)
            self._tell_after(tx)
        return state

    def _tell_after(self, tx: Writer) -> None:
        def tell(durable: bool) -> None:
            if durable:
                for watcher in self._watchers:
                    watcher()

        tx.after(tell)


def approval_ref(action: str, digest: str) -> Ref:
    """The one name of the question whether `action` may be done with exactly `digest`."""
    tail = hashlib.sha256(f"{action}\0{digest}".encode()).hexdigest()[:32]
    return Ref(KIND, PROJECT, f"{action}.{tail}")


def find_approval(tx: Reader, action: str, digest: str, *, tenant: str) -> Approval | None:
    """What was asked and said about exactly this, or None."""
    record = tx.get(approval_ref(action, digest), tenant=tenant)
    if record is None:
        return None
    approval = _approval(record)
    return approval if (approval.action, approval.digest) == (action, digest) else None


def _check(question: Approval) -> None:
    if not re.fullmatch(_ACTION, question.action):
        raise Invalid(f"{question.action!r:.60} is no action", "desk.verb, for example catalog.promote")
    if not re.fullmatch(_DIGEST, question.digest):
        raise Invalid("that is no digest", "the exact digest of what is to be approved, for example sha256:…")
    if not 1 <= question.needs <= MAX_NEEDS or question.dpo > question.needs:
        raise Invalid(f"an approval by {question.needs} people", f"1 to {MAX_NEEDS}")
    if not question.reason.strip():
        raise Invalid("nobody can decide without a reason", "--reason says why, for those who decide")


def _as_strict(old: Approval, new: Approval) -> bool:
    """True when what was asked before is no easier to pass than what is asked now."""
    known = {old.asker, *old.barred}
    harder = old.needs >= new.needs and old.dpo >= new.dpo and set(old.roles) <= set(new.roles)
    known_makers = set(old.asker_makers) >= set(new.asker_makers)
    return harder and known_makers and known >= {new.asker, *new.barred} and (new.emergency or not old.emergency)


def _both(old: Approval, new: Approval) -> Approval:
    """One question under the rules of both: asking again makes it harder, and never loses what people said."""
    roles = tuple(role for role in old.roles if role in new.roles) or new.roles
    merged = stricter(old, (new.asker, *new.barred), new.needs, new.dpo)
    makers = tuple(dict.fromkeys((*old.asker_makers, *new.asker_makers)))
    return replace(merged, roles=roles, emergency=old.emergency and new.emergency, asker_makers=makers)


def _admit(ctx: Context, approval: Approval, voice: Voice, ref: Ref) -> None:
    """Refuse a voice that could not count, so that its speaker hears it now."""
    now = current_standing(approval, voice.at)
    if now.state in ("refused", "expired", "lapsed"):
        raise Conflict(f"{ref} is over: {now.why}", "ask again with falaj approvals ask", ref)
    if voice.says == "refuse" and approval.asker == voice.person:
        return
    if ctx.actor.tenant != ctx.tenant or ctx.actor.run:
        raise Denied("only people of this tenant approve here", "ask one of its approvers", ref)
    why = may_speak(approval, voice)
    if why:
        raise Denied(f"your voice does not count here: {why}", _refusal_hint(approval, why, ref), ref)
    if voice.says == "give" and any(v.person == voice.person for v in approval.voices):
        raise Conflict("you have approved it already", "another person must", ref)
    if voice.says == "give" and not all(is_independent(voice, other) for other in _counted(approval, voice.at)):
        raise Denied(
            "your voice does not count here: you made the credential of a person who approved it, or that person yours",
            _refusal_hint(approval, "", ref),
            ref,
        )


def _refusal_hint(approval: Approval, why: str, ref: Ref) -> str:
    """What helps after a voice was refused for the reason `why`."""
    if why == _OTHER:
        return f"look at what is asked: falaj approvals show {ref.bare}"
    roles = " or ".join(approval.roles)
    if why == _MADE_BY_ASKER:
        return f"have another person ask, or a person approve ({roles}) whom the asker did not enrol"
    return f"another person with the role {roles} can"


def _voice(ctx: Context, at: float, says: str, digest: str, reason: str) -> Voice:
    actor = ctx.actor
    return Voice(
        says=says,
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


def _mutable(ref: Ref) -> Ref:
    if ref.kind != KIND:
        raise Invalid(f"{ref} is not an approval", "falaj approvals list shows them", ref)
    return ref.bare


def _approval(record: Record) -> Approval:
    approval: Approval = from_plain(Approval, record.body)
    return approval


def _state(record: Record, now: float) -> ApprovalState:
    approval = _approval(record)
    return ApprovalState(record.ref.bare, approval, current_standing(approval, now))
