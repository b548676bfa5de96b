"""What a policy would have done: past windows through the very function that decides, with another plan. No effect.

Of each window what was measured is kept, so other rules are tried on it, too: drift, errors and latency are judged anew
from their figures; quality, estimates and real performance stand as they were found.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from falaj.core.client_command import Client, client_command
from falaj.core.ref import Ref
from falaj.drift.drift_tests import _DRIFT_ALPHA_SHARE, _JOINT_ALPHA_SHARE, _JOINT_STEP_FACTOR, _SEGMENT_DIVISOR
from falaj.drift.measures import find_discoveries
from falaj.drift.records import DriftFinding, DriftRules
from falaj.jobs.report import format_table
from falaj.monitor import watch_decisions
from falaj.monitor.client_commands import parse_span
from falaj.monitor.plans import apply_options, check_watch_plan
from falaj.monitor.records import (
    ACTION_RETRAIN,
    ACTION_ROLLBACK,
    STATE_ACTING,
    MonitorWindow,
    WatchPlan,
    WatchVerdict,
    WindowPage,
)
from falaj.monitor.watch_machine import ACTION_DONE, EndpointFacts, ServiceSign, WatchMachine
from falaj.monitor.window_findings import MIN_REQUESTS, compute_min_share
from falaj.store.codec import from_plain, to_plain

NEW_REVISION_S = 86400.0
MAX_WINDOWS, PAGE_SIZE = 20_000, 1_000
_STATE_MARKS = {
    "ok": ".",
    "suspect": "?",
    "confirmed": "!",
    "acting": "A",
    "cooling": "c",
    "frozen": "F",
    "paused": "p",
}


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What would have been decided, as lines, and every verdict."""

    TEXT: ClassVar[str] = "lines"

    ref: Ref
    windows: int
    states: tuple[str, ...]
    """After each window, oldest first."""
    verdicts: tuple[WatchVerdict, ...]
    lines: tuple[str, ...]


@client_command
def replay(
    client: Client,
    endpoint: Annotated[Ref, "which endpoint"],
    plan: Annotated[WatchPlan | None, "the plan to try, as JSON; the one that stands, when left out"] = None,
    more: Annotated[dict[str, str] | None, "the same word by word: rollback=true, alpha=0.01"] = None,
    since: Annotated[str, "how far to look back: 24h, 7d, 4w"] = "30d",
) -> ReplayReport:
    """Show what a policy would have done on past traffic: when it had told people, retrained or gone back. No effect.

    Every action is taken to have ended at once, and to have changed nothing: what came then is what really came.

    Example:
        falaj monitor replay endpoint:fraud/score --plan @new.json --since 30d
        falaj monitor replay endpoint:fraud/score --more persist=1,1 --more cool_s=3600
    """
    # What a file said has the right fields, and plain values in them.
    chosen_plan: WatchPlan = from_plain(WatchPlan, to_plain(plan or client.monitor.show(endpoint).plan))
    tried_plan = apply_options(check_watch_plan(chosen_plan), more or {})
    windows: list[MonitorWindow] = []
    cursor = ""
    while len(windows) < MAX_WINDOWS:
        page: WindowPage = client.monitor.windows(endpoint, since_s=parse_span(since), after=cursor, limit=PAGE_SIZE)
        windows += page.windows
        cursor = page.next
        if not cursor:
            break
    windows.sort(key=lambda window: (window.until, window.revision))
    states, verdicts = replay_windows(str(endpoint.bare), windows, tried_plan)
    lines = format_replay(endpoint, windows, states, verdicts)
    return ReplayReport(endpoint.bare, len(windows), tuple(states), tuple(verdicts), tuple(lines))


def replay_windows(
    endpoint_name: str, windows: Iterable[MonitorWindow], plan: WatchPlan
) -> tuple[list[str], list[WatchVerdict]]:
    """The state after each window, and every verdict."""
    machine, states, verdicts = WatchMachine(whose=endpoint_name), list[str](), list[WatchVerdict]()
    began_by_revision: dict[int, float] = {}
    for window in windows:
        now = window.until
        began_by_revision.setdefault(window.revision, window.since)
        machine, window_verdicts = watch_decisions.apply_window(machine, rejudge_window(window, plan), plan, now)
        machine, fact_verdicts = watch_decisions.apply_facts(
            machine, plan, now, _make_facts(window, began_by_revision, plan)
        )
        new_verdicts = (*window_verdicts, *fact_verdicts)
        verdicts += [
            replace(verdict, at=now)
            for verdict in new_verdicts
            if verdict.state != ACTION_DONE or verdict.action not in (ACTION_RETRAIN, ACTION_ROLLBACK)
        ]
        states.append(
            STATE_ACTING
            if any(verdict.action in (ACTION_RETRAIN, ACTION_ROLLBACK) for verdict in new_verdicts)
            else machine.state
        )
        machine, _ = watch_decisions.end_action(machine, plan, now, ACTION_DONE, "played")
    return states, verdicts


