"""A replica that answers nothing: it says that it serves, and ends when told to. For tests of what is around it."""

import json
import os
import signal
import socket
import sys
import threading

from falaj import worker

told = json.loads(os.environ["FALAJ_PARAM_SERVE"])
if "bad" in told["models"][0]["name"] and told["models"][0]["version"] != "1":
    print("RuntimeError: this model cannot be loaded", flush=True)
    sys.exit(3)
assert len(os.environ["FALAJ_PARAM_HOP_KEY"]) > 16
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
listener = os.environ.get("FALAJ_LISTEN_FD")  # a sandboxed replica may not bind: it inherits a listening socket
with socket.socket(fileno=int(listener)) if listener else socket.create_server(("127.0.0.1", 0)) as server:
    host, port = server.getsockname()
    host = os.environ.get("FALAJ_LISTEN_HOST") or host
    one = told["models"][0]
    worker.attempt()._write_fact(
        "serving", host=host, port=port, model=one["name"], version=one["version"], pid=os.getpid()
    )
    ended.wait(120)  # a test that is killed leaves nothing behind for long
