"""What every executor must do, asked of real clusters. Which ones, and what they cannot do: executors.py."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from falaj.core.errors import Conflict, FalajError, NotFound
from falaj.core.executor import (
    EXIT_YIELDED,
    FAILED,
    LOG_END,
    LOST,
    RUNNING,
    SUCCEEDED,
    UNKNOWN,
    Attempt,
    SupportsOutbox,
)
from falaj.jobs import state_machine
from tests.conformance.executors import EXECUTORS, Lab
from tests.jobs.test_life import running

FOREVER = "while :; do sleep 0.05; done"


@pytest.fixture(params=[pytest.param(name, marks=entry.marks) for name, entry in EXECUTORS.items()])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    entry = EXECUTORS[request.param]
    if gap := entry.gaps.get(request.function.__name__):
        pytest.skip(f"{request.param}: {gap}")
    with entry.open(request, tmp_path) as opened:
        yield opened


def shell(lab: Lab, script: str, **more: object) -> Attempt:
    return lab.attempt("sh", "-c", script, **more)


def test_capacity_names_nodes_with_amounts(lab: Lab) -> None:
    nodes = {node.name: node for node in lab.executor.capacity()}
    assert set(lab.nodes) <= set(nodes)
    assert len(lab.nodes) >= 2
    for name in lab.nodes:
        assert nodes[name].ready
        assert nodes[name].amounts["cpu"] > 0
        assert nodes[name].amounts["memory"] > 0


def test_an_attempt_runs_to_its_end(lab: Lab) -> None:
    handle = lab.executor.launch(shell(lab, "echo one; echo two >&2; echo three"))
    status = lab.until(handle)
    assert status.phase == SUCCEEDED, status
    assert [(one.index, one.code) for one in status.exits] == [(0, 0)]
    assert 0 < status.started <= status.ended
    assert lab.lines(handle) == ["one", "two", "three"]


def test_launched_twice_it_runs_once(lab: Lab) -> None:
    attempt = shell(lab, "echo here; sleep 0.2")
    handles = {lab.executor.launch(attempt) for _ in range(3)}
    (handle,) = handles
    lab.until(handle)
    assert lab.executor.launch(attempt) == handle
    assert lab.lines(handle) == ["here"]
    assert lab.status(handle).phase == SUCCEEDED


def test_launched_by_many_at_once_it_runs_once(lab: Lab) -> None:
    attempt = shell(lab, "echo here; sleep 0.2")
    handles: list[str] = []
    threads = [threading.Thread(target=lambda: handles.append(lab.executor.launch(attempt))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(handles) == 4
    (handle,) = set(handles)
    lab.until(handle)
    assert lab.lines(handle) == ["here"]


@pytest.mark.parametrize("code", [3, 75, EXIT_YIELDED])
def test_an_exit_code_comes_back_as_it_is(lab: Lab, code: int) -> None:
    status = lab.until(lab.executor.launch(shell(lab, f"exit {code}")))
    assert (status.phase, status.exits[0].code) == (FAILED, code)


def test_a_command_that_is_not_there_is_named(lab: Lab) -> None:
    status = lab.until(lab.executor.launch(lab.attempt("no-such-program-anywhere")))
    assert (status.phase, status.exits[0].code) == (FAILED, 127)


def test_logs_follow(lab: Lab) -> None:
    handle = lab.executor.launch(shell(lab, "for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.03; done; printf end"))
    lines: list[str] = []
    cursor, over = "", False
    while not over:
        chunk = lab.executor.logs(handle, 0, cursor, limit=3)
        lines += chunk.lines
        cursor, over = chunk.cursor, chunk.over
    assert lines == [*(f"line {i}" for i in range(1, 9)), "end"]
    assert lab.executor.logs(handle, 0, cursor).lines == ()
    last = lab.executor.logs(handle, 0, LOG_END, limit=3)
    assert last.lines == ("line 7", "line 8", "end")
    assert last.over
    assert lab.executor.logs(handle, 0, last.cursor).lines == ()
    assert len(lab.executor.logs(handle, 0, LOG_END).lines) == 9


def test_it_stops_with_grace(lab: Lab) -> None:
    handle = lab.executor.launch(shell(lab, f"trap 'echo saved; exit {EXIT_YIELDED}' TERM; echo ready; {FOREVER}"))
    lab.says(handle, "ready")
    assert lab.status(handle).phase == RUNNING
    lab.executor.stop(handle, lab.patience_s)
    lab.executor.stop(handle, lab.patience_s)
    status = lab.until(handle)
    assert (status.phase, status.exits[0].code) == (FAILED, EXIT_YIELDED)
    assert lab.lines(handle) == ["ready", "saved"]


def test_it_is_ended_by_force_after_the_grace(lab: Lab) -> None:
    handle = lab.executor.launch(shell(lab, f"trap '' TERM; echo ready; {FOREVER}"))
    lab.says(handle, "ready")
    lab.executor.stop(handle, 0.3)
    status = lab.until(handle)
    assert (status.phase, status.exits[0].code) == (FAILED, 137)


def test_a_checkpoint_is_asked_for_and_work_goes_on(lab: Lab) -> None:
    handle = lab.executor.launch(shell(lab, f"trap 'echo checkpoint' USR1; echo ready; {FOREVER}"))
    lab.says(handle, "ready")
    lab.executor.checkpoint(handle)
    lab.says(handle, "checkpoint")
    assert lab.status(handle).phase == RUNNING
    lab.executor.stop(handle, 0.3)
    lab.until(handle)


def test_whoever_does_not_know_checkpoints_survives_the_wish(lab: Lab) -> None:
    handle = lab.executor.launch(shell(lab, f"echo ready; {FOREVER}"))
    lab.says(handle, "ready")
    lab.executor.checkpoint(handle)
    assert lab.status(handle).phase == RUNNING
    lab.executor.stop(handle, 0.3)
    assert lab.until(handle).exits[0].code in (137, 143)


def test_a_gang_runs_on_its_nodes(lab: Lab) -> None:
    handle = lab.executor.launch(shell(lab, "echo slot $FALAJ_SLOT rank $FALAJ_RANK of $FALAJ_WORLD", slots=2))
    status = lab.until(handle)
    assert status.phase == SUCCEEDED, status
    assert {one.index for one in status.exits} == {0, 1}
    assert [lab.lines(handle, slot) for slot in (0, 1)] == [["slot 0 rank 0 of 2"], ["slot 1 rank 1 of 2"]]


def test_a_failed_slot_ends_its_gang(lab: Lab) -> None:
    script = f"test $FALAJ_SLOT = 0 || exit 9; echo ready; {FOREVER}"
    handle = lab.executor.launch(shell(lab, script, slots=2, grace_s=1))
    status = lab.until(handle)
    assert status.phase == FAILED
    assert 9 in {one.code for one in status.exits}
    assert state_machine.end_attempt(running(), status, 111.0)["attempts"][-1]["code"] == 9, status


def test_a_lost_node_is_told(lab: Lab) -> None:
    if lab.lose is None:
        pytest.skip("this lab cannot lose a node")
    handle = lab.executor.launch(shell(lab, f"echo ready; {FOREVER}"))
    lab.says(handle, "ready")
    lab.lose(handle)
    status = lab.until(handle)
    assert status.phase == LOST or status.exits[0].reason, status


def test_nobody_is_told_of_strangers(lab: Lab) -> None:
    assert [one.phase for one in lab.executor.poll(["stranger-1", "stranger-2"])] == [UNKNOWN, UNKNOWN]
    assert list(lab.executor.poll([])) == []
    lab.executor.stop("stranger-1", 1.0)
    lab.executor.checkpoint("stranger-1")
    lab.executor.forget("stranger-1")
    with pytest.raises(NotFound):
        lab.executor.logs("stranger-1", 0)


def test_statuses_come_in_the_order_asked(lab: Lab) -> None:
    good = lab.executor.launch(shell(lab, "exit 0"))
    bad = lab.executor.launch(shell(lab, "exit 1"))
    lab.until(good)
    lab.until(bad)
    phases = [one.phase for one in lab.executor.poll([bad, "stranger-1", good])]
    assert phases == [FAILED, UNKNOWN, SUCCEEDED]


def test_secrets_reach_processes_and_no_listing(lab: Lab) -> None:
    attempt = shell(
        lab, 'test "$KEY" = hush-"hush" && echo "$PLAIN"', env={"PLAIN": "open"}, secret_env={"KEY": "hush-hush"}
    )
    assert "hush-hush" not in repr(attempt)
    handle = lab.executor.launch(attempt)
    status = lab.until(handle)
    assert lab.lines(handle) == ["open"], status
    if attempt.folder:
        files = [path for path in Path(attempt.folder).rglob("*") if path.is_file()]
        assert files
        assert not [path for path in files if b"hush-hush" in path.read_bytes()]


def test_a_restarted_platform_finds_everything_again(lab: Lab) -> None:
    if lab.reopen is None:
        pytest.skip("this lab opens its cluster once")
    attempt = shell(lab, f"echo ready; trap 'exit 0' TERM; {FOREVER}")
    handle = lab.executor.launch(attempt)
    lab.says(handle, "ready")
    lab.executor.close()
    lab.executor = lab.reopen()
    assert lab.status(handle).phase == RUNNING
    assert lab.executor.launch(attempt) == handle
    assert lab.lines(handle) == ["ready"]
    lab.executor.stop(handle, lab.patience_s)
    assert lab.until(handle).phase == SUCCEEDED


def test_what_is_over_can_be_forgotten(lab: Lab) -> None:
    handle = lab.executor.launch(shell(lab, f"echo ready; {FOREVER}"))
    lab.says(handle, "ready")
    with pytest.raises(Conflict):
        lab.executor.forget(handle)
    lab.executor.stop(handle, 0.2)
    lab.until(handle)
    lab.executor.forget(handle)
    lab.executor.forget(handle)
    assert lab.status(handle).phase == UNKNOWN


def test_what_cannot_run_here_is_refused(lab: Lab) -> None:
    attempt = shell(lab, "exit 0")
    nowhere = replace(attempt, slots=(replace(attempt.slots[0], node="no-such-node"),))
    with pytest.raises(Conflict):  # it may have been there when it was chosen: another will be
        lab.executor.launch(nowhere)
    with pytest.raises(FalajError):
        lab.executor.logs(attempt.id, 0)
    assert lab.status(attempt.id).phase == UNKNOWN


def test_facts_are_carried_in_order(lab: Lab) -> None:
    if not isinstance(lab.executor, SupportsOutbox):
        pytest.skip("launchers on this cluster call the platform themselves")
    code = "from falaj import worker; here = worker.attempt(); [here.progress(n, 3) for n in (1, 2, 3)]"
    handle = lab.executor.launch(lab.attempt(lab.python, "-c", code))
    status = lab.until(handle)
    assert status.phase == SUCCEEDED, (status, lab.lines(handle))
    facts, cursor = lab.executor.outbox(handle)
    assert [(fact["step"], fact["rank"]) for fact in facts if fact["kind"] == "progress"] == [(1, 0), (2, 0), (3, 0)]
    assert lab.executor.outbox(handle, cursor) == ([], cursor)
