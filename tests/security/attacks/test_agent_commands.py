"""Threat: a job sets variables (PYTHONPATH, PATH, LD_PRELOAD, …) or plants files so that the platform's own commands on
an agent run its code beside the zone's keys. Those commands start from surroundings that no submitter can change."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import falaj
from falaj.api.http_server import create_http_server
from falaj.core.event import generate_id
from tests.agent.ground import until
from tests.jobs.lab import Lab
from tests.town import Town
from tests.worker.slot import SlotUnderTest

CANARY = "the job's code runs here"
HOSTILE = {
    "PYTHONPATH": "code:../code:.", "PYTHONHOME": "code", "PYTHONSTARTUP": "code/sitecustomize.py",
    "PYTHONUSERBASE": "code", "PYTHONINSPECT": "1", "PYTHONBREAKPOINT": "sitecustomize.run",
    "PATH": "code:../code:/usr/bin:/bin", "LD_PRELOAD": "code/evil.so", "LD_LIBRARY_PATH": "code",
    "LD_AUDIT": "code/a.so", "BASH_ENV": "code/evil.sh", "ENV": "code/evil.sh", "GIT_SSH_COMMAND": "code/evil.sh",
    "GIT_CONFIG_GLOBAL": "code/git", "HOME": "code", "TMPDIR": "code", "SSL_CERT_FILE": "code/ca.pem", "HTTPS_PROXY": "http://127.0.0.1:9",
}  # fmt: skip


@dataclass
class Zone:
    """An agent in a process of its own, and the platform as amal sees it through the agent's door."""

    name: str
    home: Path
    amal: Any
    process: "subprocess.Popen[bytes]"

    def run(self, code: Path, program: str, **more: Any) -> tuple[Any, str]:
        """A job of a shell script beside files that its author planted; how it ended, and what its log says."""
        (code / "work.sh").write_text(program)
        spec = {"command": "sh work.sh", "cpus": 0.1, "memory": "256MiB", "zone": self.name, "code": "", **more}
        spec["code"] = str(self.amal.catalog.publish(f"code:fraud/c-{generate_id()}", str(code), zone=self.name).ref)
        (code.parent / "job.json").write_text(json.dumps(spec))
        lab = Lab(code.parent, self.amal)
        job = lab.done(self.amal.jobs.submit(str(code.parent / "job.json"), project="fraud"))
        return job, "\n".join(lab.lines(job))


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Town, Any, Path]]:
    home = tmp_path_factory.mktemp("agents")
    prepared = Town(home / "town")
    server, _ = create_http_server(prepared.house, listen="127.0.0.1:0", own_ca=True)
    ready = threading.Event()
    thread = threading.Thread(target=server.go, args=(lambda _url: ready.set(),), daemon=True)
    thread.start()
    assert ready.wait(30)
    with prepared.house.working():
        yield prepared, server, home
    server.should_exit = True
    thread.join(30)
    prepared.close()


@pytest.fixture(scope="module", params=["process:", "process:?sandbox=required"], ids=["best", "required"])
def zone(town: tuple[Town, Any, Path], request: pytest.FixtureRequest) -> Iterator[Zone]:
    made, server, root = town
    name = f"zone-{'strict' if 'required' in request.param else 'usual'}"
    admin, home = made.as_("admin"), root / name
    admin.zones.add(name, "AE-DU", "AE", max_class=3, store=f"agent:{name}", more={"operator": "Bank"})
    admin.clusters.add(f"in-{name}", f"agent:{name}", zone=name)
    home.mkdir()
    words = [sys.executable, "-m", "falaj", "--ca", f"{made.house.settings.home}/tls/ca.pem", "agent", "--json"]
    words += ["--join", server.url, "--zone", name, "--home", str(home), "--door", "0", "--executor", request.param]
    env = {**os.environ, "FALAJ_JOIN": str(admin.agents.invite(name).token), "FALAJ_TOKEN": ""}
    with (home / "agent.log").open("wb") as log:
        process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        ready_line = next((line for line in process.stdout if line.startswith(b'{"ready"')), b"")
        assert ready_line, (home / "agent.log").read_text()
        until(lambda: [agent for agent in admin.agents.list() if agent.zone == name and agent.state == "connected"])
        with falaj.connect(json.loads(ready_line)["door"], token=made.tokens["amal"]) as amal:
            yield Zone(name, home, amal, process)
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_variables_of_a_job_reach_no_command_of_the_platform(zone: Zone, tmp_path: Path) -> None:
    code, canary = tmp_path / "code", zone.home / "canary"
    code.mkdir()
    planted = f"import os\nos.write(2, b'{CANARY}\\n')\nopen({str(canary)!r}, 'w').write('x')\n"
    for name in ("sitecustomize.py", "usercustomize.py", "falaj.py", "json.py", "os.py"):
        (code / name).write_text(planted)
    for name in ("python", "python3", "evil.sh", "mkdir", "git"):
        (code / name).write_text(f"#!/bin/sh\necho '{CANARY}' >&2\necho x > {canary}\n")
        (code / name).chmod(0o755)
    (code / "falaj.toml").write_text('home = "/tmp/elsewhere"\n')
    program = f"""
unset LD_PRELOAD LD_AUDIT
echo done > ../outputs/result/answer.txt
for place in .. ../inputs ../transfer ../outputs/result; do cp -r ./* $place/ 2>/dev/null; done
rm -rf ../outputs/result/*.py ../outputs/result/python* ; echo done > ../outputs/result/answer.txt; ls {zone.home}
true
"""
    job, log = zone.run(code, program, env=HOSTILE, outputs={"result": f"dataset:fraud/r-{zone.name}"})
    assert job.state == "succeeded", (job.note, log)
    assert CANARY not in log
    assert not canary.exists()
    assert [path.name for path in zone.home.rglob("canary")] == []
    files = zone.amal.catalog.show(job.outputs["result"])
    assert files.ref == job.outputs["result"]


