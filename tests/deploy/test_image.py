"""The Dockerfile and the compose file, parsed and held to rules. No engine is needed, and none builds them here."""

import json
import re
from typing import Any

import jsonschema
import pytest
import yaml

from falaj.deploy.rendering import render_site
from falaj.deploy.site import PROFILES, DeploymentSite

KNOWN = {"ARG", "FROM", "COPY", "RUN", "ENV", "LABEL", "WORKDIR", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"}
KNOWN |= {"ENTRYPOINT", "CMD"}
TEXTS = {"type": "array", "items": {"type": "string"}}


def instructions(text: str) -> list[tuple[str, str]]:
    """As a builder reads them: comments gone, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    pairs = [line.strip().partition(" ") for line in joined.splitlines() if line.strip()]
    return [(word, rest.strip()) for word, _, rest in pairs]


def stages(text: str) -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    for word, rest in instructions(text):
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append((word, rest))
    return found


def dockerfile(profile: str) -> str:
    return render_site(DeploymentSite.of(profile, "ae-dxb-1", {}))["Dockerfile"].text


@pytest.mark.parametrize("profile", PROFILES)
def test_the_image_is_small_and_nobody_in_it_is_root(profile: str) -> None:
    text = dockerfile(profile)
    assert {word for word, _ in instructions(text)} <= KNOWN
    first, *_, last = stages(text)
    assert len(stages(text)) == 3
    assert first[0][1].endswith(" AS build")
    final = dict(last)
    assert final["FROM"] == "scratch"  # one layer: what was removed is nowhere below
    assert not [rest for word, rest in last if word == "RUN"]
    assert final["USER"] == "10001:10001"
    assert [word for word, _ in last].index("USER") < [word for word, _ in last].index("ENTRYPOINT")
    assert final["STOPSIGNAL"] == "SIGTERM"


@pytest.mark.parametrize("profile", PROFILES)
def test_its_commands_need_no_shell(profile: str) -> None:
    final = dict(stages(dockerfile(profile))[-1])
    assert json.loads(final["ENTRYPOINT"]) == ["/opt/falaj/bin/falaj"]
    assert json.loads(final["CMD"])[0] == "up"
    health = final["HEALTHCHECK"]
    assert re.match(r"--interval=\d+s --timeout=\d+s --start-period=\d+s --retries=\d+ CMD \[", health)
    assert json.loads(health.partition("CMD ")[2])[1:3] == ["deploy", "pulse"]


@pytest.mark.parametrize("profile", PROFILES)
def test_it_is_built_from_wheels_that_were_looked_at(profile: str) -> None:
    text = dockerfile(profile)
    runs = [rest for word, rest in instructions(text) if word == "RUN"]
    (install,) = [run for run in runs if '"install"' in run]
    assert {"--no-index", "--find-links", "--only-binary=:all:", "--no-cache-dir"} <= set(json.loads(install))
    assert not re.search(r"\b(curl|wget|apt-get|apk|sudo|ADD|--privileged|chmod 777)\b", " ".join(runs))
    assert "-perm /6000 -delete" in " ".join(runs)
    copied = {rest.split()[0] for word, rest in instructions(text) if word == "COPY" and "--from" not in rest}
    allowed = render_site(DeploymentSite.of(profile, "ae-dxb-1", {}))[".dockerignore"].text.splitlines()
    assert {f"!{folder}" for folder in copied} == {line for line in allowed if line.startswith("!")}
    assert "*" in allowed
    tags = [rest.partition("=")[2] for word, rest in instructions(text) if word == "ARG"]
    assert not [tag for tag in tags if ":" not in tag or tag.endswith(":latest")]


def _closed(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


_TEXT, _SPAN = {"type": "string"}, {"type": "string", "pattern": r"^\d+[smh]$"}
_VOLUME = _closed(
    ("type", "source", "target"),
    type={"enum": ["volume", "bind"]},
    source=_TEXT,
    target=_TEXT,
    read_only={"type": "boolean"},
)
SERVICE = _closed(
    ("image", "user", "read_only", "cap_drop", "security_opt"),
    **dict.fromkeys(("build", "image", "hostname", "restart", "user", "network_mode"), _TEXT),
    **dict.fromkeys(("command", "entrypoint", "ports", "tmpfs", "profiles"), TEXTS),
    environment={"type": "object", "additionalProperties": _TEXT},
    volumes={"type": "array", "items": _VOLUME},
    read_only={"const": True},
    cap_drop={"const": ["ALL"]},
    security_opt={"const": ["no-new-privileges:true"]},
    pids_limit={"type": "integer"},
    stop_grace_period=_SPAN,
    healthcheck=_closed(
        ("test",), test=TEXTS, interval=_SPAN, timeout=_SPAN, start_period=_SPAN, retries={"type": "integer"}
    ),
    logging=_closed(("driver",), driver=_TEXT, options={"type": "object", "additionalProperties": _TEXT}),
)
COMPOSE = _closed(
    ("services",),
    name=_TEXT,
    services={"type": "object", "additionalProperties": SERVICE},
    volumes={"type": "object", "additionalProperties": _closed()},
)


def test_the_compose_file_is_one() -> None:
    files = render_site(DeploymentSite.of("smb", "ae-dxb-1", {}))
    found = yaml.safe_load(files["compose.yaml"].text)
    jsonschema.validate(found, COMPOSE)
    for name, service in found["services"].items():
        assert service["user"] == "10001:10001", name
        for volume in service["volumes"]:
            if volume["type"] == "volume":
                assert volume["source"] in found["volumes"], name
            else:
                assert volume["source"].removeprefix("./") in files, name
    ports = {port.partition(":")[2] for port in found["services"]["falaj"]["ports"]}
    for name in ("listen", "gateway", "gateway_grpc"):
        assert re.search(rf'(?m)^{name} = "0\.0\.0\.0:({"|".join(ports)})"$', files["compose.toml"].text)
