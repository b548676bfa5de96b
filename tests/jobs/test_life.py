"""The life of a job, as a table: how an attempt ended, and what becomes of the job."""

from typing import Any

import pytest

from falaj.core.executor import FAILED, LOST, SUCCEEDED, AttemptStatus, SlotExitStatus
from falaj.jobs import state_machine
from falaj.jobs.scheduler_facts import list_held_spots
from falaj.jobs.views import to_attempt_view
from falaj.schedule.model import SlotPlacement

SPOTS = (SlotPlacement("local/a", 0), SlotPlacement("local/b", 0))


def running(**more: Any) -> state_machine.JobBody:
    body: state_machine.JobBody = {
        "id": "0" * 32, "spec": {"retries": 1, "retry_on": []}, "state": "waiting", "queue": "root/default",
        "after": [], "who": {"id": "amal"}, "number": 0, "failures": 0, "losses": 0, "refusals": 0, "served": 0,
        "evictions": 0,
        "ran_s": 0, "not_before": 0, "attempt": None, "attempts": [], "note": "", "step": 0, "steps": 0, "step_us": 0,
        "step_at": 0.0, "saved": 0.0, "save_s": 0, "ended": 0.0, "avoid": "",
        "use": {"queue": "root/default", "nodes": {"local/a": {}}, "charge": {"cpu_s": 1}, "size": 2000},
    }  # fmt: skip
    admitted = state_machine.admit_attempt({**body, **more}, SPOTS, "train-1", 2, 100.0)
    return {**state_machine.mark_launched(admitted, "handle", 101.0), "use": body["use"]}


def over(phase: str, code: int = 0, why: str = "") -> AttemptStatus:
    return AttemptStatus("handle", phase, (SlotExitStatus(0, code, why),))


@pytest.mark.parametrize(
    ("status", "more", "state", "counted"),
    [
        (over(SUCCEEDED), {}, "succeeded", {}),
        (over(FAILED, 1), {}, "waiting", {"failures": 1, "not_before": 112}),
        (over(FAILED, 1), {"failures": 1}, "failed", {"failures": 2}),
        (over(FAILED, 1), {"spec": {"retries": 9, "retry_on": [2]}}, "failed", {}),
        (over(FAILED, 75), {"failures": 1}, "waiting", {"failures": 1, "losses": 1}),
        (over(FAILED, 85), {"failures": 1}, "waiting", {"failures": 1, "losses": 1, "not_before": 111}),
        (over(FAILED, 85), {"losses": 3}, "waiting", {"losses": 4, "not_before": 127}),
        (over(FAILED, 85), {"losses": state_machine.MAX_LOSSES}, "failed", {}),
        (over(LOST), {}, "waiting", {"losses": 1, "not_before": 111}),
        (over(LOST), {"losses": state_machine.MAX_LOSSES}, "failed", {}),
        (over(FAILED, 143, "time limit of 2 s"), {}, "failed", {"failures": 0}),
    ],
)
def test_how_it_ends(status: AttemptStatus, more: dict[str, Any], state: str, counted: dict[str, int]) -> None:
    body = state_machine.end_attempt(running(**more), status, 111.0)
    assert body["state"] == state
    assert {name: body[name] for name in counted} == counted
    assert (body["attempt"], body["use"]["nodes"], body["use"]["charge"]) == (None, {}, {})
    assert (body["ran_s"], body["served"], body["attempts"][-1]["width"]) == (10, 20_000, 2)


@pytest.mark.parametrize("along", ["stopped", "stopped before it began", "ended with its gang"])
def test_a_gang_ends_as_the_slot_says_that_ended_it(along: str) -> None:
    exits = (
        SlotExitStatus(0, 143, along),
        SlotExitStatus(1, 75, "rank 1 ended with code 75"),
        SlotExitStatus(2, 143, along),
    )
    body = state_machine.end_attempt(
        running(), AttemptStatus("handle", FAILED, exits, reason=f"slot 0: {along}"), 111.0
    )
    assert (body["state"], body["attempts"][-1]["code"]) == ("waiting", 75)
    assert body["note"] == "asked to be tried again, and queued again: rank 1 ended with code 75"
    gone = (SlotExitStatus(0, 1, "rank 0 ended with code 1"), SlotExitStatus(1, 137, "its node or its actor is gone"))
    body = state_machine.end_attempt(
        running(), AttemptStatus("handle", LOST, gone, reason="slot 1: its node is gone"), 111.0
    )
    assert body["note"] == "lost, and queued again: slot 1: its node is gone"


def test_an_evicted_job_says_why_and_how_much_work_is_lost() -> None:
    body = state_machine.mark_stopping(running(), state_machine.EVICT, 105.0, grace_s=30, wanted_by="other")
    body = state_machine.explain_eviction(body, "a queue has less than its guarantee", 5400)
    body = state_machine.end_attempt(body, over(FAILED, 143), 111.0)
    assert body["note"] == "evicted: a queue has less than its guarantee; 1.5 core-hours of work are lost; queued again"
    shown = to_attempt_view(body["attempts"][-1], lambda job: f"job:shop/{job}")
    assert shown.outcome.startswith("evicted: for job:shop/other")
    assert shown.outcome.endswith("; a queue has less than its guarantee; 1.5 core-hours of work are lost")
    cancelled = state_machine.mark_stopping(running(), state_machine.CANCEL, 105.0, grace_s=30)
    assert state_machine.explain_eviction(cancelled, "no eviction", 1) == cancelled