def test_link_in_an_output_leads_the_publisher_nowhere(zone: Zone, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    keys = sorted((zone.home / "keys").glob("*.key")) or [zone.home / "agent.key"]
    secret = (zone.home / "agent.key").read_bytes()
    assert b"PRIVATE KEY" in secret
    program = f"""
cd ../outputs/result
ln -s {zone.home / "agent.key"} key.pem
ln -s {keys[0]} root.txt
ln -s {zone.home} home
ln -s ../../context.json context.json
echo good > good.txt
"""
    out = f"dataset:fraud/l-{zone.name}"
    job, log = zone.run(code, program, outputs={"result": out})
    if job.state == "succeeded":
        folder = tmp_path / "published"
        zone.amal.catalog.checkout(job.outputs["result"], str(folder), paths=("good.txt",))
        assert [path.name for path in folder.iterdir() if not path.name.startswith(".")] == ["good.txt"]
    else:
        assert "publishing" in job.note, (job.note, log)
    assert b"PRIVATE KEY" not in log.encode()


def test_own_commands_find_the_launchers_variables_alone(tmp_path: Path) -> None:
    """What the launcher was started with is trusted; what the document says that the submitter set is not."""
    facts = "[dict(os.environ), sys.path, sys.flags.isolated, os.getcwd()]"
    program = f"import json, os, sys; print(json.dumps({facts}), file=sys.stderr)"
    slot = SlotUnderTest(
        tmp_path, "true", stage=[["-c", program]], after=[["-c", program]],
        env={"FALAJ_SECRET_ENV": json.dumps(HOSTILE), "FALAJ_TOKEN": "t", "FALAJ_URL": "http://127.0.0.1:1"},
    )  # fmt: skip
    assert slot.end()["code"] == 0
    lines = [json.loads(line) for line in slot.log().splitlines() if line.startswith("[")]  # the linker complains, too
    assert len(lines) == 2
    for env, path, isolated, folder in lines:
        assert isolated == 1
        assert folder == str(tmp_path / "transfer")
        assert not [place for place in path if place.startswith(str(tmp_path)) or place in ("", ".")]
        assert not [name for name, value in HOSTILE.items() if env.get(name) == value]
        assert "FALAJ_SECRET_ENV" not in env
        assert (env["FALAJ_TOKEN"], env["HOME"]) == ("t", str(tmp_path / "transfer"))


def test_submitters_variables_reach_the_processes_and_ours_win(tmp_path: Path) -> None:
    program = "import json, os; print(json.dumps(dict(os.environ)))"
    secrets = {"B": "2", "FALAJ_TOKEN": "mine", "FALAJ_JOB": "job:other/one", "FALAJ_INPUT_ROWS": "/etc"}
    slot = SlotUnderTest(
        tmp_path, sys.executable, "-c", program, inputs={"rows": str(tmp_path / "rows")},
        env={"FALAJ_SECRET_ENV": json.dumps(secrets), "FALAJ_TOKEN": "t"},
    )  # fmt: skip
    assert slot.end()["code"] == 0
    env = json.loads(slot.log())
    assert (env["B"], env["FALAJ_TOKEN"], env["FALAJ_JOB"]) == ("2", "t", "job:p/n")
    assert env["FALAJ_INPUT_ROWS"] == str(tmp_path / "rows")
