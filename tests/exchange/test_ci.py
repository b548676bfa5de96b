"""The recipes for build systems: every command in them can be typed, and the pipeline they describe runs."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from falaj.cli.argument_parsing import parse_arguments
from falaj.cli.cli_context import CliContext
from falaj.cli.operation_commands import (
    collect_arguments,
    create_operation_parser,
    list_operations_and_commands,
    to_typed_name,
)
from tests.people import enroll, enroll_tenant
from tests.replica import Replica
from tests.servers.oidc import OidcServer

PAGE = (Path(__file__).parents[2] / "docs/ci.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)


def commands() -> list[list[str]]:
    """Every `falaj …` of the page, as the words a shell would pass."""
    texts = [block for language, block in BLOCKS if language in ("", "yaml")]
    texts += re.findall(r"`(falaj [^`]+)`", PAGE)
    found = []
    for text in texts:
        whole = text.replace("\\\n", " ")
        starts = [match.start() for match in re.finditer(r"(?<![\w-])falaj (?=[a-z]+ [a-z])", whole)]
        for start in starts:
            lexer = shlex.shlex(whole[start:], posix=True, punctuation_chars="|)>\n")
            lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
            words: list[str] = []
            for word in lexer:
                if set(word) <= set("|)>\n"):
                    break
                words.append(word)
            found.append(words)
    return found


def test_every_command_can_be_typed() -> None:
    seen = set()
    for words in commands():
        _, desk, word, *rest = words
        verb = next((verb for verb in list_operations_and_commands(desk) if to_typed_name(verb) == word), None)
        assert verb is not None, words
        _, found = parse_arguments(CliContext(desk), create_operation_parser(desk, verb), rest, is_plain=False)
        collect_arguments(desk, verb, found)
        seen.add(f"{desk} {word}")
    assert seen >= {
        "people trust", "people exchange", "people distrust", "catalog publish", "catalog promote", "catalog verify",
        "catalog attest", "catalog push", "audit log",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["jobs", "release"])
def test_the_files_are_whole(name: str) -> None:
    files = [yaml.safe_load(block) for language, block in BLOCKS if language == "yaml"]
    assert len(files) == 2
    assert any(name in file for file in files)


def test_the_pipeline_runs(oidc_provider: OidcServer, tmp_path: Path) -> None:
    """A build system's token, exchanged; a model published, verified, and waiting for people in production."""
    server = oidc_provider
    with Replica(tmp_path / "house", {"FALAJ_FEDERATION": server.issuer}) as replica:
        boss = replica.as_(enroll_tenant(replica.as_(), "bank", "fatima"))
        trusted = {
            "issuer": server.issuer, "audience": server.audience, "subject": server.service_client, "zone": "home",
            "projects": ["fraud"], "jurisdiction": "AE",
        }  # fmt: skip
        sami, badr = (
            replica.as_(enroll(boss, name, (role,)))
            for name, role in {"sami": "security-officer", "badr": "approver"}.items()
        )
        waiting = sami.people.trust("gitlab", trusted)
        assert waiting.state == "waiting"
        badr.approvals.give(waiting.approval)
        assert sami.people.trust("gitlab", trusted).state == "trusted"
        env = {name: value for name, value in os.environ.items() if not name.startswith("FALAJ_")}
        env |= {"FALAJ_URL": replica.url, "FALAJ_CACHE": str(tmp_path / "cache"), "XDG_CONFIG_HOME": str(tmp_path)}

        def falaj(*words: str) -> dict[str, str]:
            command = [sys.executable, "-m", "falaj", *words, "--json"]
            done = subprocess.run(command, env=env, check=False, capture_output=True, text=True, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            found: dict[str, str] = json.loads(done.stdout)
            return found

        token = ("--tenant", "bank", "--trust", "gitlab", "--token", server.service_token())
        env["FALAJ_TOKEN"] = falaj("people", "exchange", *token)["token"]
        (tmp_path / "model").mkdir()
        (tmp_path / "model/config.json").write_text("{}")
        label = ("--label", "NONE", "--purpose", "fraud")
        ref = falaj("catalog", "publish", "model:fraud/scorer", "./model", *label)["ref"]
        assert ref == "model:fraud/scorer@v1"
        falaj("catalog", "verify", ref)
        asked = falaj("catalog", "promote", ref, "production", "--reason", "build 7")
        assert (asked["state"], "falaj approvals" in asked["next"]) == ("waiting", True)
        omar = replica.as_(enroll(boss, "omar", ("auditor",), jurisdiction="AE"))
        assert server.service_client in str(omar.audit.log(verb="people.exchange"))
