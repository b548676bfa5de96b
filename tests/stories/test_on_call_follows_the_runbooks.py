"""on_call_follows_the_runbooks: commands of the runbooks, typed as they stand there, by the accounts that they name.

Names of the examples stand for things of this installation: its cluster, a node of it, a job of the bank. Commands
about endpoints, incidents, hooks and views are typed in test_on_call_mends_an_endpoint.py.
"""

import os
import shlex
import subprocess
from functools import partial
from pathlib import Path

import pytest

import falaj
from falaj.jobs.records import JobSpec
from tests.deploy.test_runbook_rights import ADMINISTRATORS, commands, machine_commands, operation_of, runs_in_tenant
from tests.jobs.lab import until
from tests.people import enroll, enroll_tenant
from tests.replica import FALAJ, Replica

ELSEWHERE = ("endpoint:", "incident:", "hook:", "view:")
INCOMPLETE = {
    "falaj audit prove", "falaj clusters tune", "falaj jobs bulk", "falaj jobs cancel", "falaj jobs simulate",
    "falaj jobs change", "falaj monitor replay", "falaj serve load-test", "falaj serve show",
}  # fmt: skip
"""Named in a sentence, without what they need."""


ELSEWHERE_TESTED = {"falaj deploy check deployment", "falaj doctor"}
"""The first needs what `deploy render` wrote (tests/deploy/test_check.py); of the second the page names no folder."""
BUSY = "a backup is being made"
"""What a second backup hears while the server makes one: it is asked for again, as the hint says."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_on_call_follows_the_runbooks(tmp_path: Path) -> None:
    with Replica(tmp_path / "house", {"FALAJ_BACKUP_TO": f"dir:{tmp_path}/backups"}) as replica:
        admin = replica.as_()
        until(admin.store.backups, bool)  # the server makes the first by itself
        boss_token = enroll_tenant(admin, "bank", "fatima")
        boss = replica.as_(boss_token)
        tokens = {
            False: enroll(admin, "on-call", ("operator", "auditor")),
            True: enroll(boss, "on-call-bank", ("operator",)),
        }
        admin.clusters.change("local", {"tenants": "bank", "address": "process:?nodes=1&cpus=1000"})
        replica.as_(enroll(boss, "amal", ("data-scientist",), jurisdiction="AE")).jobs.add(
            "job:fraud/train-1", JobSpec(("sleep", "600"))
        )
        node = admin.clusters.nodes()[0].node
        admin.people.add("prometheus", ("auditor",), service=True, projects=("metrics",))
        names = {
            "gpu-hall/node07": node, "gpu-hall": "local", " hall ": " local ",
            "people add on-call": "people add second",
        }  # fmt: skip
        failed = {}
        for command in commands():
            if command in INCOMPLETE or any(kind in command for kind in ELSEWHERE):
                continue
            typed = command
            for example, name in names.items():
                typed = typed.replace(example, name)
            token = tokens[runs_in_tenant(command)]
            if operation_of(command) in ADMINISTRATORS:
                token = boss_token if "on-call-bank" in command else replica.token
            environment = {**os.environ, "FALAJ_TOKEN": token}
            words = [*FALAJ, *shlex.split(typed)[1:], "--at", replica.url]
            done = until(partial(_run, words, environment), lambda done: BUSY not in done.stderr)
            if done.returncode:
                failed[command] = done.stderr
        assert failed == {}
        with falaj.connect(replica.url, token=tokens[False]) as on_call:
            assert [row.ref.name for row in on_call.jobs.overview().jobs] == ["train-1"]
        _run_on_the_machine(replica, tmp_path / "house", tokens[False])


def _run_on_the_machine(replica: Replica, home: Path, token: str) -> None:
    """Commands that ask the machine how it is: `status` with the account of the house, others as the machine's user."""
    backups, failed = {"FALAJ_BACKUP_TO": f"dir:{home.parent}/backups"}, {}
    for command in machine_commands():
        if command in ELSEWHERE_TESTED:
            continue
        typed = command.replace("/var/lib/falaj", str(home)).replace("https://127.0.0.1:8470", replica.url)
        words = [*FALAJ, *shlex.split(typed)[1:]]
        if command == "falaj status":
            words += ["--at", replica.url]
        elif "--at" not in typed and "pulse" not in typed:
            words += ["--at", str(home)]
        done = _run(words, {**os.environ, **backups, "FALAJ_TOKEN": token})
        if done.returncode:
            failed[command] = done.stdout + done.stderr
    assert failed == {}


def _run(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
