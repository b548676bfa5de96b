"""Small commands about where one stands: status, env, settings, tls."""

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from falaj.cli.argument_parsing import CommandParser, parse_arguments
from falaj.cli.cli_context import CliContext, escape_terminal_text
from falaj.cli.output import print_result, print_table
from falaj.core.dependency_health import DependencyHealth
from falaj.core.errors import FalajError, Unauthenticated
from falaj.core.settings import Settings, list_settings


def run_status_command(context: CliContext, arguments: list[str]) -> int:
    """`falaj status`."""
    context, _ = parse_arguments(
        context,
        CommandParser(prog="falaj status", description="Who you are, where, and whether it is well."),
        arguments,
    )
    address, _, _ = context.login()
    is_remote = address.startswith(("http://", "https://"))
    client = context.connect()
    if is_remote:
        status_response = client.get("/status")
        health, replicas = (
            [DependencyHealth(**dependency) for dependency in status_response["dependencies"]],
            status_response["replicas"],
        )
        is_fenced = bool(status_response["fenced"])
    else:
        health, replicas = list(client.house.dependencies.health()), []
        is_fenced = client.house.fence.read() is not None
    status_fields: dict[str, Any] = {
        "at": address if is_remote else client.house.settings.home,
        "mode": "remote" if is_remote else "in process",
    }
    status_fields |= _describe_caller(client)
    status_fields |= {dependency.name: _describe_dependency(dependency) for dependency in health}
    if replicas:
        count_by_version = Counter(f"{replica['version']} ({replica['role']})" for replica in replicas)
        status_fields["replicas"] = ", ".join(f"{count} of {name}" for name, count in sorted(count_by_version.items()))
    warnings = _list_warnings(client)
    if context.as_json:
        status_fields |= {**warnings, "fenced": is_fenced}
    else:
        _print_alarms({**({"FENCED": FENCED_TEXT} if is_fenced else {}), **warnings})
    print_result(status_fields, as_json=context.as_json)
    return 0 if all(dependency.answers for dependency in health) else 8


FENCED_TEXT = (
    "this is a restored copy. It starts no job and reaches no cluster, hook or agent. Once the old installation is "
    "gone: falaj restore --activate"
)


