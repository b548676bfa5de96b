"""What a policy would have done: past windows through the very function that decides, with another plan. No effect.

Of each window what was measured is kept, so other rules are tried on it, too: drift, errors and latency are judged anew
from their figures; quality, estimates and real performance stand as they were found.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from falaj.core.errand import Here, errand
from falaj.core.ref import Ref
from falaj.drift.compare import _A_SEGMENT, _DRIFT, _LEAST_TOGETHER, _TOGETHER
from falaj.drift.measures import discoveries
from falaj.drift.records import Finding, Rules
from falaj.jobs.report import tabled
from falaj.monitor import decide
from falaj.monitor.errands import span_of
from falaj.monitor.findings import LEAST_REQUESTS, least_share
from falaj.monitor.machine import DONE, Facts, Machine, Sign
from falaj.monitor.plans import checked, worded
from falaj.monitor.records import ACTING, RETRAIN, ROLLBACK, Verdict, WatchPlan, Window, WindowPage
from falaj.store.codec import from_plain, to_plain

NEW_S = 86400.0
MOST_WINDOWS, PAGE = 20_000, 1_000
_MARKS = {"ok": ".", "suspect": "?", "confirmed": "!", "acting": "A", "cooling": "c", "frozen": "F", "paused": "p"}


@dataclass(frozen=True, slots=True)
class Replay:
    """What would have been decided, as lines, and every verdict."""

    TEXT: ClassVar[str] = "lines"

    ref: Ref
    windows: int
    states: tuple[str, ...]
    """After each window, oldest first."""
    verdicts: tuple[Verdict, ...]
    lines: tuple[str, ...]


@errand
def replay(
    here: Here,
    endpoint: Annotated[Ref, "which endpoint"],
    plan: Annotated[WatchPlan | None, "the plan to try, as JSON; the one that stands, when left out"] = None,
    more: Annotated[dict[str, str] | None, "the same word by word: rollback=true, alpha=0.01"] = None,
    since: Annotated[str, "how far to look back: 24h, 7d, 4w"] = "30d",
) -> Replay:
    """Show what a policy would have done on past traffic: when it had told people, retrained or gone back. No effect.

    Every action is taken to have ended at once, and to have changed nothing: what came then is what really came.

    Example:
        falaj monitor replay endpoint:fraud/score --plan @new.json --since 30d
        falaj monitor replay endpoint:fraud/score --more persist=1,1 --more cool_s=3600
    """
    # What a file said has the right fields, and plain values in them.
    chosen: WatchPlan = from_plain(WatchPlan, to_plain(plan or here.monitor.show(endpoint).plan))
    tried = worded(checked(chosen), more or {})
    windows: list[Window] = []
    after = ""
    while len(windows) < MOST_WINDOWS:
        page: WindowPage = here.monitor.windows(endpoint, since_s=span_of(since), after=after, limit=PAGE)
        windows += page.windows
        after = page.next
        if not after:
            break
    windows.sort(key=lambda one: (one.until, one.revision))
    states, verdicts = played(str(endpoint.bare), windows, tried)
    lines = told(endpoint, windows, states, verdicts)
    return Replay(endpoint.bare, len(windows), tuple(states), tuple(verdicts), tuple(lines))


def played(whose: str, windows: Iterable[Window], plan: WatchPlan) -> tuple[list[str], list[Verdict]]:
    """The state after each window, and every verdict."""
    machine, states, verdicts = Machine(whose=whose), list[str](), list[Verdict]()
    begun: dict[int, float] = {}
    for window in windows:
        now = window.until
        begun.setdefault(window.revision, window.since)
        machine, told = decide.after(machine, rejudged(window, plan), plan, now)
        machine, more = decide.tick(machine, plan, now, _facts(window, begun, plan))
        made = (*told, *more)
        verdicts += [replace(one, at=now) for one in made if one.state != DONE or one.action not in (RETRAIN, ROLLBACK)]
        states.append(ACTING if any(one.action in (RETRAIN, ROLLBACK) for one in made) else machine.state)
        machine, _ = decide.ended(machine, plan, now, DONE, "played")
    return states, verdicts


def rejudged(window: Window, plan: WatchPlan) -> Window:
    """The same window under other rules, as far as its figures tell."""
    rules, found = plan.rules, list(window.findings)
    moved = [at for at, one in enumerate(found) if one.what in ("input", "prediction", "label") and one.measure]
    alarms = dict(zip(moved, _moved([found[at] for at in moved], rules), strict=True))
    for at, one in enumerate(found):
        if one.what == "together":
            least = rules.least_step * _LEAST_TOGETHER
            alarms[at] = one.p <= rules.alpha * _TOGETHER and one.value >= least and one.rows >= rules.least_rows
        elif one.what == "errors" and one.rows:
            low = least_share(round(one.value * one.rows), one.rows)
            alarms[at] = bool(plan.errors) and one.rows >= LEAST_REQUESTS and low > plan.errors
        elif one.what == "latency":
            alarms[at] = bool(plan.latency_ms) and one.rows >= LEAST_REQUESTS and one.value > plan.latency_ms
    judged = tuple(replace(one, alarm=alarms.get(at, one.alarm)) for at, one in enumerate(found))
    return replace(window, findings=judged)


def told(endpoint: Ref, windows: Sequence[Window], states: Sequence[str], verdicts: Sequence[Verdict]) -> list[str]:
    """As people read it: a timeline, and a table of verdicts."""
    if not windows:
        return [f"{endpoint.bare} has no windows in this time"]
    line = "".join(_MARKS.get(one, "x") for one in states)
    known = ", ".join(f"{mark} {name}" for name, mark in _MARKS.items() if mark in line)
    counted = {action: sum(one.action == action for one in verdicts) for action in ("alert", RETRAIN, ROLLBACK)}
    summed = ", ".join(f"{count} {action}{'s' * (count != 1)}" for action, count in counted.items())
    rows = [(_when(one.at), one.action, one.cause[:8], one.revision, one.said[:100]) for one in verdicts]
    first, last = _when(windows[0].since), _when(windows[-1].until)
    return [
        f"{endpoint.bare}: {len(windows)} windows from {first} to {last}: {summed}",
        "",
        *(line[at : at + 100] for at in range(0, len(line), 100)),
        f"({known})",
        *(["", *tabled(("at", "action", "cause", "revision", "why"), rows)] if rows else []),
    ]


def _moved(found: Sequence[Finding], rules: Rules) -> list[bool]:
    least = [rules.least_rows if not one.segment else rules.least_rows // _A_SEGMENT for one in found]
    tested = [one.rows >= max(1, need) for one, need in zip(found, least, strict=True)]
    chances = np.array([one.p for one, on in zip(found, tested, strict=True) if on])
    hits = iter(discoveries(chances, rules.alpha * _DRIFT))
    return [on and bool(next(hits)) and one.value >= rules.least_step for one, on in zip(found, tested, strict=True)]


def _facts(window: Window, begun: dict[int, float], plan: WatchPlan) -> Facts:
    """What is known of a revision that was new then: how many of its requests failed."""
    number, before = window.revision, [one for one in begun if one < window.revision]
    new = before and window.until - begun[number] <= NEW_S
    fresh = (number, begun[number], max(before)) if new else (0, 0.0, 0)
    signs = (Sign("errors", window.requests, window.errors, plan.errors),) if plan.errors else ()
    return Facts(number, max(begun), *fresh, signs=signs)


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at))
