"""`falaj deploy`: write everything a place needs, hold what runs against it, ask one address how it is."""

from pathlib import Path

from falaj.cli.frame import Frame
from falaj.cli.parsing import Parser, read
from falaj.cli.tables import put, put_findings, rows
from falaj.core.errors import Invalid

_ACTS = "render|check|pulse|values"


def deploy(frame: Frame, arguments: list[str]) -> int:
    """The acts of deploying; none of them opens a store."""
    acts = {"render": _render, "check": _check, "pulse": _pulse, "values": _values}
    if arguments and arguments[0] in acts:
        return acts[arguments[0]](frame, arguments[1:])
    parser = Parser(
        prog="falaj deploy",
        description="render writes everything a place needs; check holds what runs against it; pulse asks one address "
        "how it is; values lists what --set may say.",
        epilog="Example: falaj deploy render --profile smb --zone ae-dxb-1 --out deployment",
    )
    parser.add_argument("act", metavar=_ACTS, choices=acts, help="falaj deploy ACT --help says more")
    read(frame, parser, arguments)
    return 2


def _render(frame: Frame, arguments: list[str]) -> int:
    from falaj.deploy.render import write
    from falaj.deploy.site import PROFILES, Site

    parser = Parser(
        prog="falaj deploy render",
        description="Write everything for a place: units, compose, Kubernetes, Slurm, Ray, Ansible, Dockerfile. No "
        "secret is in it; the same values give the same bytes.",
        epilog="Example: falaj deploy render --profile enterprise --zone ae-dxb-1 --set host=ml.bank.example",
    )
    parser.add_argument("--profile", required=True, metavar="PROFILE", help=f"one of {', '.join(PROFILES)}")
    parser.add_argument("--zone", required=True, metavar="ZONE", help="the legal place it stands in, as ae-dxb-1")
    parser.add_argument("--out", default="deployment", metavar="DIR", help="where to (default: ./deployment)")
    parser.add_argument("--set", dest="given", action="append", default=[], metavar="KEY=VALUE", help="say one value")
    frame, found = read(frame, parser, arguments)
    site = Site.of(found.profile, found.zone, dict(_pair(text) for text in found.given))
    files = write(site, Path(found.out))
    if frame.as_json:
        put({"folder": found.out, "files": files}, as_json=True)
    else:
        rows(["", ""], [[str(Path(found.out, name)), ""] for name in files], records=True)
    return 0


def _check(frame: Frame, arguments: list[str]) -> int:
    from falaj.deploy.check import MISS, Case, findings

    parser = Parser(
        prog="falaj deploy check",
        description="Hold a running deployment against what was rendered. Exit code 1 when something is amiss.",
        epilog="Example: falaj deploy check deployment --url https://falaj-replicas.falaj.svc",
    )
    parser.add_argument("folder", nargs="?", default="deployment", metavar="DIR", help="what render wrote")
    parser.add_argument(
        "--url", action="append", default=[], metavar="URL", help="where it answers (default: its host)"
    )
    frame, given = read(frame, parser, arguments)
    found = list(findings(Case.of(Path(given.folder), tuple(given.url), frame.ca)))
    return put_findings(found, MISS, as_json=frame.as_json)


def _pulse(frame: Frame, arguments: list[str]) -> int:
    from falaj.deploy.check import pulse

    parser = Parser(
        prog="falaj deploy pulse", description="Ask one address how it is; for health checks of containers."
    )
    parser.add_argument("url", metavar="URL", help="for example https://127.0.0.1:8470")
    frame, found = read(frame, parser, arguments)
    pulse(found.url, frame.ca)
    return 0


def _values(frame: Frame, arguments: list[str]) -> int:
    from falaj.deploy.site import KEYS

    frame, _ = read(frame, Parser(prog="falaj deploy values", description="What --set may say."), arguments)
    if frame.as_json:
        put(KEYS, as_json=True)
    else:
        rows(["value", "default", "meaning"], [[key.name, key.default, key.meaning] for key in KEYS])
    return 0


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise Invalid(f"{text[:60]!r} sets nothing", "--set key=value")
    return name, value
