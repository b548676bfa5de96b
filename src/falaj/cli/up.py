"""`falaj up`: the whole platform in one process; and `falaj demo`, the story told on a throw-away one."""

import gc
import os
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from falaj.cli.argument_parsing import CommandParser, parse_arguments
from falaj.cli.cli_context import CliContext
from falaj.core.errors import missing_package_error
from falaj.core.malloc_tuning import limit_malloc_arenas


def _create_parser() -> CommandParser:
    parser = CommandParser(
        prog="falaj up", description="Start the platform on this machine: store, loops and API in one process."
    )
    parser.add_argument(
        "--listen", default="", metavar="HOST:PORT", help="where to answer (default: the setting, 127.0.0.1:8470)"
    )
    parser.add_argument(
        "--grpc", default="", metavar="HOST:PORT", help="answer reads of online features by gRPC there, too"
    )
    parser.add_argument(
        "--tls", action="store_true", help="make a local authority and a certificate, and speak TLS 1.3"
    )
    parser.add_argument("--open", action="store_true", help="open the console in a browser once it is ready")
    parser.add_argument(
        "--log", default=os.environ.get("FALAJ_LOG", "INFO"), metavar="LEVEL", help="how much to log on standard error"
    )
    return parser


def run_up_command(context: CliContext, arguments: list[str]) -> int:
    """Start, say where, and serve until told to stop."""
    context, parsed_arguments = parse_arguments(context, _create_parser(), arguments)
    home = context.folder("a URL cannot be started from here", "falaj up --at FOLDER")
    # Nothing that is made on the way up is garbage; the server turns the collector on once it stands.
    gc.disable()
    limit_malloc_arenas()
    from falaj.api.app import HttpApplication
    from falaj.api.http_server import run_server
    from falaj.api.json_logging import configure_logging
    from falaj.console.handlers import ConsoleHandler
    from falaj.server import Server, load_settings

    configure_logging(parsed_arguments.log)
    # What the flag says is a fact of the installation: whose jobs are sandboxed depends on who can reach it.
    settings = load_settings(home, {"listen": parsed_arguments.listen} if parsed_arguments.listen else {})
    server = Server(settings)
    try:
        token, officer_code = server.bootstrap(), server.appoint_first_officer()

        console_handlers: list[ConsoleHandler] = []

        def create_console(app: HttpApplication) -> ConsoleHandler:
            console_handlers.append(ConsoleHandler(app))
            return console_handlers[0]

        def report_ready(url: str) -> None:
            # Whoever runs an embedded platform owns its folder; where there are replicas, people have accounts.
            console_url = console_handlers[0].invitation(url) if settings.embedded else f"{url}/console"
            _print_ready(
                url,
                console_url,
                (token, officer_code),
                settings.home if parsed_arguments.tls and not settings.tls.cert else "",
            )
            threading.Thread(target=console_handlers[0].warm, name="console-warm", daemon=True).start()
            if parsed_arguments.open:
                webbrowser.open(console_url)

        grpc_context = _run_grpc_server(server, parsed_arguments.grpc or settings.grpc, parsed_arguments.tls)
        with grpc_context, _run_gateway_keeper(server, parsed_arguments.tls) as leave_gateway:
            run_server(
                server,
                listen=parsed_arguments.listen,
                own_ca=parsed_arguments.tls,
                on_ready=report_ready,
                on_leave=leave_gateway,
                create_page_handler=create_console,
            )
    finally:
        server.close()
    return 0


@contextmanager
def _run_grpc_server(server: Any, address: str, own_ca: bool) -> Iterator[None]:
    """The second door, where one is asked for."""
    if not address:
        yield
        return
    try:
        from falaj.api.grpc_server import create_grpc_server
    except ModuleNotFoundError as error:
        raise missing_package_error("gRPC", "grpc", error) from error
    grpc_server = create_grpc_server(server, address, own_ca=own_ca)
    grpc_server.start()
    try:
        yield
    finally:
        grpc_server.stop()


@contextmanager
def _run_gateway_keeper(server: Any, own_ca: bool) -> Iterator[Callable[[], None]]:
    """The door to endpoints, a process of its own from the first endpoint on; none where the setting is empty. Gives
    what tells it to go, while we still answer.
    """
    if not server.settings.gateway:
        yield lambda: None
        return
    from falaj.gateway.supervisor import GatewaySupervisor

    keeper = GatewaySupervisor(server, ("--tls",) if own_ca else ())
    keeper.start()
    try:
        yield keeper.leave
    finally:
        keeper.stop()


def run_demo_command(context: CliContext, arguments: list[str]) -> int:
    """The story is its own package; this is its door."""
    del context
    exit_code: int = import_module("falaj.demo").main(arguments)
    return exit_code


def _print_ready(url: str, console_url: str, first_credentials: tuple[str, str], home: str) -> None:
    """Say where the server is; `first_credentials` holds the first administrator's token and the security officer's
    code."""
    token, officer_code = first_credentials
    lines = [f"Falaj is ready at {url}", f"Console: {console_url}"]
    if token:
        lines += ["", "Your admin token, shown this once:", f"  {token}", "", f"Sign in with: falaj login {url}"]
    if officer_code:
        lines += [
            "",
            "Code for a second person, who confirms approvers and other officers:",
            f"  falaj login {url} --code {officer_code}",
        ]
    if home:
        lines += [
            "",
            f"Trust this authority: {home}/tls/ca.pem",
            f"For example: falaj login {url} --ca {home}/tls/ca.pem",
        ]
    sys.stdout.write("\n".join([*lines, ""]))
    sys.stdout.flush()
