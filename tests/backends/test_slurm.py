"""Attempts on a real Slurm: exits, signals, other users, preemption, lost nodes, a silent controller."""

import os
import pwd
from dataclasses import replace
from pathlib import Path

import pytest

from falaj.backends.slurm import SlurmExecutor
from falaj.backends.slurm_commands import parse_records, to_node_info
from falaj.core.errors import Conflict, Invalid, NotFound, Unavailable
from falaj.core.executor import (
    FAILED,
    LOST,
    RUNNING,
    SUCCEEDED,
    UNKNOWN,
    WAITING,
    AttemptStatus,
    PersonRefused,
    Slot,
    rendezvous_port,
)
from tests.backends.attempts import PATIENT, attempt, over, slots, wait_for, wait_for_line
from tests.servers.process import Missing, wait_until
from tests.servers.slurm import SlurmServer

HERE = "import os; print('slot', os.environ['FALAJ_SLOT'], os.environ['FALAJ_WORLD'], flush=True)"


@pytest.fixture
def slurm(slurm_server: SlurmServer) -> SlurmExecutor:
    return _executor(slurm_server)


def test_two_nodes_run_one_launcher_each_and_launching_again_finds_it(slurm: SlurmExecutor, shared: Path) -> None:
    asked = attempt(slots("n1", "n2"), HERE, shared, env={"A": "b"}, secret_env={"TOKEN": "seventeen"})
    handle = slurm.launch(asked)
    assert slurm.launch(asked) == handle
    done = over(slurm, handle)
    assert (done.phase, [one.code for one in done.exits]) == (SUCCEEDED, [0, 0])
    assert done.ended >= done.started > 0
    chunks = [slurm.logs(handle, slot) for slot in (0, 1)]
    assert [(chunk.lines, chunk.over) for chunk in chunks] == [(("slot 0 2",), True), (("slot 1 2",), True)]
    assert not any(b"seventeen" in file.read_bytes() for file in shared.rglob("*") if file.is_file())
    # The claim lost, as by a crash between sbatch and the write: the job is found by its own mark, or by its name.
    for lost in ("slurm.job", "slurm.started"):
        (shared / "slurm.job").unlink(missing_ok=True)
        (shared / lost).unlink(missing_ok=True)
        assert slurm.launch(asked) == handle


def test_launchers_take_rights_and_calls_from_processes_where_asked(slurm_server: SlurmServer, shared: Path) -> None:
    caged = _executor(slurm_server, sandbox="calls")
    program = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
known = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(os.environ["FALAJ_SANDBOX"], *(known[name].strip() for name in ("NoNewPrivs", "Seccomp", "CapEff")))
print(libc.syscall(101, 16, os.getppid(), 0, 0), libc.unshare(0x10000000), flush=True)
"""
    handle = caged.launch(attempt(slots("n1", "n2"), program, shared))
    assert over(caged, handle).phase == SUCCEEDED
    assert caged.logs(handle, 1).lines == (f"calls 1 2 {'0' * 16}", "-1 -1")
    with pytest.raises(Invalid):
        _executor(slurm_server, sandbox="perhaps")


def test_different_slots_are_one_job_with_its_gpus(slurm: SlurmExecutor, shared: Path) -> None:
    program = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"
    gang = (
        Slot(0, "n1", amounts={"cpu": 1500, "memory": 64}, devices=(0,)),
        Slot(1, "n2", amounts={"cpu": 1000}),
        Slot(2, "n1", amounts={"cpu": 1000}, devices=(1,)),
        Slot(3, "n2", amounts={"cpu": 1000}),
    )
    handle = slurm.launch(attempt(gang, program, shared))
    assert over(slurm, handle).phase == SUCCEEDED
    said = [slurm.logs(handle, slot).lines for slot in range(4)]
    assert said == [("0",), ("None",), ("1",), ("None",)]


def test_the_code_of_a_slot_is_told_and_ends_the_others(slurm: SlurmExecutor, shared: Path) -> None:
    program = f"import os, sys\nif os.environ['FALAJ_SLOT'] == '1': sys.exit(9)\n{PATIENT}"
    done = over(slurm, slurm.launch(attempt(slots("n1", "n2"), program, shared)))
    first, then = done.exits
    assert (done.phase, first.code, first.reason) == (FAILED, 9, "rank 1 (python3) ended with code 9")
    assert (first.index, then.index, bool(then.code)) == (1, 0, True), "the one that ended the others comes first"


def test_a_checkpoint_is_asked_for_and_then_the_end(slurm: SlurmExecutor, shared: Path) -> None:
    # A child that does not expect the signal must live through it.
    program = f"import subprocess; child = subprocess.Popen(['sleep', '60'])\n{PATIENT}"
    handle = slurm.launch(attempt(slots("n1", "n2"), program, shared))
    for slot in (0, 1):
        wait_for_line(slurm, handle, slot, f"here {slot}")
    held = {node.name: node.taken for node in slurm.capacity()}
    assert held == {"n1": {}, "n2": {}}, "what we hold ourselves is not taken by others"
    slurm.checkpoint(handle)
    for slot in (0, 1):
        wait_for_line(slurm, handle, slot, f"saved {slot}")
    assert slurm.poll([handle])[0].phase == RUNNING
    slurm.stop(handle, 5)
    slurm.stop(handle, 5)
    done = over(slurm, handle)
    assert (done.phase, [one.code for one in done.exits]) == (FAILED, [3, 3])
    assert "ending 1" in slurm.logs(handle, 1).lines
    slurm.checkpoint(handle)
    slurm.forget(handle)
    assert slurm.poll([handle]) == [AttemptStatus(handle, UNKNOWN)]


def test_what_does_not_end_is_ended_by_force(slurm: SlurmExecutor, shared: Path) -> None:
    program = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True)\nwhile True: time.sleep(1)"
    )
    handle = slurm.launch(attempt(slots("n1"), program, shared))
    wait_for_line(slurm, handle, 0, "deaf")
    slurm.stop(handle, 0.5)
    assert over(slurm, handle).exits[0].code == 137


def test_what_waits_in_the_queue_is_cancelled(
    request: pytest.FixtureRequest, slurm: SlurmExecutor, slurm_server: SlurmServer, shared: Path
) -> None:
    other = slurm_server.ask(
        "sbatch", "--parsable", "-w", "n2", "-c", "4", "--mem=10", "-o", "/dev/null", "--wrap", "sleep 60"
    ).stdout.strip()
    request.addfinalizer(lambda: slurm_server.ask("scancel", other))
    handle = slurm.launch(attempt(slots("n2", cpu=4000), HERE, shared))
    wait_until(lambda: any(node.taken.get("cpu") == 4000 for node in slurm.capacity()), 20)
    status = wait_for(slurm, handle, lambda status: bool(status.reason))
    assert (status.phase, status.reason in ("Resources", "Priority")) == (WAITING, True)
    slurm.stop(handle, 5)
    assert over(slurm, handle).phase == FAILED


def test_a_job_runs_as_its_user(slurm: SlurmExecutor, shared: Path, unix_user: str) -> None:
    program = (
        "import os, pwd; print(pwd.getpwuid(os.geteuid()).pw_name, os.environ['HOME'], os.getgroups(), flush=True)"
    )
    # As the platform prepares it: folders and code of its own, closed to everybody else.
    (shared / "code").mkdir(mode=0o700)
    (shared / "code/train.py").touch(0o600)
    (shared / "kept").mkdir(mode=0o700)
    program = f"open('{shared}/kept/1', 'x'); open('{shared}/code/train.py'); {program}"
    asked = attempt(slots("n1"), program, shared, user=unix_user)
    asked = replace(asked, context={**asked.context, "checkpoints": f"{shared}/kept"})
    handle = slurm.launch(asked)
    assert over(slurm, handle).phase == SUCCEEDED, slurm.logs(handle, 0)
    who = pwd.getpwnam(unix_user)
    assert slurm.logs(handle, 0).lines == (f"{unix_user} {who.pw_dir} [{who.pw_gid}]",)
    # The folder is theirs now: what they put there instead of a log is not read with our rights.
    (shared / "slot-0.log").unlink()
    (shared / "slot-0.log").symlink_to("/etc/shadow")
    assert all("root:" not in line for line in slurm.logs(handle, 0).lines)
    for strange, said in (("no-such-user", "no Unix user"), ("daemon", "user of the system")):
        with pytest.raises(PersonRefused, match=said):
            slurm.launch(replace(asked, id="other", user=strange))


def test_a_person_of_the_identity_provider_runs_as_their_unix_user(
    slurm_server: SlurmServer, shared: Path, unix_user: str
) -> None:
    slurm = _executor(slurm_server, users="loader=daemon,oidc.*=*")
    program = "import os, pwd; print(pwd.getpwuid(os.geteuid()).pw_name, flush=True)"
    handle = slurm.launch(attempt(slots("n1"), program, shared, user=f"oidc.{unix_user}"))
    assert over(slurm, handle).phase == SUCCEEDED, slurm.logs(handle, 0)
    assert slurm.logs(handle, 0).lines == (unix_user,)
    for person, refusal in (("loader", "user of the system"), ("oidc.bin", "user of the system")):
        with pytest.raises(PersonRefused, match=refusal):
            slurm.launch(replace(attempt(slots("n1"), program, shared), id="other", user=person))


def test_a_partition_that_does_not_admit_a_user_refuses_the_person_and_not_the_job(
    slurm_server: SlurmServer, shared: Path, unix_user: str
) -> None:
    slurm_server.ask("scontrol", "create", "PartitionName=staff", "Nodes=n1", "AllowGroups=daemon")
    asked = attempt(slots("n1"), HERE, shared, user=unix_user)
    with pytest.raises(PersonRefused, match="not permitted"):
        _executor(slurm_server).launch(replace(asked, options={"partition": "staff"}))


def test_nobody_is_root_by_omission(slurm_server: SlurmServer, shared: Path) -> None:
    slurm = SlurmExecutor(slurm_server.address, {})
    asked = attempt(slots("n1"), HERE, shared)
    with pytest.raises(PersonRefused, match="whose identity"):
        slurm.launch(asked)
    with pytest.raises(PersonRefused, match="user of the system"):
        slurm.launch(replace(asked, user="root"))


def test_an_array_runs_independent_slots(slurm: SlurmExecutor, shared: Path) -> None:
    program = "import os; print(os.environ['SLURM_CPUS_PER_TASK']); raise SystemExit(int(os.environ['FALAJ_SLOT']) * 5)"
    three = slots("n1", "n1", "n1", cpu=2000)
    handle = slurm.launch(attempt(three, program, shared, options={"array": "yes"}))
    done = over(slurm, handle)
    assert slurm.logs(handle, 2).lines == ("2",)
    assert (done.phase, {one.index: one.code for one in done.exits}) == (FAILED, {0: 0, 1: 5, 2: 10})


def test_preempted_is_lost_and_not_run_again_by_slurm(
    slurm: SlurmExecutor, slurm_server: SlurmServer, shared: Path
) -> None:
    handle = slurm.launch(attempt(slots("n1", "n2", cpu=3000), PATIENT, shared))
    wait_for_line(slurm, handle, 1, "here 1")
    urgent = (
        "sbatch",
        "--parsable",
        "-p",
        "urgent",
        "-N",
        "2",
        "-c",
        "4",
        "--mem=10",
        "-o",
        "/dev/null",
        "--wrap",
        "true",
    )
    assert slurm_server.ask(*urgent).returncode == 0
    done = over(slurm, handle)
    assert (done.phase, done.reason) == (LOST, "preempted")
    assert not slurm_server.ask("squeue", "-h", f"--name={Path(handle).name}").stdout


def test_requeued_by_an_operator_is_lost_and_not_run_twice(
    slurm: SlurmExecutor, slurm_server: SlurmServer, shared: Path
) -> None:
    handle = slurm.launch(attempt(slots("n1"), PATIENT, shared))
    wait_for_line(slurm, handle, 0, "here 0")
    job = handle.partition(":")[0]
    slurm_server.ask("scontrol", "update", f"JobId={job}", "Requeue=1")
    assert slurm_server.ask("scontrol", "requeue", job).returncode == 0
    lost = over(slurm, handle)
    assert (lost.phase, "queue" in lost.reason) == (LOST, True)
    wait_until(lambda: not slurm_server.ask("squeue", "-h", "-j", job).stdout, 30)
    assert slurm.logs(handle, 0).lines.count("here 0") == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"options": {"partition": "nope"}}, "Invalid partition"),
        ({"options": {"partition": "main\n#SBATCH --uid=0"}}, "no single line"),
        ({"options": {"wrap": "true"}}, "does not know the option"),
        ({"env": {"SBATCH_RESERVATION": "mine"}}, "may not set the variable"),
        ({"env": {"A=B\n": "mine"}}, "may not set the variable"),
        ({"id": "a\n#SBATCH"}, "no id of an attempt"),
        ({"slots": slots("n1;reboot")}, "name that no host has"),
        ({"slots": slots("n1", memory=9_000_000)}, "not available"),
    ],
)
def test_what_slurm_would_refuse_is_invalid_at_launch(
    slurm: SlurmExecutor, shared: Path, change: dict[str, object], said: str
) -> None:
    with pytest.raises(Invalid, match=said):
        slurm.launch(replace(attempt(slots("n1"), HERE, shared), **change))  # type: ignore[arg-type]


def test_processes_on_two_nodes_know_where_to_meet(slurm: SlurmExecutor, shared: Path) -> None:
    program = "import os; print(os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'], os.environ['RANK'], flush=True)"
    asked = attempt(slots("n1", "n2"), program, shared, framework="torch")
    handle = slurm.launch(asked)
    assert over(slurm, handle).phase == SUCCEEDED
    said = [slurm.logs(handle, slot).lines for slot in (0, 1)]
    assert said == [(f"127.0.0.1 {rendezvous_port(asked.id)} {rank}",) for rank in (0, 1)]


def test_a_node_that_is_gone_is_no_fault_of_the_attempt(slurm: SlurmExecutor, shared: Path) -> None:
    with pytest.raises(Conflict, match="has no node n9"):
        slurm.launch(attempt(slots("n9"), HERE, shared))


def test_a_handle_that_nobody_knows(slurm: SlurmExecutor) -> None:
    for strange in ("1:root:1:/nowhere", "nobody", ""):
        assert slurm.poll([strange]) == [AttemptStatus(strange, UNKNOWN)]
        slurm.stop(strange, 1)
        slurm.checkpoint(strange)
        slurm.forget(strange)
        with pytest.raises(NotFound):
            slurm.logs(strange, 0)


def test_nodes_are_told_as_they_are(slurm: SlurmExecutor, slurm_server: SlurmServer) -> None:
    n1, n2 = slurm.capacity()
    assert (n1.amounts, [gpu.model for gpu in n1.devices], n1.labels["rack1"]) == (
        {"cpu": 4000, "memory": 2000},
        ["a100"] * 2,
        "true",
    )
    assert (n2.devices, n2.ready) == ((), True)
    assert [
        len(SlurmExecutor(f"{slurm_server.address}&partition={name}", {}).capacity()) for name in ("main", "none")
    ] == [2, 0]


def test_a_node_in_every_dialect() -> None:
    text = (
        "NodeName=g1 CPUAlloc=8 CPUTot=64 AvailableFeatures=(null) Gres=gpu:a100:2(S:0),gpu:a100_1g.5gb:3(S:1),nic:1 "
        "GresUsed=gpu:a100:1(IDX:1),gpu:a100_1g.5gb:2(IDX:2-3),nic:0 OS=Linux 6 #1 RealMemory=512000 AllocMem=100 "
        "State=MIXED+DRAIN Reason=bad fan CPUTot=1 [root@2026-01-01T00:00:00]\nNodeName=g2 State=IDLE* Gres=gpu:4\n"
    )
    g1, g2 = (to_node_info(node, [(2, 40, {1})]) for node in parse_records(text))
    assert [gpu.model for gpu in g1.devices] == ["a100", "a100", "a100_1g.5gb", "a100_1g.5gb", "a100_1g.5gb"]
    assert (g1.amounts, g1.taken, g1.taken_devices) == (
        {"cpu": 64000, "memory": 512000},
        {"cpu": 6000, "memory": 60},
        (2, 3),
    )
    assert (g1.ready, g2.ready, [gpu.model for gpu in g2.devices]) == (False, False, ["gpu"] * 4)


@pytest.mark.parametrize("told", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_lost_node_a_silent_controller_and_a_forgotten_job(shared: Path, told: bool) -> None:
    """Slurm finds out by itself after half a minute, or is told so by the site's own watch."""
    try:
        server = SlurmServer(min_job_age=2)
    except Missing as missing:
        pytest.skip(str(missing))
    with server:
        slurm = _executor(server)
        for name in ("first", "second", "third"):
            (shared / name).mkdir()
        early = slurm.launch(attempt(slots("n1"), HERE, shared / "first"))
        assert over(slurm, early).phase == SUCCEEDED
        handle = slurm.launch(attempt(slots("n1", "n2"), PATIENT, shared / "second"))
        wait_for_line(slurm, handle, 1, "here 1")
        server.lose_node("n2") if told else server.kill_node("n2")
        lost = over(slurm, handle)
        assert (lost.phase, lost.reason) == (LOST, "node fail")
        assert not slurm.capacity()[1].ready
        if not told:
            wait_until(lambda: early.split(":")[0] not in server.ask("squeue", "-t", "all", "-ho", "%A").stdout, 60)
            assert slurm.poll([early])[0].phase == SUCCEEDED
        server.kill()
        late = attempt(slots("n1"), HERE, shared / "third")
        # Each takes the nine seconds that Slurm's commands wait for their controller.
        asks = (lambda: slurm.launch(late), lambda: slurm.poll([handle]), slurm.capacity)
        for ask in asks[:1] if told else asks:
            with pytest.raises(Unavailable, match="does not answer"):
                ask()


def _executor(server: SlurmServer, **more: str) -> SlurmExecutor:
    us = pwd.getpwuid(os.geteuid()).pw_name
    return SlurmExecutor(server.address, {"user": us, **more})
