"""The code of a model, brought in by name from its folder."""

import importlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from falaj.core.errors import FalajError, Invalid, UserCodeFailed
from falaj.infer.records import ModelConfig
from falaj.infer.runtimes.verify import code_of

_LOCK = threading.Lock()
_FOLDERS: set[str] = set()


class Blame:
    """Around somebody's code: whatever it raises, also of a kind of its own, leaves as an error with a name, which
    `told` makes of it. Our own errors pass."""

    __slots__ = ("_told",)

    def __init__(self, told: Callable[[BaseException], FalajError]) -> None:
        self._told = told

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: Any) -> None:
        if isinstance(error, (Exception, SystemExit)) and not isinstance(error, FalajError):
            raise self._told(error) from error


def failed(what: str, hint: str) -> Blame:
    """Blames the code, by the words that what it raised has of its own."""
    return Blame(lambda error: UserCodeFailed(f"{what}: {said(error)}", hint))


def imported(code: str, folder: str) -> Callable[..., Any]:
    """What `module:name` names in a folder. Of two models in one process each gets its own modules, though their names
    be the same; what they import, they import at the top of their files."""
    module, _, name = code.partition(":")
    if not folder or not name or not all(part.isidentifier() for part in module.split(".")):
        raise Invalid(f"{code[:100]!r} names no code", "module:name, and the version of the code beside the model")
    root = str(Path(folder).resolve())
    with _LOCK:
        _forget()
        _FOLDERS.add(root)
        sys.path.insert(0, root)
        try:
            with failed(f"{module[:100]} cannot be imported", "run it by itself"):
                found = importlib.import_module(module)
        finally:
            sys.path.remove(root)
    made: Callable[..., Any] | None = getattr(found, name, None)
    if not callable(made) or not str(getattr(found, "__file__", "")).startswith(root):
        raise Invalid(f"the model's code has no {code[:100]}", "name a function or class in its folder")
    return made


def code_folder(config: ModelConfig, private: Path) -> str:
    """Where its code is imported from: a private copy of what was approved, where that is known."""
    code = code_of(config.code, config.files) if config.code else None
    if code is None or not code.digests:
        return config.code
    code.copy(private)
    return str(private)


def said(error: BaseException) -> str:
    """An error of somebody's code in one line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:300]


def _forget() -> None:
    """Modules of models that were loaded before: they live on in what uses them, not under their names."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if any(file.startswith(f"{folder}/") for folder in _FOLDERS):
            del sys.modules[name]
