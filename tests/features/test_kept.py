"""Functions kept as text: all they need is in the text, and hostile text is refused before any of it runs."""

import math
from contextlib import closing
from datetime import timedelta

import numpy as np
import numpy.linalg as algebra
import pytest

from falaj.core.errors import Invalid
from falaj.features.function_text import MAX_TEXT_CHARS, capture_function, check_function_text, hash_function_text
from falaj.worker.function_sandbox import FunctionSandbox


def ratio(columns: "dict[str, np.ndarray[object, object]]") -> object:
    """Keeps its words."""
    total = np.hypot(columns["a"], columns["b"])  # and its remarks
    return {"ratio": [math.floor(x) for x in total], "norm": algebra.norm(columns["a"])}


def recursive(rows):  # type: ignore[no-untyped-def]
    import re

    return rows if re.match("x", "y") is None else recursive(rows)


def late(rows):  # type: ignore[no-untyped-def]
    return {"at": timedelta(days=rows["a"])}


def test_a_function_comes_back_with_its_imports() -> None:
    text = capture_function(ratio)
    assert text.startswith("import numpy.linalg as algebra\nimport math\nimport numpy as np\n\n\ndef ratio(columns")
    assert "# and its remarks" in text
    with closing(FunctionSandbox("ratio", text)) as function:
        assert function({"a": np.array([3.0]), "b": np.array([4.0])}) == {"ratio": [5], "norm": 3.0}
    assert capture_function(ratio) == text
    assert hash_function_text(text).startswith("sha256:")
    with closing(FunctionSandbox("recursive", capture_function(recursive))) as function:
        assert function({"a": 1}) == {"a": 1}


def test_a_class_from_outside_is_refused() -> None:
    with pytest.raises(Invalid, match="late uses timedelta"):
        capture_function(late)


@pytest.mark.parametrize("thing", [None, 3, len, dict, np.sum])
def test_what_is_no_function_of_a_file_is_refused(thing: object) -> None:
    with pytest.raises(Invalid):
        capture_function(thing)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x = 1",
        "def f(a): return a\nf(1)",
        "import os\ndef f(a): return a",
        "from os import path\ndef f(a): return a",
        "def f(a):\n    from subprocess import run\n    return run(a)",
        "def f(a):\n    from . import secrets\n    return a",
        "def f(a): return __import__('os')",
        "def f(a): return eval(a)",
        "def f(a, b): return a",
        "def f(a=1): return a",
        "def f(*a): return a",
        "def f(): return 1",
        "@print\ndef f(a): return a",
        "print('x')\ndef f(a): return a",
        "class f: pass",
        "def f(a): return (",
        "def f(a): return '\0'",
        "def f(a): return " + "(" * 5000 + ")" * 5000,
        "def f(a):\n" + " return a\n" * MAX_TEXT_CHARS,
        "def f(a): return " + "-" * 90_000 + "1",
        "def f(a): return " + "[" * 300 + "]" * 300,
    ],
)
def test_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        check_function_text(text)
