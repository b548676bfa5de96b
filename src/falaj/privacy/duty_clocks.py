"""Clocks of requests and breaches: opened by the rule of a regime, stopped, resumed, extended. Pure functions.

Each clock stores the rule and the calendar it was computed by, so a profile or calendar that changes later does not
move what is already open.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from falaj.core.errors import Conflict, Invalid
from falaj.govern.legal_calendars import Calendar, compute_deadline_end
from falaj.govern.legal_periods import AT_ONCE, BREACH_PEOPLE, RegimeExemption
from falaj.govern.records import LegalRegime
from falaj.privacy.records import ClockStop, DutyClock

RUNNING, DUE_NOW, STOPPED, NO_DEADLINE, NOT_APPLICABLE = (
    "running", "at-once", "stopped", "no-deadline", "not-applicable",
)  # fmt: skip


def open_clocks(
    duty: str, regimes: Iterable[LegalRegime], received: float, find_calendar: Callable[[LegalRegime], Calendar]
) -> tuple[DutyClock, ...]:
    """Open the clock of each regime for one duty, from the moment the request came in or the breach became known."""
    clocks = []
    for regime in sorted(regimes, key=lambda regime: regime.id):
        rule = regime.deadlines.get(duty)
        if rule is not None:
            state = DUE_NOW if rule.unit == AT_ONCE else RUNNING
            clock = DutyClock(regime.id, regime.version, 0.0, state, duty, rule, find_calendar(regime), received)
            clocks.append(_with_due(clock))
        elif duty != BREACH_PEOPLE:
            clocks.append(DutyClock(regime.id, regime.version, 0.0, NO_DEADLINE, duty, received=received))
    return tuple(clocks)


def make_exempt_clocks(
    duty: str, exemptions: Mapping[str, RegimeExemption], regimes: Mapping[str, LegalRegime]
) -> tuple[DutyClock, ...]:
    """Return a clock without deadline for each regime that does not apply, saying why in English and Arabic."""
    return tuple(
        DutyClock(
            name,
            regimes[name].version,
            0.0,
            NOT_APPLICABLE,
            duty,
            because={"en": exemption.because, "ar": exemption.because_ar},
        )
        for name, exemption in exemptions.items()
    )


def find_first_due(clocks: Sequence[DutyClock]) -> float:
    """Return the earliest moment at which something that is still open is due; 0 when nothing is."""
    return min((clock.due for clock in clocks if clock.due and clock.is_open), default=0.0)


def is_overdue(clock: DutyClock, now: float) -> bool:
    """Return True if a running clock's time is over and its duty is open, or was done after that time.

    A duty that is due at once is never "overdue": the law names no moment, so none is invented. See `list_due_at_once`.
    """
    return clock.state == RUNNING and not clock.waived and 0 < clock.due < (clock.done_at or now)


def list_due_at_once(clocks: Iterable[DutyClock]) -> tuple[str, ...]:
    """Return the regimes that want an open duty done at once, without a number of hours."""
    return tuple(dict.fromkeys(clock.regime for clock in clocks if clock.state == DUE_NOW and clock.is_open))


def extend_clocks(clocks: Sequence[DutyClock]) -> tuple[DutyClock, ...]:
    """Extend each clock as far as its regime allows; raise Invalid when the earliest one cannot be extended."""
    extended_clocks = tuple(
        _with_due(replace(clock, extended=True)) if clock.rule and clock.rule.extension else clock for clock in clocks
    )
    if find_first_due(extended_clocks) <= find_first_due(clocks):
        first_clock = min((clock for clock in clocks if clock.due), key=lambda clock: clock.due, default=None)
        name = first_clock.regime if first_clock else "no regime of this request"
        raise Invalid(f"{name} allows no extension", "answer in time, or refuse and name the rule")
    return extended_clocks


def stop_clocks(clocks: Sequence[DutyClock], reason: str, now: float) -> tuple[DutyClock, ...]:
    """Stop the clocks whose regime lets the controller wait for `reason`; the others go on running."""
    stopped_clocks = tuple(
        replace(clock, state=STOPPED, due=0.0, stops=(*clock.stops, ClockStop(reason, now)))
        if clock.state == RUNNING and clock.rule and reason in clock.rule.stops_for
        else clock
        for clock in clocks
    )
    if stopped_clocks == tuple(clocks):
        regimes = ", ".join(clock.regime for clock in clocks if clock.state == RUNNING) or "no regime"
        raise Invalid(f"no clock stops for {reason}: {regimes} goes on running", "answer in time, or extend it")
    return stopped_clocks


def resume_clocks(clocks: Sequence[DutyClock], now: float) -> tuple[DutyClock, ...]:
    """Let stopped clocks run again; the time they were stopped is added to their end."""
    if not any(clock.state == STOPPED for clock in clocks):
        raise Conflict("no clock of this request is stopped", "falaj privacy request shows its clocks")
    return tuple(
        _with_due(replace(clock, state=RUNNING, stops=(*clock.stops[:-1], replace(clock.stops[-1], until=now))))
        if clock.state == STOPPED
        else clock
        for clock in clocks
    )


def _with_due(clock: DutyClock) -> DutyClock:
    """Return the clock with its end, and the latest end an extension could give, computed from its own rule."""
    if clock.rule is None:
        return clock
    stops = [(stop.since, stop.until) for stop in clock.stops if stop.until]
    end_times = [
        compute_deadline_end(clock.rule, clock.received, clock.calendar, extended=extended, stops=stops)
        for extended in (clock.extended, True)
    ]
    can_extend = bool(clock.rule.extension) and not clock.extended
    return replace(clock, due=end_times[0], latest_at=end_times[1] if can_extend else 0.0)
