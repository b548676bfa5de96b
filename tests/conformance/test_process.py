"""What only the executor of this machine does: nodes, cores, limits, and processes nobody watches any more."""

import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from falaj.backends.process import ProcessExecutor
from falaj.backends.process_files import read_slot_state
from falaj.core.errors import Conflict, Invalid, Unavailable
from falaj.core.executor import (
    FAILED,
    LOST,
    RUNNING,
    SUCCEEDED,
    UNKNOWN,
    Attempt,
    Executor,
    SupportsBatchLaunch,
    SupportsScaling,
)
from tests.conformance.executors import EXECUTORS, Lab
from tests.servers.process import wait_until

FOREVER = "while :; do sleep 0.05; done"


@pytest.fixture
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    with EXECUTORS["process"].open(request, tmp_path) as opened:
        yield opened


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[str], Lab]]:
    made: list[Executor] = []

    def open_it(query: str) -> Lab:
        made.append(ProcessExecutor(f"process:{tmp_path}/attempts{query}", {}))
        return Lab(made[-1], tuple(node.name for node in made[-1].capacity()))

    yield open_it
    for executor in made:
        executor.close()


def test_this_machine_is_one_node(opened: Callable[[str], Lab]) -> None:
    (node,) = opened("").executor.capacity()
    assert 0 < node.amounts["cpu"] <= 1000 * len(os.sched_getaffinity(0))
    assert node.amounts["memory"] > 100
    assert node.labels["avx"] in ("none", "avx2", "avx512")
    assert node.labels["limits"] in ("watched", "cgroup")


def test_it_imitates_the_nodes_it_is_told_of(opened: Callable[[str], Lab]) -> None:
    nodes = opened("?nodes=3&cpus=2000&memory=2048&gpus=4&model=H100&gpu_memory=81920").executor.capacity()
    assert [node.name for node in nodes] == ["node-1", "node-2", "node-3"]
    assert {(node.amounts["cpu"], node.amounts["memory"], len(node.devices)) for node in nodes} == {(2000, 2048, 4)}
    assert {(one.model, one.memory_mib) for node in nodes for one in node.devices} == {("H100", 81920)}


def test_a_root_that_cannot_be_made_is_said() -> None:
    with pytest.raises(Unavailable):
        ProcessExecutor("process:/proc/nowhere", {})


@pytest.mark.parametrize("query", ["?nodes=many", "?colour=blue", "?gpus=-1"])
def test_an_address_that_makes_no_sense_is_refused(opened: Callable[[str], Lab], query: str) -> None:
    with pytest.raises(Invalid):
        opened(query)


@pytest.mark.parametrize("id_", ["", "../up", "a/b", "x" * 51, "-a"])
def test_an_id_is_never_a_path(lab: Lab, id_: str) -> None:
    with pytest.raises(Invalid):
        lab.executor.launch(replace(lab.attempt("true"), id=id_))
    assert lab.status(id_).phase == UNKNOWN


