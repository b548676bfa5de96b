"""Every command of a runbook may be run by the account that the runbooks name for it, as the guard itself says."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.core.client_command import CLIENT_COMMAND_GROUP
from falaj.services import SERVICES
from tests.people import enroll
from tests.town import Town

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "runbooks.md"
TENANT_KINDS = ("endpoint:", "incident:", "hook:", "job:", "view:", "flow:")
TENANT_DESKS = ("serve", "monitor", "flows", "features")
"""Desks whose lists are of a tenant's own things."""
ADMINISTRATORS = {"people.add", "people.token"}
"""Made once, or named as an administrator's in the text."""
OWNERS = {"features.materialize", "jobs.change", "monitor.report", "serve.load_test", "serve.logs"}
"""Named as the owner's in the text."""
BEHIND = {
    "audit.findings": ("audit.log",),
    "jobs.bulk": ("jobs.overview", "jobs.control"),
    "jobs.report": ("jobs.usage", "jobs.history"),
    "jobs.simulate": ("jobs.history",),
    "monitor.replay": ("monitor.windows",),
    "monitor.report": ("monitor.figures",),
}
"""The operations that a composite command of the client calls."""


def commands() -> list[str]:
    """Every command of the page that calls a service of the platform."""
    return [line for line in all_commands() if _desk(line) in SERVICES]


def machine_commands() -> list[str]:
    """Every other command of the page: what is run on the machine, or asks it how it is."""
    return [line for line in all_commands() if _desk(line) not in SERVICES]


def all_commands() -> list[str]:
    """Every `falaj` command of the page, from blocks and from running text."""
    text = PAGE.read_text()
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    lines = [line.partition("  #")[0].strip() for line in blocks.splitlines()]
    lines += re.findall(r"`(falaj [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return sorted({line for line in lines if line.startswith("falaj ") and not _desk(line).startswith("-")})


def _desk(line: str) -> str:
    return line.split()[1]


def operation_of(line: str) -> str:
    """The service and operation of a command."""
    words = shlex.split(line.replace("…", ""))
    return f"{words[1]}.{words[2].replace('-', '_')}"


def runs_in_tenant(command: str) -> bool:
    """True when the page has the account of the tenant run a command, and not the one of the house."""
    operation = operation_of(command)
    own = operation.partition(".")[0] in TENANT_DESKS or operation == "jobs.list"
    return own or any(kind in command for kind in TENANT_KINDS)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    town = Town(tmp_path_factory.mktemp("runbooks") / "town")
    town.tokens["on-call"] = enroll(town.as_("admin"), "on-call", ("operator", "auditor"))
    town.tokens["on-call-bank"] = enroll(town.as_("fatima"), "on-call-bank", ("operator",))
    yield town
    town.close()


@pytest.mark.parametrize("command", commands())
def test_the_account_that_is_named_may_run_the_command(town: Town, command: str) -> None:
    operation = operation_of(command)
    if operation in ADMINISTRATORS | OWNERS:
        return
    desk, verb = operation.split(".")
    known = SERVICES[desk].groups.get(verb, CLIENT_COMMAND_GROUP)
    operations = BEHIND[operation] if known == CLIENT_COMMAND_GROUP else (operation,)
    account = town.as_("on-call-bank" if runs_in_tenant(command) else "on-call")
    denied = [told.reason for told in account.policy.may(operations) if not told.allowed] if operations else []
    assert denied == [], f"{command}: {denied}"


def test_accounts_on_call_read_no_data(town: Town) -> None:
    asked = ("store.get", "catalog.open", "jobs.logs", "serve.logs", "traces.show", "jobs.add", "catalog.begin")
    for name in ("on-call", "on-call-bank"):
        assert [told.action for told in town.as_(name).policy.may(asked) if told.allowed] == []
