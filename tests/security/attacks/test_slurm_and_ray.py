"""Threat: a job on a real Slurm or Ray cluster reads, changes or ends the job of another person, or becomes root.

The probes also run as the victim's own Unix user, where they must succeed. Ray separates nothing: there they succeed,
and the platform refuses to put two tenants on one cluster.
"""

import json
import os
import pwd
import subprocess
from pathlib import Path
from typing import Any

import pytest

import falaj
from falaj.backends.ray import RayExecutor
from falaj.backends.slurm import SlurmExecutor
from falaj.core.errors import Invalid
from falaj.core.executor import RUNNING, SUCCEEDED
from tests.backends.attempts import PATIENT, attempt, over, slots, wait_for_line
from tests.servers.ray import RayServer
from tests.servers.slurm import SlurmServer
from tests.town import refusal

CANARY = "kanarienvogel-7193"
PROBE = """
import ctypes, glob, json, os, signal, subprocess, sys
FOLDER, JOB, SITE, UID = {folder!r}, {job!r}, {site!r}, {uid!r}
CANARY = "".join({canary!r}).encode()
SHARED = os.path.dirname(FOLDER)
done = []

def probe(name, act):
    try:
        if act():
            done.append(name)
    except OSError:
        pass

def read(path):
    with open(path, "rb") as file:
        return file.read()

def write(path):
    with open(path, "w"):
        return True

def run(*command):
    return subprocess.run(command, capture_output=True, timeout=30, stdin=subprocess.DEVNULL)

def below(folder):
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            try:
                if os.path.isfile(path) and CANARY in read(path):
                    return path
            except OSError:
                pass

victims = [pid for pid in os.listdir("/proc") if pid.isdigit() and os.path.exists("/proc/" + pid)
           and os.stat("/proc/" + pid).st_uid == UID and int(pid) not in (os.getpid(), os.getppid())]
assert victims, "the victim runs"
probe("list its folder", lambda: os.listdir(FOLDER))
for name in ("context.json", "slurm.sh", "slurm-slot.sh", "slot-0.log", "slot-0.pid", "slurm.log", "falaj-worker.pyz"):
    probe("read " + name, lambda: read(FOLDER + "/" + name))
probe("write into its folder", lambda: write(FOLDER + "/planted"))
probe("put a folder beside it", lambda: os.mkdir(SHARED + "/try-planted") is None)
probe("move its folder", lambda: JOB and os.rename(FOLDER, FOLDER + "-moved") is None)
for pid in victims:
    probe("read the environment", lambda: CANARY in read("/proc/" + pid + "/environ"))
    probe("open the memory", lambda: os.close(os.open("/proc/" + pid + "/mem", os.O_RDONLY)) is None)
    probe("list open files", lambda: os.listdir("/proc/" + pid + "/fd"))
    probe("follow where it stands", lambda: os.listdir("/proc/" + pid + "/cwd"))
    probe("signal", lambda: os.kill(int(pid), 0) is None)
for path in glob.glob("/proc/[0-9]*/cmdline"):
    probe("read a secret in a command line", lambda: CANARY in read(path))
probe("find a secret in the site's files", lambda: below(SITE))
if JOB:
    probe("read its script from Slurm", lambda: run("scontrol", "write", "batch_script", JOB, "-").stdout)
    probe("read a secret from Slurm", lambda: CANARY in run("scontrol", "show", "job", "-d", JOB).stdout)
    probe("enter its allocation", lambda: run("srun", "--jobid=" + JOB, "--overlap", "--mem=0", "id").stdout)
    probe("rename it", lambda: not run("scontrol", "update", "jobid=" + JOB, "name=stolen").returncode)
    probe("put it back into the queue", lambda: not run("scontrol", "requeue", JOB).returncode)
    probe("end it", lambda: not run("scancel", JOB).returncode)
print(json.dumps(sorted(set(done))), flush=True)
"""


def probe_of(folder: Path, job: str, site: Path, user: str) -> str:
    return PROBE.format(folder=str(folder), job=job, site=str(site), uid=pwd.getpwnam(user).pw_uid, canary=list(CANARY))


def test_job_on_slurm_reaches_nothing_of_another_person(
    request: pytest.FixtureRequest, slurm_server: SlurmServer, shared: Path, unix_user: str, other_unix_user: str
) -> None:
    executor = SlurmExecutor(slurm_server.address, {})
    secrets = {"secret_env": {"KEY": CANARY}, "platform_env": {"FALAJ_TOKEN": f"{CANARY}-token"}}
    victim = attempt(slots("n1", memory=64), PATIENT, shared / "victim", user=unix_user, **secrets)
    running = executor.launch(victim)
    request.addfinalizer(lambda: (executor.stop(running, 0), over(executor, running)))
    wait_for_line(executor, running, 0, "here 0")

    def reached_by(user: str, folder: str, job: str) -> list[str]:
        program = probe_of(shared / "victim", job, slurm_server.folder, unix_user)
        handle = executor.launch(attempt(slots("n1", memory=64), program, shared / folder, user=user))
        assert over(executor, handle).phase == SUCCEEDED, executor.logs(handle, 0)
        reached: list[str] = json.loads(executor.logs(handle, 0).lines[-1])
        return reached

    assert reached_by(other_unix_user, "attacker", running.partition(":")[0]) == []
    assert executor.poll([running])[0].phase == RUNNING
    assert executor.logs(running, 0).lines == ("here 0",)
    own = set(reached_by(unix_user, "own", ""))
    assert {"list its folder", "read context.json", "read slot-0.log", "read the environment", "signal"} <= own
    own = set(reached_by(unix_user, "own-job", running.partition(":")[0]))
    assert {"read its script from Slurm", "enter its allocation", "end it"} <= own