def test_devices_are_given_by_id_and_the_platforms_environment_is_not(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FALAJ_SECRETS", "the platform's own")
    attempt = lab.attempt("sh", "-c", "echo $CUDA_VISIBLE_DEVICES; env")
    slot = replace(attempt.slots[0], devices=(1, 3))
    handle = lab.executor.launch(replace(attempt, slots=(slot,)))
    lab.until(handle)
    assert lab.lines(handle)[0] == "1,3"
    assert "the platform's own" not in "\n".join(lab.lines(handle))
    with pytest.raises(Invalid, match="device 4"):
        lab.executor.launch(replace(lab.attempt("true"), slots=(replace(slot, devices=(4,)),)))


def test_a_platform_with_many_open_files_launches_on(lab: Lab) -> None:
    """More than select() knows of: each connection of a caller is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        lab.until(lab.executor.launch(lab.attempt("true")), SUCCEEDED)
    finally:
        for file in many:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_slots_keep_to_cores_of_their_own(opened: Callable[[str], Lab]) -> None:
    lab = opened("")
    lab.amounts = {"cpu": 1000}
    cores = sorted(os.sched_getaffinity(0))
    attempts = [lab.attempt("sh", "-c", f"grep Cpus_allowed_list /proc/self/status; {FOREVER}") for _ in cores]
    handles = [lab.executor.launch(attempt) for attempt in attempts]
    for handle in handles:
        lab.says(handle, "Cpus_allowed_list")
    assert sorted(lab.lines(handle)[0].split()[1] for handle in handles) == sorted(map(str, cores))
    lab.executor.stop(handles[0], 0.2)
    lab.until(handles[0])
    freed = lab.lines(handles[0])
    again = lab.executor.launch(lab.attempt("grep", "Cpus_allowed_list", "/proc/self/status"))
    lab.until(again)
    assert lab.lines(again) == freed
    for handle in handles:
        lab.executor.stop(handle, 0.1)
        lab.until(handle)


def test_limits_are_written_where_a_cgroup_is_ours(opened: Callable[[str], Lab], tmp_path: Path) -> None:
    """A folder stands in for the kernel's: this proves what is written, not that the kernel obeys."""
    for name in ("cgroup.subtree_control", "cgroup.procs"):
        (tmp_path / name).touch()
    lab = opened(f"?cgroup={tmp_path}")
    assert lab.executor.capacity()[0].labels["limits"] == "cgroup"
    attempt = lab.attempt("true")
    lab.until(lab.executor.launch(attempt))
    group = tmp_path / f"falaj-{attempt.id}-0"
    written = {path.name: path.read_text() for path in group.iterdir()}
    assert written.pop("cgroup.procs").isdigit()
    assert written == {
        "cpu.max": "100000 100000", "cpu.weight": "50", "memory.max": str(128 << 20), "memory.swap.max": "0",
    }  # fmt: skip


def test_a_pool_grows_and_shrinks_and_forgets_nobody(opened: Callable[[str], Lab]) -> None:
    lab = opened("?nodes=1&most=3&cpus=1000&memory=512&gpus=1&model=T4")
    pool = lab.executor
    assert isinstance(pool, ProcessExecutor)
    assert isinstance(pool, SupportsScaling)
    assert [(kind.name, kind.labels["most"], len(kind.devices)) for kind in pool.templates()] == [("node", "3", 1)]
    pool.scale("node", 3)
    lab.nodes = tuple(node.name for node in opened("?nodes=1&most=3&cpus=1000").executor.capacity())
    assert lab.nodes == ("node-1", "node-2", "node-3")
    handle = pool.launch(lab.attempt("sh", "-c", f"echo up; {FOREVER}", slots=2))
    lab.says(handle, "up", 1)
    pool.scale("node", 0)
    assert [node.name for node in pool.capacity()] == ["node-1", "node-2"]
    pool.retire(["node-1"])
    assert [node.name for node in pool.capacity()] == ["node-2"]
    assert lab.until(handle).phase == LOST
    for template, count in (("node", 4), ("other", 1), ("node", -1)):
        with pytest.raises(Invalid):
            pool.scale(template, count)
    assert opened("?nodes=2").executor.templates() == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ['{"code": "x"}', "[" * 100_000, '{"code": 0}', "null"])
def test_a_job_that_spoils_its_own_folder_spoils_nothing_else(lab: Lab, text: str) -> None:
    attempt = lab.attempt("sh", "-c", f"echo up; {FOREVER}")
    lab.says(lab.executor.launch(attempt), "up")
    (Path(attempt.folder) / "outbox").mkdir()
    for name in ("slot-0.exit", "stop", "outbox/rank-0.jsonl"):
        (Path(attempt.folder) / name).write_text(text)
    (Path(attempt.folder) / "outbox" / "rank-1.jsonl").write_text('{"kind": "note"}\n')
    other = lab.executor.launch(lab.attempt("true"))
    assert lab.until(other).phase == SUCCEEDED
    assert len(lab.executor.poll([attempt.id, other])) == 2
    lab.executor.stop(attempt.id, 0.1)
    lab.executor.logs(attempt.id, 0)
    assert {"kind": "note"} in lab.executor.outbox(attempt.id)[0]  # type: ignore[attr-defined]
    (Path(attempt.folder) / "slot-0.exit").unlink(missing_ok=True)
    (Path(attempt.folder) / "stop").write_text(text)
    lab.until(attempt.id)
    (Path(attempt.folder) / "context.json").write_text('{"slots": 7, "outbox": 8}')
    assert lab.status(attempt.id).phase == LOST
    assert lab.executor.outbox(attempt.id)[0] == []  # type: ignore[attr-defined]


