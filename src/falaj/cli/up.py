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

from falaj.cli.frame import Frame
from falaj.cli.parsing import Parser, read
from falaj.core.errors import lacking
from falaj.core.heaps import share_heaps


def up(frame: Frame, arguments: list[str]) -> int:
    """Start, say where, and serve until told to stop."""
    parser = Parser(
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
    frame, found = read(frame, parser, arguments)
    home = frame.folder("a URL cannot be started from here", "falaj up --at FOLDER")
    # Nothing that is made on the way up is garbage; the server turns the collector on once it stands.
    gc.disable()
    share_heaps()
    from falaj.api.app import App
    from falaj.api.logs import set_up
    from falaj.api.server import serve
    from falaj.console.doors import Console
    from falaj.platform import House, load_settings

    set_up(found.log)
    # What the flag says is a fact of the installation: whose jobs are sandboxed depends on who can reach it.
    settings = load_settings(home, {"listen": found.listen} if found.listen else {})
    house = House(settings)
    try:
        token, officer_code = house.bootstrap(), house.appoint_first_officer()

        opened: list[Console] = []

        def face(app: App) -> Console:
            opened.append(Console(app))
            return opened[0]

        def ready(url: str) -> None:
            # Whoever runs an embedded platform owns its folder; where there are replicas, people have accounts.
            link = opened[0].invitation(url) if settings.embedded else f"{url}/console"
            _say_ready(url, link, (token, officer_code), settings.home if found.tls and not settings.tls.cert else "")
            threading.Thread(target=opened[0].warm, name="console-warm", daemon=True).start()
            if found.open:
                webbrowser.open(link)

        grpc = _grpc(house, found.grpc or settings.grpc, found.tls)
        with grpc, _gateway(house, found.tls) as leave:
            serve(house, listen=found.listen, own_ca=found.tls, on_ready=ready, on_leave=leave, face=face)
    finally:
        house.close()
    return 0


@contextmanager
def _grpc(house: Any, address: str, own_ca: bool) -> Iterator[None]:
    """The second door, where one is asked for."""
    if not address:
        yield
        return
    try:
        from falaj.api.grpc import serve_grpc
    except ModuleNotFoundError as error:
        raise lacking("gRPC", "grpc", error) from error
    door = serve_grpc(house, address, own_ca=own_ca)
    door.start()
    try:
        yield
    finally:
        door.stop()


@contextmanager
def _gateway(house: Any, own_ca: bool) -> Iterator[Callable[[], None]]:
    """The door to endpoints, a process of its own from the first endpoint on; none where the setting is empty. Gives
    what tells it to go, while we still answer.
    """
    if not house.settings.gateway:
        yield lambda: None
        return
    from falaj.gateway.keeper import Keeper

    keeper = Keeper(house, ("--tls",) if own_ca else ())
    keeper.start()
    try:
        yield keeper.leave
    finally:
        keeper.stop()


def demo(frame: Frame, arguments: list[str]) -> int:
    """The story is its own package; this is its door."""
    del frame
    told: int = import_module("falaj.demo").main(arguments)
    return told


def _say_ready(url: str, link: str, first: tuple[str, str], home: str) -> None:
    """Say where the server is; `first` holds the first administrator's token and the security officer's code."""
    token, officer_code = first
    lines = [f"Falaj is ready at {url}", f"Console: {link}"]
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
