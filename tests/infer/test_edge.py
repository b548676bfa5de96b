"""A bundle that serves by itself, as far as no platform is needed to try it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.infer.models import mlp

SERVE = """
import asyncio, sys, threading
from pathlib import Path
from falaj.infer import edge
from falaj.infer.records import ServerConfig, ModelConfig
folder = Path(sys.argv[1])
bundle = edge.VerifiedBundle({"name": "m", "revision": 1}, "f", str(folder))
config = ServerConfig((ModelConfig("m", "1", str(folder)),), http="127.0.0.1:0", open=True)
code = asyncio.run(edge._serve_bundle(bundle, config, folder))
print([one.name for one in threading.enumerate()], flush=True)
sys.exit(code)
"""


def test_it_sees_a_loop_that_stands_still(tmp_path: Path) -> None:
    """The thread that looks is there; what it does then is tried on the server."""
    words = [sys.executable, "-c", SERVE, str(mlp(tmp_path / "m"))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["ready"] is True
        process.send_signal(signal.SIGTERM)
        assert "falaj-watch" in process.stdout.read()
        assert process.wait(30) == 0
