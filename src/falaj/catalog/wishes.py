"""Wishes: what somebody wants done with a version, kept as a record `promotion` until people have spoken.

    waiting --approved--> done                      refused, over: it ended, and can be wished again
       '--one voice, emergency--> emergency --ratified in time--> done
                                      '--not ratified, or refused--> lapsed: what it did is undone

What people said is judged here again, by the rules of the wish and not by those of the question: whoever asked the same
question in a softer way, later, has gained nothing.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from falaj.catalog.gates import Rule, digest_of_rules
from falaj.catalog.life_records import Evidence
from falaj.core.context import Context
from falaj.core.data import dataclass
from falaj.core.ref import Ref
from falaj.govern.approvals import ROLES, approval_ref, find_approval, latest_time, standing, stricter
from falaj.govern.records import Approval, Standing
from falaj.store.codec import from_plain, to_stable_json
from falaj.store.ledger import Reader
from falaj.store.records import Record

ACTION = "catalog.promote"
KIND = "promotion"
ASK_S = 7 * 86_400.0
WAITING, EMERGENCY, DONE, REFUSED, LAPSED, OVER = "waiting", "emergency", "done", "refused", "lapsed", "over"


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody wants."""

    ref: Ref
    stage: str
    state: str
    actor: str
    person: str
    left: str
    """The stage that the version which is there now shall have afterwards."""
    reason: str = ""
    emergency: bool = False
    purpose: str = ""
    digest: str = ""
    """What people are asked; empty where the gate asks nobody."""
    needs: tuple[int, int] = (0, 0)
    """How many people, and how many of them data protection officers."""
    barred: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    until: float = 0.0
    """Of an emergency: when it ends, unless others ratify it."""
    cleared: bool = False
    """True once the version was in the stage with everybody's consent: it may come back without asking."""

    @property
    def record(self) -> Ref:
        """Where it is written: one wish for each version and stage."""
        return promotion_ref(self.ref, self.stage)

    def question(self, now: float) -> Approval:
        """What people are asked."""
        return Approval(
            action=ACTION,
            digest=self.digest,
            needs=self.needs[0],
            dpo=self.needs[1],
            roles=ROLES,
            asker=self.person,
            barred=self.barred,
            reason=self.reason or f"{self.ref} to {self.stage}",
            asked=now,
            expires=now + ASK_S,
            about=str(self.ref),
            emergency=self.emergency,
        )


def promotion_ref(version: Ref, stage: str) -> Ref:
    """The one name of the wish to bring exactly this version into that stage."""
    tail = hashlib.sha256(f"{version}\0{stage}".encode()).hexdigest()[:32]
    return Ref(KIND, version.project, f"{stage}.{tail}")


def as_wish(record: Record) -> Wish:
    """The wish that a record holds."""
    wish: Wish = from_plain(Wish, record.body)
    return wish


def kept_wish(tx: Reader, version: Ref, stage: str) -> Wish | None:
    """What was last wished for this version and stage."""
    record = tx.get(promotion_ref(version, stage))
    return as_wish(record) if record is not None else None


def exact(wish: Wish, record: Record, rules: Sequence[Rule], holder: str) -> str:
    """What people approve: exactly this version in the place of that one, under these rules, on this evidence."""
    body = {
        "ref": str(record.ref), "root": record.body["root"], "label": record.label.digest, "stage": wish.stage,
        "holder": holder, "left": wish.left, "emergency": wish.emergency, "gate": digest_of_rules(rules),
        "evidence": wish.evidence,
    }  # fmt: skip
    return "sha256:" + hashlib.sha256(to_stable_json(body)).hexdigest()


def heard(tx: Reader, ctx: Context, wish: Wish) -> Standing:
    """Where the people stand to a wish now; to an emergency: where they stood when its time was over."""
    approval = find_approval(tx, ACTION, wish.digest, tenant=ctx.tenant)
    if approval is None:
        return Standing("expired", 0, 0, 0, 0.0, "nobody knows of the question any more")
    now = latest_time(approval, ctx.now())
    if wish.state == EMERGENCY:
        now = min(now, wish.until)
    return standing(stricter(approval, wish.barred, *wish.needs), now)


def stirred(tx: Reader, ctx: Context, wish: Wish) -> bool:
    """True when there is something to do: people spoke, or the time is over."""
    state = heard(tx, ctx, wish).state
    if wish.state == EMERGENCY:
        return state != "emergency" or ctx.now() >= wish.until
    return wish.state == WAITING and state != "waiting"


def taken_up(tx: Reader, ctx: Context, wish: Wish) -> Wish:
    """The same wish as it was wished before, where people still decide on it: asking again takes no voice away."""
    old = kept_wish(tx, wish.ref, wish.stage)
    if old is None:
        return wish
    same = old.state == WAITING and (old.left, old.emergency) == (wish.left, wish.emergency)
    if same and heard(tx, ctx, old).state in ("waiting", "granted", "emergency"):
        return old
    return replace(wish, cleared=old.cleared)


def approval_of(tx: Reader, wish: Wish | None) -> tuple[str, tuple[str, ...]]:
    """The approval by which a wish was fulfilled, pinned, and who gave it."""
    record = tx.get(approval_ref(ACTION, wish.digest)) if wish is not None and wish.digest else None
    if record is None:
        return "", ()
    asked: Approval = from_plain(Approval, record.body)
    return str(record.ref), tuple(voice.actor for voice in asked.voices if voice.says == "give")
