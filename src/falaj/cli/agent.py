"""`falaj agent`: a zone's data plane on this machine."""

import json
import os
import signal
import sys
import threading

from falaj.cli.frame import Frame
from falaj.cli.parsing import Parser, read


def agent(frame: Frame, arguments: list[str]) -> int:
    """Join once, then serve the zone until told to stop."""
    parser = Parser(
        prog="falaj agent",
        description="Run a zone's data plane beside its data: stores, keys and machines of the zone stay here, and the "
        "platform is only ever called from here. `falaj agents invite --zone …` gives the token to join with.",
    )
    add = parser.add_argument
    add("--join", required=True, metavar="URL", help="the platform, for example https://control:8470")
    add("--zone", required=True, help="the zone this machine stands in")
    add("--store", default="", metavar="URL", help="where the zone's bytes lie (default: dir: in the home)")
    add("--executor", default="process:", metavar="URL", help="what runs the zone's jobs (default: process:)")
    add("--keys", default="", metavar="URL", help="who holds the zone's root key (default: file: in the home)")
    add("--home", default="", metavar="FOLDER", help="the agent's own files (default: ~/.falaj-agent/ZONE)")
    add("--door", type=int, default=8471, metavar="PORT", help="where the zone speaks to it, on 127.0.0.1")
    add("--token", default=os.environ.get("FALAJ_JOIN", ""), help="the invitation, the first time (or FALAJ_JOIN)")
    add("--keep-logs", action="store_true", help="give out no logs of jobs: they may hold what must not leave")
    add("--log", default=os.environ.get("FALAJ_LOG", "INFO"), metavar="LEVEL", help="how much to log")
    frame, found = read(frame, parser, arguments)
    from falaj.agent.identity import Identity
    from falaj.agent.process import Agent, Plan
    from falaj.api.logs import set_up

    set_up(found.log)
    home = found.home or f"~/.falaj-agent/{found.zone}"
    identity = Identity(home, found.join, found.zone, frame.ca)
    if not identity.joined:
        identity.join(found.token)
    root = identity.home
    plan = Plan(
        found.store or f"dir:{root}/blobs", found.executor, found.keys or f"file:{root}/keys", found.door,
        not found.keep_logs,
    )  # fmt: skip
    made, over = Agent(identity, plan), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())

    def ready() -> None:
        said = {"ready": True, "zone": found.zone, "door": made.door.address, "pid": os.getpid()}
        line = f"The agent of {found.zone} answers at {made.door.address}"
        sys.stdout.write((json.dumps(said) if frame.as_json else line) + "\n")
        sys.stdout.flush()

    made.run(ready, over)
    return 0
