"""`python -m falaj.infer CONFIG.json`: a server of its own; without a file, the replica of an attempt."""

import asyncio
import gc
import json
import os
import signal
import sys
from pathlib import Path

from falaj.core.errors import FalajError
from falaj.infer.configuring import SERVE, of_attempt, read_config
from falaj.infer.records import Config
from falaj.infer.server import Server, told

SWITCH_S = 0.0005
"""A thread that comes back from a run waits so long for Python at most; the default is 5 ms."""


def main(given: list[str]) -> int:
    """Serve until told to end."""
    try:
        config = read_config(Path(given[0]).read_bytes()) if given else of_attempt()
        return _run(config)
    except FalajError as error:
        print(f"falaj.infer: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    except (OSError, KeyError) as error:
        print(f"falaj.infer: give a config file, or {SERVE}: {error}", file=sys.stderr)  # noqa: T201
        return 2


def _run(config: Config) -> int:
    sys.setswitchinterval(SWITCH_S)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_serve(config))
    return uvloop.run(_serve(config))


async def _serve(config: Config) -> int:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    server = Server(config)
    await server.start()
    server.watch()
    gc.collect()
    gc.freeze()  # what is here stays: nobody has to look at it again
    told("serving", server.fact())
    print(json.dumps(server.ready()), flush=True)  # noqa: T201
    await ended.wait()
    told("draining", {"pid": os.getpid()})
    await server.drain()
    return server.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
