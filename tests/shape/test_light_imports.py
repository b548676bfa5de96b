"""What an import loads, seen from a fresh interpreter: the doors open without waiting for what is behind them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

_LOADED = """
import json, sys
before = set(sys.modules)
__import__(sys.argv[1])
print(json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - before})))
"""


@pytest.mark.parametrize("module", ["falaj", "falaj.core", "falaj.core.ports", "falaj.core.settings"])
def test_the_language_loads_no_third_party(module: str) -> None:
    assert _loaded(module) - sys.stdlib_module_names == {"falaj"}


def test_the_command_line_starts_light() -> None:
    assert _loaded("falaj.cli") & {"starlette", "uvicorn", "cryptography", "rich", "httpx", "cedarpy"} == set()


_RAN = """
import json, sys
from falaj.cli import main
code = main(sys.argv[1:])
print(json.dumps(sorted(sys.modules)))
sys.exit(code)
"""


def test_a_command_loads_its_own_desk_and_no_other(tmp_path: Path) -> None:
    """On a house that stands already: the first start makes it, and that takes what it takes."""
    for _ in range(2):
        command = [sys.executable, "-c", _RAN, "catalog", "names", "--at", str(tmp_path / "home")]
        result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    loaded = set(json.loads(result.stdout.splitlines()[-1]))
    assert "falaj.catalog.service" in loaded
    others = {"falaj.track.service", "falaj.audit.service", "falaj.govern.people", "falaj.govern.key_service"}
    slow = {"httpx", "rich", "uvicorn", "starlette", "importlib.metadata", "concurrent.futures", "tomllib", "tempfile"}
    assert loaded & (others | slow | {"falaj.catalog.client_commands", "falaj.snapshot.tree_reader"}) == set()


_ALONE = """
import json, os, sys
from falaj.cli import main
os._exit = lambda code: None
main()
print(json.dumps(sorted(name for name, each in sys.modules.items() if getattr(each, "__spec__", None))))
"""


def test_a_command_of_its_own_loads_no_module_to_have_it(tmp_path: Path) -> None:
    for _ in range(2):
        command = [sys.executable, "-c", _ALONE, "catalog", "names", "--at", str(tmp_path / "home")]
        result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    loaded = set(json.loads(result.stdout.splitlines()[-1]))
    seldom = {"inspect", "ast", "ipaddress", "textwrap", "platform", "typing_extensions", "msgspec.inspect"}
    seldom |= {"cryptography.hazmat.primitives.ciphers", "cryptography.hazmat.primitives.ciphers.base"}
    assert "msgspec" in loaded
    assert loaded & seldom == set()


def _loaded(module: str) -> set[str]:
    command = [sys.executable, "-c", _LOADED, module]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout))