def _print_alarms(alarms: Mapping[str, str]) -> None:
    """Print alarms before everything else, a line each; red in a terminal."""
    red, plain = ("\x1b[1;31m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    for name, text in alarms.items():
        sys.stdout.write(f"{red}{name}: {escape_terminal_text(text)}{plain}\n")


def _describe_dependency(dependency: DependencyHealth) -> str:
    if dependency.answers:
        return "ready"
    return f"NOT READY for {dependency.unanswered_s:.0f} s: {dependency.problem} ({dependency.hint})"


def _list_warnings(client: Any) -> dict[str, str]:
    """Whose jobs run without a sandbox, where one may know."""
    from falaj.fleet.sandbox import UNSANDBOXED

    try:
        clusters = client.clusters.list()
    except (AttributeError, FalajError):
        return {}
    return {
        f"WARNING ({cluster.name})": UNSANDBOXED[cluster.unsandboxed] for cluster in clusters if cluster.unsandboxed
    }


def _describe_caller(client: Any) -> dict[str, Any]:
    """Who one is, where the people desk can say."""
    try:
        actor = client.people.whoami()
    except (AttributeError, FalajError):
        return {}
    return {
        "you": getattr(actor, "id", str(actor)),
        "tenant": getattr(actor, "tenant", ""),
        "roles": ", ".join(sorted(getattr(actor, "roles", ()))),
    }


def run_env_command(context: CliContext, arguments: list[str]) -> int:
    """`eval "$(falaj env)"`: what clients of other makers need to reach this platform."""
    parser = CommandParser(
        prog="falaj env", description='Print shell exports for curl, MLflow and Triton clients: eval "$(falaj env)"'
    )
    parser.add_argument("--token", action="store_true", help="print the token itself and not only how to get it")
    context, parsed_arguments = parse_arguments(context, parser, arguments)
    address, token, ca = context.login()
    settings = _load_settings(context)
    triton = ""  # of a remote platform only its endpoints say where the gateway is
    if not address.startswith(("http://", "https://")):
        local_ca = Path(settings.home) / "tls" / "ca.pem"
        ca = ca or (str(local_ca) if local_ca.exists() else "")
        scheme = "https" if ca or settings.tls.cert else "http"
        address = f"{scheme}://{settings.listen}"
        triton = settings.gateway_url.rstrip("/") or (f"{scheme}://{settings.gateway}" if settings.gateway else "")
    exports = {"FALAJ_URL": address, "MLFLOW_TRACKING_URI": address}
    if triton:
        exports["TRITON_URL"] = triton
    if parsed_arguments.token:
        if not token:
            raise Unauthenticated("there is no token to print", "falaj login, or set FALAJ_TOKEN")
        exports |= {"FALAJ_TOKEN": token, "MLFLOW_TRACKING_TOKEN": token}
    if ca:
        exports |= dict.fromkeys(("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"), ca)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in exports.items()]
    if not parsed_arguments.token:
        lines += [
            "# export FALAJ_TOKEN=...  (from `falaj up` at first start, or: falaj env --token)",
            'export MLFLOW_TRACKING_TOKEN="$FALAJ_TOKEN"',
        ]
    if not triton:
        lines.append("# for Triton clients: falaj serve url ENDPOINT shows the gateway's address")
    lines.append('# curl -H "Authorization: Bearer $FALAJ_TOKEN" "$FALAJ_URL/ready"')
    if context.as_json:
        print_result(exports, as_json=True)
    else:
        sys.stdout.write("\n".join(lines) + "\n")
    return 0


def run_settings_command(context: CliContext, arguments: list[str]) -> int:
    """`falaj settings`."""
    context, _ = parse_arguments(
        context,
        CommandParser(prog="falaj settings", description="Every setting, its value and where it came from."),
        arguments,
    )
    setting_rows = list_settings(_load_settings(context))
    if context.as_json:
        print_result(
            [{"setting": name, "value": value, "from": source} for name, value, source in setting_rows], as_json=True
        )
    else:
        print_table(
            ["setting", "value", "from"], [[name, _format_value(value), source] for name, value, source in setting_rows]
        )
    return 0


def run_tls_command(context: CliContext, arguments: list[str]) -> int:
    """`falaj tls show`, `falaj tls issue NAME`."""
    parser = CommandParser(
        prog="falaj tls", description="The local authority: show it, issue certificates for replicas and workers."
    )
    parser.add_argument("act", choices=["show", "issue"], metavar="show|issue", help="show what to trust; or issue one")
    parser.add_argument(
        "name", metavar="NAME", nargs="?", default="", help="whom to issue it for, for example worker-7"
    )
    context, parsed_arguments = parse_arguments(context, parser, arguments)
    from falaj.api.tls import issue_client_certificate, read_expiry

    home = _load_settings(context).home
    if parsed_arguments.act == "issue":
        print_result(issue_client_certificate(home, parsed_arguments.name, time.time()), as_json=context.as_json)
    else:
        folder = Path(home) / "tls"
        certificate_facts = {
            "trust": str(folder / "ca.pem"),
            "authority_expires_at": read_expiry(str(folder / "ca.pem")),
        }
        print_result(
            certificate_facts | {"server_expires_at": read_expiry(str(folder / "server.pem"))}, as_json=context.as_json
        )
    return 0


def _load_settings(context: CliContext) -> Settings:
    from falaj.server import load_settings

    return load_settings("" if context.at.startswith(("http://", "https://")) else context.at)


def _format_value(value: Any) -> str:
    text = str(dict(value)) if hasattr(value, "items") else ", ".join(value) if isinstance(value, tuple) else str(value)
    return text.replace(str(Path.home()), "~") if os.environ.get("HOME") else text