def test_owner_of_an_attempt_is_given_no_file_outside_of_it(
    slurm_server: SlurmServer, shared: Path, unix_user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The platform is root and gives the folder away. As soon as its part `code` is theirs, another process of the user
    exchanges it for a link to a folder of the system that has a file of the same name."""
    folder, system = shared / "attempt", shared / "system"
    for path in (folder, folder / "code", system):
        path.mkdir(mode=0o700)
        (path / "shadow").touch(0o600)
    exchange = f"test -O {folder}/code && mv {folder}/code {folder}/real && ln -s {system} {folder}/code"
    exchanged = []

    def after(give: Any) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> None:
            give(*arguments, **options)
            account = pwd.getpwnam(unix_user)
            done = subprocess.run(["/bin/sh", "-c", exchange], user=account.pw_uid, group=account.pw_gid, check=False)
            exchanged.append(done.returncode == 0)

        return wrapped

    with monkeypatch.context() as patched:
        for name in ("chown", "fchown"):
            patched.setattr(os, name, after(getattr(os, name)))
        executor = SlurmExecutor(slurm_server.address, {})
        handle = executor.launch(attempt(slots("n1", memory=64), "pass", folder, user=unix_user))
    over(executor, handle)
    assert any(exchanged), "the user could exchange it in the end"
    assert (system / "shadow").stat().st_uid == 0
    assert (folder / "shadow").owner() == (folder / "real" / "shadow").owner() == unix_user


RAY_PROBE = """
import glob, json, os, urllib.request
own = sorted(name for name in os.environ if name.startswith("RAY_AUTH_"))
found = {{"own": own, "token": "", "secret": "", "log": ""}}
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        variables = dict(text.partition("=")[::2] for text in open(path, errors="replace").read().split("\\0"))
    except OSError:
        continue
    found["token"] = found["token"] or variables.get("RAY_AUTH_TOKEN", "")
    if "".join({canary!r}) in variables.get("FALAJ_SECRET_ENV", ""):
        found["secret"] = "read"
call = urllib.request.Request({dashboard!r} + "/api/jobs/{victim}/logs")
call.add_header("Authorization", "Bearer " + found["token"])
with urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(call, timeout=60) as answer:
    found["log"] = json.load(answer)["logs"]
print(json.dumps(found), flush=True)
"""


@pytest.mark.slow  # Ray alone takes half a minute to start three nodes
def test_ray_separates_nothing_and_the_platform_refuses_a_second_tenant(
    request: pytest.FixtureRequest, ray_server: RayServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("A_RAY_TOKEN", ray_server.token)
    address = f"{ray_server.address}?token=env:A_RAY_TOKEN"
    executor = RayExecutor(address, {})
    request.addfinalizer(executor.close)
    victim = attempt(slots("127.0.0.3", cpu=500, memory=64), PATIENT, secret_env={"KEY": CANARY})
    running = executor.launch(victim)
    request.addfinalizer(lambda: (executor.stop(running, 0), over(executor, running)))
    wait_for_line(executor, running, 0, "here 0")
    dashboard = ray_server.address.removeprefix("ray:")
    program = RAY_PROBE.format(canary=list(CANARY), dashboard=dashboard, victim=victim.id)
    handle = executor.launch(attempt(slots("127.0.0.3", cpu=500, memory=64), program))
    assert over(executor, handle).phase == SUCCEEDED, executor.logs(handle, 0)
    reached = json.loads(executor.logs(handle, 0).lines[-1])
    # The driver keeps the cluster's token from the job's own environment; the cluster's processes have it in theirs.
    assert reached["own"] == []
    assert (reached["token"], reached["secret"]) == (ray_server.token, "read")
    assert "here 0" in reached["log"]

    with falaj.connect(str(tmp_path / "home")) as client:
        for tenant in ("bank", "clinic"):
            client.people.add_tenant(tenant, "fatima")
        for tenants in ("bank,clinic", "*"):
            more = {"tenants": tenants}
            assert isinstance(refusal(lambda more=more: client.clusters.add("rays", address, more=more)), Invalid)
        client.clusters.add("rays", address, more={"tenants": "bank"})
        assert client.clusters.show("rays").unsandboxed == "cluster"
    (tmp_path / "home" / "falaj.toml").write_text('sandbox = "required"\n')
    with falaj.connect(str(tmp_path / "home")) as client:
        assert "Ray separates nothing" in client.clusters.check("rays").problem