@pytest.mark.parametrize(
    ("why", "phase", "state"),
    [
        (state_machine.CANCEL, SUCCEEDED, "cancelled"),
        (state_machine.CANCEL, FAILED, "cancelled"),
        (state_machine.LIMIT, FAILED, "failed"),
        (state_machine.EVICT, FAILED, "waiting"),
        (state_machine.EVICT, SUCCEEDED, "succeeded"),
        (state_machine.RESIZE, LOST, "waiting"),
    ],
)
def test_how_it_ends_when_it_was_asked_to(why: str, phase: str, state: str) -> None:
    asked = state_machine.mark_stopping(running(), why, 105.0, grace_s=5)
    assert asked["state"] == "stopping"
    body = state_machine.end_attempt(asked, over(phase, 143 if phase == FAILED else 0), 111.0)
    assert (body["state"], body["evictions"], body["failures"]) == (
        state,
        int(why == state_machine.EVICT and phase == FAILED),
        0,
    )


def test_who_gives_its_place_up_after_a_while_or_gets_further_never_waits_for_that() -> None:
    body = running(losses=state_machine.MAX_LOSSES)
    late = state_machine.end_attempt(body, over(FAILED, 85), 101.0 + state_machine.MIN_USEFUL_RUN_S)
    assert (late["state"], late["losses"], late["not_before"]) == ("waiting", 0, 0)
    further = state_machine.absorb_facts(body, [{"kind": "progress", "step": 1, "steps": 9, "at": 102.0}])
    assert state_machine.end_attempt(further, over(FAILED, 85), 103.0)["not_before"] == 103


def test_an_attempt_tells_from_where_it_begins_and_only_what_was_never_reached_is_further() -> None:
    def told(body: state_machine.JobBody, *steps: int) -> state_machine.JobBody:
        return state_machine.absorb_facts(
            body, [{"kind": "progress", "step": step, "steps": 99, "at": 102.0} for step in steps]
        )

    body = told(running(), 0, 50)
    for lost in range(1, 4):
        body = state_machine.end_attempt(body, over(FAILED, 75), 111.0)
        body = state_machine.mark_launched(state_machine.admit_attempt(body, SPOTS, "train-1", 2, 112.0), "h", 113.0)
        body = {**told(body, 10, 50, 20), "use": running()["use"]}
        assert (body["step"], body["losses"]) == (50, lost), "it begins anew and gets no further than before"
    assert told({**body, "step_at": 0.0}, 10)["step"] == 10
    assert told(body, 51)["losses"] == 0


def test_a_cancellation_outdoes_an_eviction_and_never_the_other_way() -> None:
    evicted = state_machine.mark_stopping(running(), state_machine.EVICT, 105.0, grace_s=5)
    cancelled = state_machine.mark_stopping(evicted, state_machine.CANCEL, 106.0, grace_s=5)
    assert cancelled["attempt"]["stop"]["why"] == state_machine.CANCEL
    assert state_machine.mark_stopping(cancelled, state_machine.EVICT, 107.0, grace_s=5) == cancelled


def test_of_several_resizes_the_last_one_counts_and_nobody_gets_more_time_for_it() -> None:
    wide = state_machine.mark_stopping(
        running(), state_machine.RESIZE, 110.0, grace_s=9, spots=(*SPOTS, SlotPlacement("local/c", 0))
    )
    narrow = state_machine.mark_stopping(
        wide, state_machine.RESIZE, 115.0, grace_s=9, wanted_by="other", spots=SPOTS[:1]
    )
    stop = narrow["attempt"]["stop"]
    assert (stop["since"], stop["for"], state_machine.parse_spots(stop["spots"])) == (110.0, "other", SPOTS[:1])
    assert state_machine.mark_stopping(narrow, state_machine.EVICT, 116.0, grace_s=9) is narrow
    assert (
        state_machine.mark_stopping(narrow, state_machine.CANCEL, 117.0, grace_s=1)["attempt"]["stop"]["why"]
        == state_machine.CANCEL
    )


def test_slots_that_look_alike_are_held_each_by_itself() -> None:
    slot = SlotPlacement("local/a", 0)
    two = state_machine.admit_attempt(running(), (slot,) * 2, "train-2", 2, 100.0)
    grows = state_machine.mark_stopping(two, state_machine.RESIZE, 110.0, grace_s=9, spots=(slot,) * 4)
    assert list_held_spots(grows["attempt"]) == (slot,) * 4
    moves = state_machine.mark_stopping(
        running(), state_machine.RESIZE, 110.0, grace_s=9, spots=(SPOTS[1], SlotPlacement("local/c", 0))
    )
    assert list_held_spots(moves["attempt"]) == (*SPOTS, SlotPlacement("local/c", 0))


def test_refusals_back_off_and_a_start_forgives_them() -> None:
    body, waits = running(), []
    for _ in range(10):
        body = state_machine.mark_refused(body, "full", 200.0)
        waits.append(body["not_before"] - 200)
        body = state_machine.admit_attempt(body, SPOTS, "train-1", 2, 200.0)
    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert (body["number"], state_machine.mark_launched(body, "h", 1.0)["refusals"]) == (11, 0)


def test_what_processes_say_is_believed_only_as_far_as_it_is_a_number() -> None:
    facts = [
        {"kind": "progress", "step": 10, "steps": 100, "at": 10.0},
        {"kind": "progress", "step": 20, "steps": 100, "at": 15.0},
        {"kind": "progress", "step": "many", "at": None},
        {"kind": "checkpoint", "step": 20, "at": 15.5, "save_s": 2.4},
        {"kind": "checkpoint", "at": float("nan")},
        {"kind": "dance"},
        {},
    ]
    body = state_machine.absorb_facts(running(), facts)
    assert (body["step"], body["steps"], body["step_us"]) == (20, 100, 500_000)
    assert (body["saved"], body["save_s"]) == (15.5, 2)
