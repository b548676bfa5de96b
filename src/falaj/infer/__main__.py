"""`python -m falaj.infer CONFIG.json`: a server of its own; without a file, the replica of an attempt."""

import json
import os
import sys
from pathlib import Path

from falaj.core.errors import FalajError
from falaj.core.malloc_tuning import limit_malloc_arenas
from falaj.infer.inference_server import report_fact, run_event_loop, start_process_server
from falaj.infer.records import ServerConfig
from falaj.infer.server_config import SERVE_VARIABLE, config_from_attempt, parse_config


def run_server_command(arguments: list[str]) -> int:
    """Serve until told to end."""
    limit_malloc_arenas()
    try:
        config = parse_config(Path(arguments[0]).read_bytes()) if arguments else config_from_attempt()
        return run_event_loop(_serve_until_signal(config))
    except FalajError as error:
        print(f"falaj.infer: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except (OSError, KeyError) as error:
        print(f"falaj.infer: give a config file, or {SERVE_VARIABLE}: {error}", file=sys.stderr)  # noqa: T201
        return 2


async def _serve_until_signal(config: ServerConfig) -> int:
    server, end_event = await start_process_server(config)
    report_fact("serving", server.fact())
    print(json.dumps(server.ready()), flush=True)  # noqa: T201
    await end_event.wait()
    report_fact("draining", {"pid": os.getpid()})
    await server.drain()
    return server.exit_code


if __name__ == "__main__":
    sys.exit(run_server_command(sys.argv[1:]))
