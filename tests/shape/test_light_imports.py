"""What an import loads, seen from a fresh interpreter: the doors open without waiting for what is behind them."""

import json
import subprocess
import sys

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


def _loaded(module: str) -> set[str]:
    command = [sys.executable, "-c", _LOADED, module]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout))
