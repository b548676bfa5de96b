"""What follows from a window, and from what is known now: pure, so that a replay decides as the platform would have.

ok -> suspect (an alarm) -> confirmed (it lasts: an episode, which has a cause) -> acting -> cooling. A breakage of a
new revision goes past all this: it is rolled back at once, and then nothing more is done by itself (frozen) until there
is a newer revision or a person says so. An episode is acted on once in its life; one that returns within a day is the
same one.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import inf, lgamma, log, log1p

from falaj.drift.records import Finding
from falaj.monitor.machine import (
    BEGUN,
    BREAKAGE,
    DONE,
    DRIFT,
    FAILED,
    MOST_EPISODES,
    MOST_KEYS,
    MOST_REVISIONS,
    PROPOSED,
    QUALITY,
    REFUSED,
    WAITING,
    Doing,
    Episode,
    Facts,
    Machine,
    Past,
    Sign,
    cause_of,
    group_in,
    key_of,
)
from falaj.monitor.records import ALERT, RETRAIN, ROLLBACK, Verdict, WatchPlan, Window

DAY_S = 86400.0
GONE_AFTER = 3
"""A trouble that this many windows do not show is over."""
LEAST_REQUESTS = 20
SURE = 1e-5
"""In a minute that is as good as allowed a revision is called broken with at most this chance, however often one
looks."""
STALL_S, LONGEST_S = 2 * 3600.0, 7 * DAY_S
"""So long a verdict waits for its flow to begin, and for it to end."""
MOST_EVIDENCE = 20
Decided = tuple[Machine, tuple[Verdict, ...]]


def after(machine: Machine, window: Window, plan: WatchPlan, now: float) -> Decided:
    """What follows from one more window."""
    alarms = tuple(one for one in window.findings if one.alarm)
    if not alarms and window.rows < plan.rules.least_rows:
        return replace(machine, state=machine.stated(now)), ()  # it tells nothing, not even that all is well
    machine = _remembered(machine, window, alarms, plan)
    lasting = _lasting(machine.recent[str(window.revision)], plan.rules.persist)
    seen = {group_in(key_of(one)) for one in alarms}
    found = tuple(_missed(one, window, seen, now) for one in machine.episodes)
    machine = replace(machine, episodes=_bounded(found, now))
    if machine.live and window.revision not in machine.live:
        return replace(machine, state=machine.stated(now)), ()  # what it was given no longer matters to anybody
    verdicts: list[Verdict] = []
    for group in sorted({group_in(key) for key in lasting}):
        mine = tuple(one for one in alarms if group_in(key_of(one)) == group)
        machine, told = _opened(machine, window, group, mine, now)
        verdicts += told
    machine, asked = _retrained(machine, window, alarms, plan, now)
    return replace(machine, state=machine.stated(now)), (*verdicts, *asked)


def tick(machine: Machine, plan: WatchPlan, now: float, facts: Facts) -> Decided:
    """What follows from what is known now: how the action under way stands, and whether a new revision is broken."""
    verdicts: tuple[Verdict, ...] = ()
    if machine.frozen and facts.newest > machine.frozen:
        machine = replace(machine, frozen=0)
    machine = replace(
        machine, newest=max(machine.newest, facts.newest), live=facts.live, episodes=_left(machine, facts, now)
    )
    if machine.doing is not None:
        machine, verdicts = _going(machine, plan, now, facts)
    machine, told = _broken(machine, plan, now, facts)
    return replace(machine, state=machine.stated(now)), (*verdicts, *told)


def ended(machine: Machine, plan: WatchPlan, now: float, state: str, outcome: str) -> Decided:
    """The action under way is over, however it ended: nothing else is done for a while."""
    doing = machine.doing
    if doing is None:
        return machine, ()
    # A cool-down is never shorter than what it cools down from.
    rest = max(plan.acting.cool_s, now - doing.since) if doing.action == RETRAIN else plan.acting.cool_s
    machine = replace(machine, doing=None, cool_until=max(machine.cool_until, now + rest))
    if doing.action == ROLLBACK and state == DONE:
        machine = replace(machine, frozen=max(machine.newest, doing.revision))
    machine = replace(machine, state=machine.stated(now))
    said = f"{doing.action} {state}: {outcome}"
    verdict = Verdict(doing.id, now, doing.action, doing.cause, said, state, outcome=outcome, run=doing.run)
    if state == FAILED:
        alert = Verdict(f"{ALERT}-{doing.id}", now, ALERT, doing.cause, said, DONE)
        return machine, (verdict, alert)
    return machine, (verdict,)


def released(machine: Machine, now: float) -> Machine:
    """A person says that all may go on: nothing cools down, and nothing is frozen."""
    machine = replace(machine, frozen=0, cool_until=0.0, paused="")
    return replace(machine, state=machine.stated(now))


def resolved(machine: Machine, cause: str, now: float, why: str) -> Machine:
    """A person says that a trouble is over. Windows of before do not open it again; new ones may, as the same."""
    gone = {(one.group, str(one.revision)) for one in machine.episodes if one.cause == cause}
    made = tuple(
        replace(one, ended_at=now, why=why) if one.cause == cause and one.open else one for one in machine.episodes
    )
    recent = {
        number: tuple(
            Past(past.since, tuple(k for k in past.keys if (group_in(k), number) not in gone)) for past in kept
        )
        for number, kept in machine.recent.items()
    }
    machine = replace(machine, episodes=made, recent=recent)
    return replace(machine, state=machine.stated(now))


def breakage(signs: Iterable[Sign]) -> str:
    """Why a new revision is broken, in words; empty when it is not shown to be."""
    told = [
        f"{one.bad:.0f} of {one.n:.0f} {_WORDS.get(one.what, one.what)} ({one.most:.1%} would be usual)"
        for one in signs
        if one.n >= LEAST_REQUESTS
        and one.bad / one.n > 2 * one.most
        and evidence(one.n, one.bad, one.most) >= -log(SURE)
    ]
    return "; ".join(told)


def evidence(n: float, bad: float, most: float) -> float:
    """The logarithm of the evidence that more than the share `most` is bad; valid however often one looks."""
    if not n or bad / n <= most:
        return 0.0
    if most <= 0:
        return inf
    # Averaged over all shares (Jeffreys' prior), against the largest likelihood that the claim allows.
    mixed = lgamma(bad + 0.5) + lgamma(n - bad + 0.5) - lgamma(n + 1.0) - 2 * lgamma(0.5)
    return mixed - bad * log(most) - (n - bad) * log1p(-most)


_WORDS = {
    "errors": "requests failed", "slow": "answers were too slow", "odd": "predictions were no numbers",
    "same": "predictions were one and the same",
}  # fmt: skip


def _remembered(machine: Machine, window: Window, alarms: tuple[Finding, ...], plan: WatchPlan) -> Machine:
    number = str(window.revision)
    past = Past(window.since, tuple(dict.fromkeys(key_of(one) for one in alarms))[:MOST_KEYS])
    kept = (*machine.recent.get(number, ()), past)[-plan.rules.persist[1] :]
    recent = {name: value for name, value in machine.recent.items() if name != number} | {number: kept}
    while len(recent) > MOST_REVISIONS:
        recent.pop(min(recent, key=int))
    return replace(machine, recent=recent, newest=max(machine.newest, window.revision))


def _lasting(past: tuple[Past, ...], persist: tuple[int, int]) -> set[str]:
    """What the newest window has and enough of the last ones had."""
    times = Counter(key for one in past for key in one.keys)
    return {key for key in past[-1].keys if times[key] >= min(persist)}


def _missed(one: Episode, window: Window, seen: set[str], now: float) -> Episode:
    if not one.open or one.revision != window.revision or one.group == BREAKAGE:
        return one
    missed = 0 if one.group in seen else one.missed + 1
    if missed < GONE_AFTER:
        return replace(one, missed=missed)
    return replace(one, missed=missed, ended_at=now, why="gone by itself")


def _bounded(episodes: tuple[Episode, ...], now: float) -> tuple[Episode, ...]:
    """Those that last, and those that may return as the same."""
    kept = [one for one in episodes if one.open or now - one.ended_at < DAY_S]
    return tuple(sorted(kept, key=lambda one: (one.open, one.opened_at))[-MOST_EPISODES:])


def _opened(
    machine: Machine, window: Window, group: str, alarms: tuple[Finding, ...], now: float
) -> tuple[Machine, list[Verdict]]:
    """A trouble lasts: it is told of when it is new, and when it is back."""
    mine = [one for one in machine.episodes if (one.group, one.revision) == (group, window.revision)]
    if any(one.open for one in mine):
        return machine, []
    said = "; ".join(one.said or f"{one.what} {one.column}".strip() for one in alarms[:5])
    if mine:
        episode = replace(mine[-1], ended_at=0.0, why="", missed=0, said=said)
    else:
        keys = {key_of(one) for one in alarms}
        since = next(one.since for one in machine.recent[str(window.revision)] if keys & set(one.keys))
        cause = cause_of(machine.whose, window.revision, group, (one.column for one in alarms), since)
        episode = Episode(cause, group, window.revision, since, now, said)
    others = tuple(one for one in machine.episodes if one.cause != episode.cause)
    verdict = Verdict(
        f"{ALERT}-{episode.cause}", now, ALERT, episode.cause, said, DONE, alarms[:MOST_EVIDENCE],
        what=group, since=episode.since, revision=window.revision,
    )  # fmt: skip
    return replace(machine, episodes=(*others, episode)), [verdict]


def _retrained(
    machine: Machine, window: Window, alarms: tuple[Finding, ...], plan: WatchPlan, now: float
) -> tuple[Machine, tuple[Verdict, ...]]:
    """Drift that lasts and that this window shows, too, asks for a new model: once, and not while anything speaks
    against it. Broken data is nothing to learn from, and a revision that is being tried may be the answer already."""
    acting, mine = plan.acting, [one for one in machine.episodes if one.open and one.revision == window.revision]
    due = [one for one in mine if one.group == DRIFT and not one.acted and not one.missed]
    trained = tuple(at for at in machine.trained if now - at < DAY_S)
    held = machine.paused or machine.doing or machine.frozen or now < machine.cool_until or len(machine.live) > 1
    poor = any(one.group in (QUALITY, BREAKAGE) for one in mine) or any(one.what == QUALITY for one in alarms)
    if acting.retrain is None or not due or held or poor or len(trained) >= acting.most_a_day:
        return machine, ()
    episode, state = due[0], WAITING if acting.approval else BEGUN
    id_ = f"{RETRAIN}-{episode.cause}"
    doing = Doing(id_, RETRAIN, episode.cause, window.revision, max(machine.newest, window.revision), now, state)
    machine = replace(_acted(machine, episode.cause, id_), doing=doing, trained=(*trained, now))
    verdict = Verdict(
        id_, now, RETRAIN, episode.cause, f"retrain: {episode.said}", state, alarms[:MOST_EVIDENCE],
        str(acting.retrain), what=DRIFT, since=episode.since, revision=window.revision,
    )  # fmt: skip
    return machine, (verdict,)


def _acted(machine: Machine, cause: str, id_: str) -> Machine:
    made = tuple(replace(one, acted=id_) if one.cause == cause else one for one in machine.episodes)
    return replace(machine, episodes=made)


def _left(machine: Machine, facts: Facts, now: float) -> tuple[Episode, ...]:
    """Troubles of revisions that nobody is answered by any more are over; of a broken one, when there is a newer."""
    if not facts.live:
        return machine.episodes

    def over(one: Episode) -> bool:
        gone = one.open and one.revision not in facts.live
        return gone and (one.group != BREAKAGE or facts.newest > one.revision)

    return tuple(
        replace(one, ended_at=now, why=f"revision {one.revision} has no traffic any more") if over(one) else one
        for one in machine.episodes
    )


def _going(machine: Machine, plan: WatchPlan, now: float, facts: Facts) -> Decided:
    doing = machine.doing
    if doing is None:
        return machine, ()
    if doing.action == ROLLBACK:
        back = facts.revision and doing.revision not in facts.live
        return ended(machine, plan, now, DONE, f"revision {facts.revision} has the traffic") if back else (machine, ())
    if doing.state == WAITING:
        return _answered(machine, plan, now, facts)
    if facts.run and not doing.run:
        doing = replace(doing, run=facts.run)
        machine = replace(machine, doing=doing)
    if not facts.ended:
        limit = LONGEST_S if doing.run else STALL_S
        if now - doing.since < limit:
            return machine, ()
        return ended(machine, plan, now, FAILED, f"{doing.run or 'its flow'} did not {'end' if doing.run else 'begin'}")
    if facts.ended != "succeeded":
        return ended(machine, plan, now, FAILED, f"{doing.run or 'its flow'} {facts.ended}: {facts.note}".rstrip(": "))
    if facts.newest <= doing.newest:
        return ended(machine, plan, now, DONE, f"not deployed: {facts.note or 'its checks said no'}")
    return _tried(machine, plan, now, facts)


def _tried(machine: Machine, plan: WatchPlan, now: float, facts: Facts) -> Decided:
    """A new model was deployed: how did it do?"""
    if facts.revision == facts.newest:
        return ended(machine, plan, now, DONE, f"revision {facts.newest} promoted")
    if facts.trial not in ("", "running"):
        return ended(machine, plan, now, DONE, f"not promoted: its roll-out ended {facts.trial}")
    return machine, ()


def _answered(machine: Machine, plan: WatchPlan, now: float, facts: Facts) -> Decided:
    """Somebody must agree first."""
    doing = machine.doing
    if doing is None or facts.approval in ("", "waiting", "emergency"):
        return machine, ()
    if facts.approval != "granted":
        return ended(machine, plan, now, REFUSED, f"the approval was {facts.approval}: {facts.note}".rstrip(": "))
    machine = replace(machine, doing=replace(doing, state=BEGUN, since=now))
    flow = str(plan.acting.retrain or "")
    return machine, (Verdict(doing.id, now, RETRAIN, doing.cause, "approved", BEGUN, flow=flow),)


def _broken(machine: Machine, plan: WatchPlan, now: float, facts: Facts) -> Decided:
    """A new revision that fails its callers is left at once: no statistics that wait, and no cool-down."""
    why = breakage(facts.signs) if facts.fresh else ""
    if not why:
        return machine, ()
    cause = cause_of(machine.whose, facts.fresh, BREAKAGE, (), facts.fresh_at)
    old = next((one for one in machine.episodes if one.cause == cause), None)
    verdicts: tuple[Verdict, ...] = ()
    said = f"revision {facts.fresh} is broken: {why}"
    verdict = Verdict(
        f"{ALERT}-{cause}", now, ALERT, cause, said, DONE, tuple(map(_proof, facts.signs)),
        what=BREAKAGE, since=facts.fresh_at, revision=facts.fresh,
    )  # fmt: skip
    if old is None:
        old = Episode(cause, BREAKAGE, facts.fresh, facts.fresh_at, now, said)
        machine = replace(machine, episodes=(*machine.episodes, old))
        verdicts = (verdict,)
    busy = machine.doing is not None and machine.doing.action == ROLLBACK
    if old.acted or busy or machine.paused or machine.frozen or not plan.acting.rollback or not facts.back:
        return machine, verdicts
    overtaken: tuple[Verdict, ...] = ()
    if machine.doing is not None:
        machine, overtaken = ended(machine, plan, now, DONE, f"overtaken: {said}")
    id_ = f"{ROLLBACK}-{cause}"
    doing = Doing(id_, ROLLBACK, cause, facts.fresh, facts.newest, now, PROPOSED)
    machine = replace(_acted(machine, cause, id_), doing=doing)
    acts = replace(verdict, id=id_, action=ROLLBACK, said=f"rollback: {said}", state=PROPOSED)
    return machine, (*overtaken, *verdicts, acts)


def _proof(sign: Sign) -> Finding:
    share = sign.bad / sign.n if sign.n else 0.0
    said = breakage((sign,))
    return Finding(
        sign.what, measure="share", value=share, bound=sign.most, rows=int(sign.n), alarm=bool(said), said=said
    )
