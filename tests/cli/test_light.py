"""What a command leaves out of its start is there for whoever uses it, and help waits for nothing that computes."""

import subprocess
import sys

_SECRETS = """
import sys
from falaj.cli.light import start_light
start_light()
import secrets, msgspec, pathlib
assert len(secrets.token_bytes()) == 32 and len(secrets.token_bytes(5)) == 5 and len(secrets.token_hex(4)) == 8
assert secrets.token_bytes(16) != secrets.token_bytes(16)
assert "random" not in sys.modules and "_winapi" not in sys.modules
assert secrets.randbelow(1) == 0 and len(secrets.token_bytes(5)) == 5 and "random" in sys.modules
assert msgspec.msgpack.decode(msgspec.msgpack.encode([1])) == [1]
assert str(pathlib.PureWindowsPath("c:/a") / "b") == "c:\\\\a\\\\b"
"""
_HELP = """
import sys
from falaj.cli import main
assert main(["catalog", "--help"]) == 0
assert "numpy" not in sys.modules
"""

_REMOTE = """
import sys
from falaj.cli import main
from falaj.cli.light import start_light
start_light()
assert main(["--at", "http://127.0.0.1:9", "catalog", "list"]) == 8
loaded = {name.partition(".")[0] for name, each in sys.modules.items() if getattr(each, "__spec__", None)}
assert "httpx" in loaded and not loaded & {"uvicorn", "rich", "pygments", "click", "cedarpy"}, loaded
assert "falaj.server" not in sys.modules
"""


def test_what_is_left_out_is_there_when_it_is_used() -> None:
    subprocess.run([sys.executable, "-c", _SECRETS], check=True)


def test_help_of_the_catalog_loads_no_numpy() -> None:
    subprocess.run([sys.executable, "-c", _HELP], check=True, stdout=subprocess.DEVNULL)


def test_a_command_to_another_machine_loads_neither_a_server_nor_a_house() -> None:
    done = subprocess.run([sys.executable, "-c", _REMOTE], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
