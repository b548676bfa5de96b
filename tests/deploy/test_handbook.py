"""docs/operate is true: alerts and runbooks belong together, every command is one, links lead somewhere."""

import argparse
import io
import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml

from falaj.cli import main
from falaj.cli.argument_parsing import CommandParser
from falaj.cli.operation_commands import collect_arguments as really_given
from tests.deploy.test_dashboards import NAME, queries, rules
from tests.town import Town

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/operate").glob("*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`(falaj [a-z][^`]*)`(?!`)")


class Parsed(Exception):
    """A command was understood; it is not run."""


def commands(page: Path) -> Iterator[str]:
    """Every `falaj …` of a page: lines of shell blocks, and what stands in the text with all its arguments."""
    text = page.read_text()
    for kind, block in BLOCK.findall(text):
        lines = block.replace("\\\n", " ").splitlines() if kind in ("sh", "bash") else []
        parts = [part.strip() for line in lines for part in re.split(r"&&|[|>;]", line)]
        yield from (part for part in parts if part.startswith("falaj "))
    yield from INLINE.findall(BLOCK.sub("", text))


@pytest.fixture
def understood(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command up to where it would act."""

    def parsed(self: CommandParser, *words: Any, **more: Any) -> Any:
        found = argparse.ArgumentParser.parse_args(self, *words, **more)
        if self.prog != "falaj":  # the flags before the command
            raise Parsed
        return found

    def given(*words: Any) -> Any:
        really_given(*words)
        raise Parsed

    monkeypatch.setattr(CommandParser, "parse_args", parsed)
    monkeypatch.setattr("falaj.cli.operation_commands.collect_arguments", given)

    def ask(command: str) -> str:
        said = io.StringIO()
        try:
            with redirect_stderr(said), redirect_stdout(said):
                main(shlex.split(command, comments=True)[1:])
        except Parsed:
            return ""
        except SystemExit:
            pass
        return said.getvalue() or "it ended without being parsed"

    return ask


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_is_one(understood: Any, page: Path) -> None:
    for command in commands(page):
        words = shlex.split(command, comments=True)
        in_text = len(words) <= 3 and f"`{command}`" in page.read_text()
        said = understood(command) if not in_text else understood(f"{command} --help")
        assert not said or (in_text and said.startswith("usage:")), f"{command}\n{said}"


def test_a_command_that_is_none_is_found_out(understood: Any) -> None:
    assert understood("falaj doctor --at x") == ""
    assert understood("falaj jobs why job:fraud/train-1  # why") == ""
    for wrong in ("falaj jobs why", "falaj jobs whine job:a/b", "falaj doctor --hurry", "falaj jobs list --colour red",
                  "falaj mend", "falaj jobs why job:a/b job:a/c", "falaj store drill --cup 1"):  # fmt: skip
        assert understood(wrong), wrong


def test_alerts_and_runbooks_belong_together() -> None:
    text = (ROOT / "docs/operate/runbooks.md").read_text()
    sections = dict(re.findall(r"^## (Falaj\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    alerts = {rule["alert"]: rule for rule in rules() if "alert" in rule}
    assert set(sections) == set(alerts)
    for name, rule in alerts.items():
        assert rule["annotations"]["runbook_url"] == f"docs/operate/runbooks.md#{name.lower()}"
        for part in ("Means", "Users see", "Mend", "After", "Prevent", "Call"):
            assert f"*{part}.*" in sections[name], (name, part)
        assert re.search(r"```sh\n.*falaj ", sections[name], re.DOTALL), name


def test_objectives_are_told_as_they_are_kept() -> None:
    text = (ROOT / "docs/operate/slo.md").read_text()
    budgets = {
        rule["labels"]["slo"]: float(rule["expr"].removeprefix("vector(").removesuffix(")"))
        for rule in rules()
        if rule.get("record") == "falaj:slo_budget:ratio"
    }
    told = dict(re.findall(r"^\| `([a-z-]+)` \| ([\d.]+) %", text, re.MULTILINE))
    assert {name: pytest.approx(100 * (1 - budget)) for name, budget in budgets.items()} == {
        name: float(value) for name, value in told.items()
    }


def test_every_metric_named_is_one_that_is_asked_for_or_told() -> None:
    known = {name for expr in queries().values() for name in NAME.findall(expr)}
    source = "".join(
        path.read_text() for room in ("api", "gateway", "infer") for path in (ROOT / f"src/falaj/{room}").glob("*.py")
    )
    for page in PAGES:
        for name in re.findall(r"`(falaj_[a-z_]+[a-z])(?:\{[^`]*)?`", page.read_text()):
            base = re.sub("_(bucket|sum|count)$", "", name)
            made = re.sub(r"_(cpu_cores|memory_bytes|gpus)$", "_", name)
            assert name in known or base in source or made in source, (page.name, name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([\w-]+))?\)", BLOCK.sub("", page.read_text())):
        if target.startswith("http"):
            continue
        to = (page.parent / target).resolve() if target else page
        assert to.exists(), (page.name, target)
        if anchor and to.suffix == ".md":
            heads = re.findall(r"^#+ (.*)$", to.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in anchors, (page.name, target, anchor)


def test_rules_of_a_rendering_are_these(tmp_path: Path) -> None:
    assert main(["deploy", "render", "--profile", "enterprise", "--zone", "ae-dxb-1", "--out", str(tmp_path / "d"),
                 "--set", "host=ml.bank.example"]) == 0  # fmt: skip
    made = yaml.safe_load((tmp_path / "d/kubernetes/components/monitoring/rules.yaml").read_text())
    assert [rule for group in made["spec"]["groups"] for rule in group["rules"]] == rules()


def test_the_architecture_is_the_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/operate/architecture.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    house = next(one for one in project["tool"]["importlinter"]["contracts"] if one["id"] == "house")
    floors = "\n".join(re.sub(r"[()]", "", layer) for layer in house["layers"])
    assert f"```text\n{floors}\n```" in text
    ports = dict(re.findall(r"^\| (\w+) \| (`.*)$", text.partition("| port |")[2].partition("\n\n")[0], re.MULTILINE))
    groups = {name.removeprefix("falaj."): set(found) for name, found in project["project"]["entry-points"].items()}
    assert {port: set(re.findall(r"`(\w+)`", line)) for port, line in ports.items()} == {
        port: groups[port] for port in ports
    }
    assert set(groups) - set(ports) == {"remote", "authority"}
    for module in re.findall(r"`python -m falaj\.(\w+)`", text):
        assert (ROOT / f"src/falaj/{module}/__main__.py").is_file(), module
    monkeypatch.setenv("FALAJ_BACKUP_TO", f"dir:{tmp_path}/backups")
    town = Town(tmp_path / "house")
    town.house.start_loops()
    at_work = {one.loop for one in town.house.turned()}
    town.house.stop_loops()
    town.close()
    told = text.partition("fencing token: ")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([\w-]+)`", told)) == at_work