def rejudge_window(window: MonitorWindow, plan: WatchPlan) -> MonitorWindow:
    """The same window under other rules, as far as its figures tell."""
    rules, window_findings = plan.rules, list(window.findings)
    drift_positions = [
        position
        for position, item in enumerate(window_findings)
        if item.what in ("input", "prediction", "label") and item.measure
    ]
    alarm_by_position = dict(
        zip(
            drift_positions,
            _find_drift_alarms([window_findings[position] for position in drift_positions], rules),
            strict=True,
        )
    )
    for position, item in enumerate(window_findings):
        if item.what == "together":
            min_effect = rules.least_step * _JOINT_STEP_FACTOR
            alarm_by_position[position] = (
                item.p <= rules.alpha * _JOINT_ALPHA_SHARE
                and item.value >= min_effect
                and item.rows >= rules.least_rows
            )
        elif item.what == "errors" and item.rows:
            min_failed_share = compute_min_share(round(item.value * item.rows), item.rows)
            alarm_by_position[position] = (
                bool(plan.errors) and item.rows >= MIN_REQUESTS and min_failed_share > plan.errors
            )
        elif item.what == "latency":
            alarm_by_position[position] = (
                bool(plan.latency_ms) and item.rows >= MIN_REQUESTS and item.value > plan.latency_ms
            )
    judged_findings = tuple(
        replace(item, alarm=alarm_by_position.get(position, item.alarm))
        for position, item in enumerate(window_findings)
    )
    return replace(window, findings=judged_findings)


def format_replay(
    endpoint: Ref, windows: Sequence[MonitorWindow], states: Sequence[str], verdicts: Sequence[WatchVerdict]
) -> list[str]:
    """As people read it: a timeline, and a table of verdicts."""
    if not windows:
        return [f"{endpoint.bare} has no windows in this time"]
    state_line = "".join(_STATE_MARKS.get(item, "x") for item in states)
    legend = ", ".join(f"{state_mark} {name}" for name, state_mark in _STATE_MARKS.items() if state_mark in state_line)
    count_by_action = {
        action: sum(item.action == action for item in verdicts) for action in ("alert", ACTION_RETRAIN, ACTION_ROLLBACK)
    }
    totals_text = ", ".join(f"{count} {action}{'s' * (count != 1)}" for action, count in count_by_action.items())
    rows = [(_format_time(item.at), item.action, item.cause[:8], item.revision, item.said[:100]) for item in verdicts]
    first, last = _format_time(windows[0].since), _format_time(windows[-1].until)
    return [
        f"{endpoint.bare}: {len(windows)} windows from {first} to {last}: {totals_text}",
        "",
        *(state_line[start : start + 100] for start in range(0, len(state_line), 100)),
        f"({legend})",
        *(["", *format_table(("at", "action", "cause", "revision", "why"), rows)] if rows else []),
    ]


def _find_drift_alarms(drift_findings: Sequence[DriftFinding], rules: DriftRules) -> list[bool]:
    min_rows = [
        rules.least_rows if not finding.segment else rules.least_rows // _SEGMENT_DIVISOR for finding in drift_findings
    ]
    is_tested = [
        finding.rows >= max(1, needed_rows) for finding, needed_rows in zip(drift_findings, min_rows, strict=True)
    ]
    chances = np.array([finding.p for finding, is_on in zip(drift_findings, is_tested, strict=True) if is_on])
    discovery_flags = iter(find_discoveries(chances, rules.alpha * _DRIFT_ALPHA_SHARE))
    return [
        is_on and bool(next(discovery_flags)) and finding.value >= rules.least_step
        for finding, is_on in zip(drift_findings, is_tested, strict=True)
    ]


def _make_facts(window: MonitorWindow, began_by_revision: dict[int, float], plan: WatchPlan) -> EndpointFacts:
    """What is known of a revision that was new then: how many of its requests failed."""
    number, earlier_revisions = (
        window.revision,
        [revision_number for revision_number in began_by_revision if revision_number < window.revision],
    )
    is_new = earlier_revisions and window.until - began_by_revision[number] <= NEW_REVISION_S
    new_revision_facts = (number, began_by_revision[number], max(earlier_revisions)) if is_new else (0, 0.0, 0)
    signs = (ServiceSign("errors", window.requests, window.errors, plan.errors),) if plan.errors else ()
    return EndpointFacts(number, max(began_by_revision), *new_revision_facts, signs=signs)


def _format_time(moment_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(moment_s))
