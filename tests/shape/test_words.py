"""What the repository may not carry: the paths of one machine, the addresses of registries, built or opaque files."""

import re
import subprocess
from functools import cache
from pathlib import PurePosixPath

import pytest

from tests.shape.source import ROOT

MACHINE_PATH = re.compile(r"""(?<![\w.})/-])/(?:(?:work|root)(?=[/"'`\s]|$)|(?:home|Users)/\w|opt/(?:wheels|pypi))""")
REGISTRY = re.compile(r"pypi\.org|pythonhosted\.|npmjs\.|yarnpkg\.|deb\.debian\.|[-_]index[-_]url", re.IGNORECASE)
FORBIDDEN_FILES = (
    *("*.min.js", "*.min.css", "*.map", "*.whl", "*.so", "*.exe", "*.zip", "*.tar.gz", "*.pyc"),
    *("*.pkl", "*.pickle", "*.pt", "*.pth", "*.joblib"),
    *("*.db", "*.sqlite", "*.sqlite3", "*.log", "*.key", "*.p12", "*.env", "uv.lock", ".npmrc"),
)
LARGEST_BYTES = 1_000_000


def test_no_path_of_a_machine() -> None:
    assert _lines_with(MACHINE_PATH) == []


def test_no_address_of_a_registry() -> None:
    assert _lines_with(REGISTRY) == []


def test_no_built_or_opaque_file() -> None:
    paths = [PurePosixPath(path) for path in _texts()]
    assert [str(path) for path in paths if any(path.match(pattern) for pattern in FORBIDDEN_FILES)] == []


def test_no_large_file() -> None:
    assert [path for path, text in _texts().items() if len(text) > LARGEST_BYTES] == []


@pytest.mark.parametrize("line", ["cd /" + "work", "'/" + "root/x'", "see /" + "home/someone/x"])
def test_a_machine_path_is_seen(line: str) -> None:
    assert MACHINE_PATH.search(line)


@pytest.mark.parametrize("line", ["GET /v1/audit/root", "{base}/root", "homework/root", "/workers"])
def test_other_words_are_left_alone(line: str) -> None:
    assert not MACHINE_PATH.search(line)


def _lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in _texts().items()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


@cache
def _texts() -> dict[str, str]:
    """Every file that is, or is about to be, tracked."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=False, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git work tree")
    paths = [path for path in listed.stdout.split("\0") if path and (ROOT / path).is_file()]
    return {path: (ROOT / path).read_text(encoding="utf-8", errors="replace") for path in paths}
