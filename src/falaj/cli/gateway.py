"""`falaj gateway`: the door to endpoints, by itself."""

import gc
import json
import os
import sys
from typing import TYPE_CHECKING

from falaj.cli.argument_parsing import CommandParser, parse_arguments
from falaj.cli.cli_context import CliContext

if TYPE_CHECKING:
    from falaj.serve.records import GatewayAddresses


def run_gateway_command(context: CliContext, arguments: list[str]) -> int:
    """Start, say where, and pass requests on until told to stop."""
    parser = CommandParser(
        prog="falaj gateway",
        description="Answer for all endpoints: know the caller, pick revision and replica, pass requests on. "
        "`falaj up` keeps one by itself; more of them, on other machines, share the same store.",
    )
    add_argument = parser.add_argument
    add_argument(
        "--listen", default="", metavar="HOST:PORT", help="where HTTP is answered (default: the setting `gateway`)"
    )
    add_argument(
        "--grpc", default="", metavar="HOST:PORT", help="where gRPC is answered (default: the setting `gateway_grpc`)"
    )
    add_argument("--tls", action="store_true", help="make a local authority and a certificate, and speak TLS 1.3")
    add_argument("--until-eof", action="store_true", help="end when standard input ends")
    add_argument("--log", default=os.environ.get("FALAJ_LOG", "INFO"), metavar="LEVEL", help="how much to log")
    context, parsed_arguments = parse_arguments(context, parser, arguments)
    home = context.folder("a URL cannot be started from here", "falaj gateway --at FOLDER")
    gc.disable()
    from falaj.api.json_logging import configure_logging
    from falaj.gateway.process import run_gateway
    from falaj.server import Server, load_settings

    configure_logging(parsed_arguments.log)
    server = Server(load_settings(home))

    def report_ready(addresses: "GatewayAddresses") -> None:
        ready_facts = {"ready": True, "http": addresses.http, "grpc": addresses.grpc, "pid": os.getpid()}
        ready_line = f"Endpoints are called at {addresses.http} (gRPC: {addresses.grpc or 'nowhere'})"
        sys.stdout.write((json.dumps(ready_facts) if context.as_json else ready_line) + "\n")
        sys.stdout.flush()

    try:
        run_gateway(
            server,
            report_ready,
            listen=parsed_arguments.listen,
            grpc=parsed_arguments.grpc,
            own_ca=parsed_arguments.tls,
            until_eof=parsed_arguments.until_eof,
        )
    finally:
        server.close()
    return 0