def test_forgetting_leaves_what_is_not_ours(lab: Lab) -> None:
    attempt = lab.attempt("sh", "-c", "echo result > model.txt")
    lab.until(lab.executor.launch(attempt))
    lab.executor.forget(attempt.id)
    assert sorted(path.name for path in Path(attempt.folder).iterdir()) == ["model.txt"]


def test_what_a_killed_launcher_left_is_ended(lab: Lab) -> None:
    handle = lab.executor.launch(lab.attempt("sh", "-c", f"setsid sh -c 'echo away $$; {FOREVER}'"))
    lab.says(handle, "away")
    away = int(lab.lines(handle)[0].split()[1])
    assert lab.lose is not None
    lab.lose(handle)
    assert lab.until(handle).phase == LOST
    wait_until(lambda: not Path(f"/proc/{away}").exists(), 20)


def test_a_launcher_that_hangs_is_killed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = lab.executor.launch(lab.attempt("sh", "-c", f"echo up; {FOREVER}"))
    lab.says(handle, "up")
    (folder,) = Path(lab.folder(handle)).parent.glob(handle)
    os.kill(json.loads((folder / "slot-0.pid").read_text())["pid"], signal.SIGSTOP)
    lab.executor.stop(handle, 0.0)
    assert lab.status(handle).phase == RUNNING
    later = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: later)
    lab.status(handle)
    monkeypatch.undo()
    assert lab.until(handle).phase == LOST


def test_a_gang_half_launched_is_launched_whole(lab: Lab) -> None:
    """As when the platform died between two slots: nothing runs twice, nothing is missing."""
    attempt = lab.attempt("sh", "-c", f"echo up $FALAJ_SLOT; {FOREVER}", slots=2)
    handle = lab.executor.launch(_only_first(attempt))
    lab.says(handle, "up 0")
    (Path(attempt.folder) / "context.json").write_text(json.dumps(attempt.context))
    assert lab.status(handle).phase == "waiting"
    lab.executor.launch(attempt)
    lab.says(handle, "up 1", 1)
    assert lab.lines(handle) == ["up 0"]
    lab.executor.stop(handle, 0.1)
    assert lab.until(handle).phase == FAILED


@pytest.mark.parametrize("after", [1, 4, 7, 9])
def test_a_platform_killed_while_it_launches_loses_and_doubles_nothing(lab: Lab, tmp_path: Path, after: int) -> None:
    attempts = [lab.attempt("echo", "here", slots=2) for _ in range(12)]
    (tmp_path / "attempts.pickle").write_bytes(pickle.dumps(attempts))
    code = (
        "import pickle, sys; from falaj.backends.process import ProcessExecutor\n"
        "executor = ProcessExecutor(sys.argv[1], {})\n"
        "for one in pickle.load(open(sys.argv[2], 'rb')): print(one.id, flush=True); executor.launch(one)"
    )
    words = [sys.executable, "-c", code, f"process:{tmp_path}/attempts?nodes=2", str(tmp_path / "attempts.pickle")]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as platform:
        assert platform.stdout is not None
        for _ in range(after):
            platform.stdout.readline()
        platform.kill()
    handles = [lab.executor.launch(attempt) for attempt in attempts]
    assert {lab.until(handle).phase for handle in handles} == {SUCCEEDED}
    assert [lab.lines(handle, slot) for handle in handles for slot in (0, 1)] == [["here"]] * 24


def test_several_are_launched_at_once_and_each_is_answered_for_itself(lab: Lab) -> None:
    assert isinstance(lab.executor, SupportsBatchLaunch)
    wide = {"WIDE": "x" * 20_000}  # more of them than a pipe takes
    good = [replace(lab.attempt("sh", "-c", "echo here"), env=wide) for _ in range(7)]
    nowhere = [replace(good[0], id="nowhere", slots=(replace(good[0].slots[0], node="moon"),))]
    gang = lab.attempt("sh", "-c", "echo here", slots=2)
    found = lab.executor.launch_all([*good[:3], *nowhere, gang, *good[3:], good[0]])
    assert [one for one in found if isinstance(one, str)] == [one.id for one in (*good[:3], gang, *good[3:], good[0])]
    assert isinstance(found[3], Conflict)
    for one in (*good, gang):
        assert lab.until(one.id).phase == SUCCEEDED
        assert lab.lines(one.id, 0) == ["here"]


