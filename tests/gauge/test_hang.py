"""Hangs for real: processes that wait in a gloo collective for a partner that was stopped."""

import io
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from falaj.gauge import hang_watchdog
from falaj.gauge.step_monitor import COMMUNICATION_PHASE, StepMonitor
from falaj.worker import CurrentAttempt
from tests.gauge.conftest import Facts

_LONG_S = 100.0
_FORK = multiprocessing.get_context("fork")


def _until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _LONG_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def _meet(folder: Path, rank: int) -> None:
    """Steps with a partner, for ever; a file says how many there were."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    gauge = StepMonitor(
        CurrentAttempt(), rank=rank, world=2, device="cpu", first_step=0, steps=0, hang_s=2.0, stream=io.StringIO()
    )
    for number in range(1_000_000):
        with gauge.phase(COMMUNICATION_PHASE):
            dist.all_reduce(torch.ones(4))
        gauge.stepped(number, 1, {})
        (folder / f"step-{rank}").write_text(str(number))


def test_a_process_whose_partner_stopped_says_where_it_stands_and_ends(
    here: CurrentAttempt, facts: Facts, tmp_path: Path
) -> None:
    ranks = [_FORK.Process(target=_meet, args=(tmp_path, rank), daemon=True) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    try:
        _until(lambda: (tmp_path / "step-0").exists() and (tmp_path / "step-0").read_text() > "3", "they never met")
        os.kill(ranks[1].pid or 0, signal.SIGSTOP)
        ranks[0].join(_LONG_S)
        assert ranks[0].exitcode == hang_watchdog.RETRY_EXIT_CODE
    finally:
        for rank in ranks:
            rank.kill()
    assert here.checkpoints is not None
    place = here.checkpoints / "hangs" / "a-1-rank-0"
    stacks = (place / "stacks.txt").read_text()
    assert "all_reduce" in stacks
    assert "_meet" in stacks
    (note,) = (fact["text"] for fact in facts() if fact["kind"] == "note" and "hang" in fact["text"])
    assert note.startswith("rank 0: no step for ")
    assert "all_reduce" in note


def _sit(folder: Path) -> None:
    gauge = StepMonitor(
        CurrentAttempt(),
        rank=0,
        world=1,
        device="cpu",
        first_step=0,
        steps=0,
        hang_s=1.0,
        first_s=0.0,
        stream=io.StringIO(),
    )
    (folder / "sits").touch()
    _until((folder / "go").exists, "nobody said go")
    gauge.close()
    os._exit(0)


def _slow_first(folder: Path) -> None:
    """A first step three times as long as a hang, as if kernels were compiled."""
    gauge = StepMonitor(
        CurrentAttempt(), rank=0, world=1, device="cpu", first_step=0, steps=0, hang_s=0.5, stream=io.StringIO()
    )
    ended = time.monotonic() + 1.5
    _until(lambda: time.monotonic() > ended, "the clock stands still")
    gauge.stepped(0, 1, {})
    gauge.close()
    os._exit(0)


def test_no_first_step_is_a_hang_too_but_it_may_take_longer(here: CurrentAttempt, tmp_path: Path) -> None:
    del here
    ends = []
    for target in (_sit, _slow_first):
        process = _FORK.Process(target=target, args=(tmp_path,), daemon=True)
        process.start()
        process.join(_LONG_S)
        ends.append(process.exitcode)
    assert ends == [hang_watchdog.RETRY_EXIT_CODE, 0]


def test_a_process_that_was_stopped_itself_is_forgiven(here: CurrentAttempt) -> None:
    now = time.perf_counter()
    watchdog = hang_watchdog.HangWatchdog(here, 0, lambda: (now, 5), 60.0, 60.0)
    watchdog.tick(now + 1)
    watchdog.tick(now + 3600)  # asleep meanwhile: nobody looked for an hour
    watchdog.tick(now + 3601)


def _listen(folder: Path) -> None:
    with (folder / "stderr").open("w") as file:
        os.dup2(file.fileno(), 2)
        gauge = StepMonitor(
            CurrentAttempt(), rank=0, world=1, device="cpu", first_step=0, steps=0, stream=io.StringIO()
        )
        (folder / "listens").touch()
        _until((folder / "go").exists, "nobody said go")
        gauge.close()
    os._exit(0)


def test_usr2_writes_stacks_and_ends_nothing(here: CurrentAttempt, tmp_path: Path) -> None:
    del here
    process = _FORK.Process(target=_listen, args=(tmp_path,), daemon=True)
    process.start()
    _until((tmp_path / "listens").exists, "it never listened")
    os.kill(process.pid or 0, signal.SIGUSR2)
    _until(lambda: "_listen" in (tmp_path / "stderr").read_text(), "no stacks came")
    (tmp_path / "go").touch()
    process.join(_LONG_S)
    assert process.exitcode == 0


def test_torch_is_told_to_remember_collectives_unless_somebody_said_otherwise() -> None:
    known = {"TORCH_FR_BUFFER_SIZE": "7"}
    hang_watchdog.prepare_environment(known)
    assert known == {"TORCH_FR_BUFFER_SIZE": "7"}
    hang_watchdog.prepare_environment(known := {})
    assert known == {"TORCH_FR_BUFFER_SIZE": "2000"}
