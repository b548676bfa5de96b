"""`falaj agent`: a zone's data plane on this machine."""

import json
import os
import signal
import sys
import threading

from falaj.cli.argument_parsing import CommandParser, parse_arguments
from falaj.cli.cli_context import CliContext


def run_agent_command(context: CliContext, arguments: list[str]) -> int:
    """Join once, then serve the zone until told to stop."""
    parser = CommandParser(
        prog="falaj agent",
        description="Run a zone's data plane beside its data: stores, keys and machines of the zone stay here, and the "
        "platform is only ever called from here. `falaj agents invite --zone …` gives the token to join with.",
    )
    add_argument = parser.add_argument
    add_argument("--join", required=True, metavar="URL", help="the platform, for example https://control:8470")
    add_argument("--zone", required=True, help="the zone this machine stands in")
    add_argument("--store", default="", metavar="URL", help="where the zone's bytes lie (default: dir: in the home)")
    add_argument("--executor", default="process:", metavar="URL", help="what runs the zone's jobs (default: process:)")
    add_argument("--keys", default="", metavar="URL", help="who holds the zone's root key (default: file: in the home)")
    add_argument("--home", default="", metavar="FOLDER", help="the agent's own files (default: ~/.falaj-agent/ZONE)")
    add_argument("--door", type=int, default=8471, metavar="PORT", help="where the zone speaks to it, on 127.0.0.1")
    add_argument(
        "--token", default=os.environ.get("FALAJ_JOIN", ""), help="the invitation, the first time (or FALAJ_JOIN)"
    )
    add_argument("--keep-logs", action="store_true", help="give out no logs of jobs: they may hold what must not leave")
    add_argument("--log", default=os.environ.get("FALAJ_LOG", "INFO"), metavar="LEVEL", help="how much to log")
    context, parsed_arguments = parse_arguments(context, parser, arguments)
    from falaj.agent.agent_identity import AgentIdentity
    from falaj.agent.zone_agent import AgentOptions, ZoneAgent
    from falaj.api.json_logging import configure_logging

    configure_logging(parsed_arguments.log)
    home = parsed_arguments.home or f"~/.falaj-agent/{parsed_arguments.zone}"
    identity = AgentIdentity(home, parsed_arguments.join, parsed_arguments.zone, context.ca)
    if not identity.joined:
        identity.join(parsed_arguments.token)
    home_folder = identity.home
    options = AgentOptions(
        parsed_arguments.store or f"dir:{home_folder}/blobs",
        parsed_arguments.executor,
        parsed_arguments.keys or f"file:{home_folder}/keys",
        parsed_arguments.door,
        not parsed_arguments.keep_logs,
    )
    zone_agent, stop_event = ZoneAgent(identity, options), threading.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: stop_event.set())

    def report_ready() -> None:
        ready_facts = {
            "ready": True,
            "zone": parsed_arguments.zone,
            "door": zone_agent.door.address,
            "pid": os.getpid(),
        }
        ready_line = f"The agent of {parsed_arguments.zone} answers at {zone_agent.door.address}"
        sys.stdout.write((json.dumps(ready_facts) if context.as_json else ready_line) + "\n")
        sys.stdout.flush()

    zone_agent.run(report_ready, stop_event)
    return 0
