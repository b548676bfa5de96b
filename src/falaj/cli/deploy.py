"""`falaj deploy`: write everything a place needs, hold what runs against it, ask one address how it is."""

from pathlib import Path

from falaj.cli.argument_parsing import CommandParser, parse_arguments
from falaj.cli.cli_context import CliContext
from falaj.cli.output import print_check_results, print_result, print_table
from falaj.core.errors import Invalid

_ACTION_CHOICES = "render|check|pulse|values"


def run_deploy_command(context: CliContext, arguments: list[str]) -> int:
    """The acts of deploying; none of them opens a store."""
    actions = {"render": _run_render, "check": _run_check, "pulse": _run_pulse, "values": _run_values}
    if arguments and arguments[0] in actions:
        return actions[arguments[0]](context, arguments[1:])
    parser = CommandParser(
        prog="falaj deploy",
        description="render writes everything a place needs; check holds what runs against it; pulse asks one address "
        "how it is; values lists what --set may say.",
        epilog="Example: falaj deploy render --profile smb --zone ae-dxb-1 --out deployment",
    )
    parser.add_argument("act", metavar=_ACTION_CHOICES, choices=actions, help="falaj deploy ACT --help says more")
    parse_arguments(context, parser, arguments)
    return 2


def _run_render(context: CliContext, arguments: list[str]) -> int:
    from falaj.deploy.rendering import write_rendering
    from falaj.deploy.site import PROFILES, DeploymentSite

    parser = CommandParser(
        prog="falaj deploy render",
        description="Write everything for a place: units, compose, Kubernetes, Slurm, Ray, Ansible, Dockerfile. No "
        "secret is in it; the same values give the same bytes.",
        epilog="Example: falaj deploy render --profile enterprise --zone ae-dxb-1 --set host=ml.bank.example",
    )
    parser.add_argument("--profile", required=True, metavar="PROFILE", help=f"one of {', '.join(PROFILES)}")
    parser.add_argument("--zone", required=True, metavar="ZONE", help="the legal place it stands in, as ae-dxb-1")
    parser.add_argument("--out", default="deployment", metavar="DIR", help="where to (default: ./deployment)")
    parser.add_argument("--set", dest="given", action="append", default=[], metavar="KEY=VALUE", help="say one value")
    context, parsed_arguments = parse_arguments(context, parser, arguments)
    site = DeploymentSite.of(
        parsed_arguments.profile, parsed_arguments.zone, dict(_parse_pair(text) for text in parsed_arguments.given)
    )
    files = write_rendering(site, Path(parsed_arguments.out))
    if context.as_json:
        print_result({"folder": parsed_arguments.out, "files": files}, as_json=True)
    else:
        print_table(["", ""], [[str(Path(parsed_arguments.out, name)), ""] for name in files], shows_records=True)
    return 0


def _run_check(context: CliContext, arguments: list[str]) -> int:
    from falaj.deploy.deployment_check import STATE_BAD, DeploymentCase, check_deployment

    parser = CommandParser(
        prog="falaj deploy check",
        description="Hold a running deployment against what was rendered. Exit code 1 when something is amiss.",
        epilog="Example: falaj deploy check deployment --url https://falaj-replicas.falaj.svc",
    )
    parser.add_argument("folder", nargs="?", default="deployment", metavar="DIR", help="what render wrote")
    parser.add_argument(
        "--url", action="append", default=[], metavar="URL", help="where it answers (default: its host)"
    )
    context, parsed_arguments = parse_arguments(context, parser, arguments)
    results = list(
        check_deployment(DeploymentCase.of(Path(parsed_arguments.folder), tuple(parsed_arguments.url), context.ca))
    )
    return print_check_results(results, STATE_BAD, as_json=context.as_json)


def _run_pulse(context: CliContext, arguments: list[str]) -> int:
    from falaj.deploy.deployment_check import require_healthy

    parser = CommandParser(
        prog="falaj deploy pulse", description="Ask one address how it is; for health checks of containers."
    )
    parser.add_argument("url", metavar="URL", help="for example https://127.0.0.1:8470")
    context, parsed_arguments = parse_arguments(context, parser, arguments)
    require_healthy(parsed_arguments.url, context.ca)
    return 0


def _run_values(context: CliContext, arguments: list[str]) -> int:
    from falaj.deploy.site import SITE_OPTIONS

    context, _ = parse_arguments(
        context, CommandParser(prog="falaj deploy values", description="What --set may say."), arguments
    )
    if context.as_json:
        print_result(SITE_OPTIONS, as_json=True)
    else:
        print_table(
            ["value", "default", "meaning"],
            [[site_option.name, site_option.default, site_option.meaning] for site_option in SITE_OPTIONS],
        )
    return 0


def _parse_pair(text: str) -> tuple[str, str]:
    name, equals_sign, value = text.partition("=")
    if not equals_sign:
        raise Invalid(f"{text[:60]!r} sets nothing", "--set key=value")
    return name, value
