"""Small commands about where one stands: status, env, settings, tls."""

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from falaj.cli.frame import Frame, harmless
from falaj.cli.parsing import Parser, read
from falaj.cli.tables import put, rows
from falaj.core.errors import FalajError, Unauthenticated
from falaj.core.health import DependencyHealth
from falaj.core.settings import Settings, listing


def status(frame: Frame, arguments: list[str]) -> int:
    """`falaj status`."""
    frame, _ = read(
        frame, Parser(prog="falaj status", description="Who you are, where, and whether it is well."), arguments
    )
    address, _, _ = frame.login()
    remote = address.startswith(("http://", "https://"))
    here = frame.connect()
    if remote:
        answer = here.get("/status")
        health, replicas = [DependencyHealth(**dependency) for dependency in answer["dependencies"]], answer["replicas"]
        fenced = bool(answer["fenced"])
    else:
        health, replicas = list(here.house.dependencies.health()), []
        fenced = here.house.fence.read() is not None
    found: dict[str, Any] = {
        "at": address if remote else here.house.settings.home,
        "mode": "remote" if remote else "in process",
    }
    found |= _who(here)
    found |= {dependency.name: _in_words(dependency) for dependency in health}
    if replicas:
        seen = Counter(f"{replica['version']} ({replica['role']})" for replica in replicas)
        found["replicas"] = ", ".join(f"{count} of {name}" for name, count in sorted(seen.items()))
    warnings = _warnings(here)
    if frame.as_json:
        found |= {**warnings, "fenced": fenced}
    else:
        _put_in_red({**({"FENCED": FENCED} if fenced else {}), **warnings})
    put(found, as_json=frame.as_json)
    return 0 if all(dependency.answers for dependency in health) else 8


FENCED = (
    "this is a restored copy. It starts no job and reaches no cluster, hook or agent. Once the old installation is "
    "gone: falaj restore --activate"
)


def _put_in_red(alarms: Mapping[str, str]) -> None:
    """Print alarms before everything else, a line each; red in a terminal."""
    red, plain = ("\x1b[1;31m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    for name, text in alarms.items():
        sys.stdout.write(f"{red}{name}: {harmless(text)}{plain}\n")


def _in_words(dependency: DependencyHealth) -> str:
    if dependency.answers:
        return "ready"
    return f"NOT READY for {dependency.unanswered_s:.0f} s: {dependency.problem} ({dependency.hint})"


def _warnings(here: Any) -> dict[str, str]:
    """Whose jobs run without a sandbox, where one may know."""
    from falaj.fleet.sandbox import UNSANDBOXED

    try:
        clusters = here.clusters.list()
    except (AttributeError, FalajError):
        return {}
    return {
        f"WARNING ({cluster.name})": UNSANDBOXED[cluster.unsandboxed] for cluster in clusters if cluster.unsandboxed
    }


def _who(here: Any) -> dict[str, Any]:
    """Who one is, where the people desk can say."""
    try:
        me = here.people.whoami()
    except (AttributeError, FalajError):
        return {}
    return {
        "you": getattr(me, "id", str(me)),
        "tenant": getattr(me, "tenant", ""),
        "roles": ", ".join(sorted(getattr(me, "roles", ()))),
    }


def env(frame: Frame, arguments: list[str]) -> int:
    """`eval "$(falaj env)"`: what clients of other makers need to reach this platform."""
    parser = Parser(
        prog="falaj env", description='Print shell exports for curl, MLflow and Triton clients: eval "$(falaj env)"'
    )
    parser.add_argument("--token", action="store_true", help="print the token itself and not only how to get it")
    frame, found = read(frame, parser, arguments)
    address, token, ca = frame.login()
    settings = _settings(frame)
    triton = ""  # of a remote platform only its endpoints say where the gateway is
    if not address.startswith(("http://", "https://")):
        local = Path(settings.home) / "tls" / "ca.pem"
        ca = ca or (str(local) if local.exists() else "")
        scheme = "https" if ca or settings.tls.cert else "http"
        address = f"{scheme}://{settings.listen}"
        triton = settings.gateway_url.rstrip("/") or (f"{scheme}://{settings.gateway}" if settings.gateway else "")
    exports = {"FALAJ_URL": address, "MLFLOW_TRACKING_URI": address}
    if triton:
        exports["TRITON_URL"] = triton
    if found.token:
        if not token:
            raise Unauthenticated("there is no token to print", "falaj login, or set FALAJ_TOKEN")
        exports |= {"FALAJ_TOKEN": token, "MLFLOW_TRACKING_TOKEN": token}
    if ca:
        exports |= dict.fromkeys(("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"), ca)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in exports.items()]
    if not found.token:
        lines += [
            "# export FALAJ_TOKEN=...  (from `falaj up` at first start, or: falaj env --token)",
            'export MLFLOW_TRACKING_TOKEN="$FALAJ_TOKEN"',
        ]
    if not triton:
        lines.append("# for Triton clients: falaj serve url ENDPOINT shows the gateway's address")
    lines.append('# curl -H "Authorization: Bearer $FALAJ_TOKEN" "$FALAJ_URL/ready"')
    if frame.as_json:
        put(exports, as_json=True)
    else:
        sys.stdout.write("\n".join(lines) + "\n")
    return 0


def settings(frame: Frame, arguments: list[str]) -> int:
    """`falaj settings`."""
    frame, _ = read(
        frame, Parser(prog="falaj settings", description="Every setting, its value and where it came from."), arguments
    )
    found = listing(_settings(frame))
    if frame.as_json:
        put([{"setting": name, "value": value, "from": source} for name, value, source in found], as_json=True)
    else:
        rows(["setting", "value", "from"], [[name, _shown(value), source] for name, value, source in found])
    return 0


def tls(frame: Frame, arguments: list[str]) -> int:
    """`falaj tls show`, `falaj tls issue NAME`."""
    parser = Parser(
        prog="falaj tls", description="The local authority: show it, issue certificates for replicas and workers."
    )
    parser.add_argument("act", choices=["show", "issue"], metavar="show|issue", help="show what to trust; or issue one")
    parser.add_argument(
        "name", metavar="NAME", nargs="?", default="", help="whom to issue it for, for example worker-7"
    )
    frame, found = read(frame, parser, arguments)
    from falaj.api.tls import expires_at, issue

    home = _settings(frame).home
    if found.act == "issue":
        put(issue(home, found.name, time.time()), as_json=frame.as_json)
    else:
        folder = Path(home) / "tls"
        shown = {"trust": str(folder / "ca.pem"), "authority_expires_at": expires_at(str(folder / "ca.pem"))}
        put(shown | {"server_expires_at": expires_at(str(folder / "server.pem"))}, as_json=frame.as_json)
    return 0


def _settings(frame: Frame) -> Settings:
    from falaj.platform import load_settings

    return load_settings("" if frame.at.startswith(("http://", "https://")) else frame.at)


def _shown(value: Any) -> str:
    text = str(dict(value)) if hasattr(value, "items") else ", ".join(value) if isinstance(value, tuple) else str(value)
    return text.replace(str(Path.home()), "~") if os.environ.get("HOME") else text