def test_one_among_several_that_cannot_begin_says_why_and_the_others_begin(lab: Lab) -> None:
    assert isinstance(lab.executor, SupportsBatchLaunch)
    some = [lab.attempt("sh", "-c", "echo here") for _ in range(6)]
    for one in some[1:5:3]:
        Path(lab.executor._attempts_folder, one.id).write_text("in the way")  # type: ignore[attr-defined]
    found = lab.executor.launch_all([replace(one, folder="") for one in some])
    assert [isinstance(one, Unavailable) for one in found] == [False, True, False, False, True, False]
    assert all("Not a directory" in str(found[at]) for at in (1, 4))
    for one in (some[0], some[2], some[3], some[5]):
        assert lab.until(one.id).phase == SUCCEEDED
        assert lab.lines(one.id, 0) == ["here"]


def test_a_nursery_that_is_lost_among_several_loses_and_doubles_nothing(lab: Lab) -> None:
    assert isinstance(lab.executor, SupportsBatchLaunch)
    lab.until(lab.executor.launch(lab.attempt("true")))
    os.kill(lab.executor._fork_server._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    some = [lab.attempt("sh", "-c", "echo here") for _ in range(5)]
    while refused := [one for one in some if one.id not in lab.executor.launch_all(some)]:
        assert len(refused) <= 5
    for one in some:
        assert lab.until(one.id).phase == SUCCEEDED
        assert lab.lines(one.id, 0) == ["here"]


def test_a_lost_nursery_is_replaced(lab: Lab) -> None:
    lab.until(lab.executor.launch(lab.attempt("true")))
    os.kill(lab.executor._fork_server._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    with_luck = lab.attempt("true")
    try:
        handle = lab.executor.launch(with_luck)
    except Unavailable:
        handle = lab.executor.launch(with_luck)
    lab.until(handle)


def test_who_waits_to_become_a_launcher_goes_with_the_executor_and_launchers_stay(lab: Lab) -> None:
    handle = lab.executor.launch(lab.attempt("sh", "-c", f"echo up; {FOREVER}"))
    lab.says(handle, "up")
    nursery = lab.executor._fork_server._process.pid  # type: ignore[attr-defined]
    children = Path(f"/proc/{nursery}/task/{nursery}/children")
    wait_until(lambda: len(children.read_text().split()) == 2, 20)  # the launcher, and who waits
    launcher = read_slot_state(Path(lab.executor._attempts_folder) / handle, 0).pid  # type: ignore[attr-defined]
    (waits,) = {int(pid) for pid in children.read_text().split()} - {launcher}
    lab.executor.close()
    wait_until(lambda: not Path(f"/proc/{waits}").exists(), 20)
    assert lab.status(handle).phase == RUNNING
    lab.executor.stop(handle, 0)
    lab.until(handle)


def test_one_who_waits_and_is_killed_is_replaced(lab: Lab) -> None:
    lab.until(lab.executor.launch(lab.attempt("true")))
    nursery = lab.executor._fork_server._process  # type: ignore[attr-defined]
    children = Path(f"/proc/{nursery.pid}/task/{nursery.pid}/children")
    wait_until(lambda: len(children.read_text().split()) == 1, 20)
    os.kill(int(children.read_text()), signal.SIGKILL)
    nursery.wait(20)
    assert lab.until(lab.executor.launch(lab.attempt("true"))).phase == SUCCEEDED


def test_a_folder_that_cannot_be_written_is_said(lab: Lab) -> None:
    with pytest.raises(Unavailable):
        lab.executor.launch(replace(lab.attempt("true"), folder="/proc/nowhere"))


def _only_first(attempt: Attempt) -> Attempt:
    slots = list(attempt.context["slots"])  # type: ignore[call-overload]
    return replace(attempt, slots=attempt.slots[:1], context={**attempt.context, "slots": slots[:1]})
