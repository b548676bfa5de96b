"""`falaj gateway`: the door to endpoints, by itself."""

import gc
import json
import os
import sys
from typing import TYPE_CHECKING

from falaj.cli.frame import Frame
from falaj.cli.parsing import Parser, read

if TYPE_CHECKING:
    from falaj.serve.records import Doors


def gateway(frame: Frame, arguments: list[str]) -> int:
    """Start, say where, and pass requests on until told to stop."""
    parser = Parser(
        prog="falaj gateway",
        description="Answer for all endpoints: know the caller, pick revision and replica, pass requests on. "
        "`falaj up` keeps one by itself; more of them, on other machines, share the same store.",
    )
    add = parser.add_argument
    add("--listen", default="", metavar="HOST:PORT", help="where HTTP is answered (default: the setting `gateway`)")
    add("--grpc", default="", metavar="HOST:PORT", help="where gRPC is answered (default: the setting `gateway_grpc`)")
    add("--tls", action="store_true", help="make a local authority and a certificate, and speak TLS 1.3")
    add("--until-eof", action="store_true", help="end when standard input ends")
    add("--log", default=os.environ.get("FALAJ_LOG", "INFO"), metavar="LEVEL", help="how much to log")
    frame, found = read(frame, parser, arguments)
    home = frame.folder("a URL cannot be started from here", "falaj gateway --at FOLDER")
    gc.disable()
    from falaj.api.logs import set_up
    from falaj.gateway.process import run
    from falaj.platform import House, load_settings

    set_up(found.log)
    house = House(load_settings(home))

    def ready(doors: "Doors") -> None:
        said = {"ready": True, "http": doors.http, "grpc": doors.grpc, "pid": os.getpid()}
        lines = f"Endpoints are called at {doors.http} (gRPC: {doors.grpc or 'nowhere'})"
        sys.stdout.write((json.dumps(said) if frame.as_json else lines) + "\n")
        sys.stdout.flush()

    try:
        run(house, ready, listen=found.listen, grpc=found.grpc, own_ca=found.tls, until_eof=found.until_eof)
    finally:
        house.close()
    return 0
