"""The code of a model, brought in by name from its folder."""

import importlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from falaj.core.errors import FalajError, Invalid, UserCodeFailed
from falaj.infer.records import ModelConfig
from falaj.infer.runtimes.model_files import code_files

_IMPORT_LOCK = threading.Lock()
_CODE_FOLDERS: set[str] = set()


class UserCodeGuard:
    """Around somebody's code: whatever it raises, also of a kind of its own, leaves as an error with a name, which
    `told` makes of it. Our own errors pass."""

    __slots__ = ("_to_error",)

    def __init__(self, to_error: Callable[[BaseException], FalajError]) -> None:
        self._to_error = to_error

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: Any) -> None:
        if isinstance(error, (Exception, SystemExit)) and not isinstance(error, FalajError):
            raise self._to_error(error) from error


def guard_user_code(description: str, hint: str) -> UserCodeGuard:
    """Blames the code, by the words that what it raised has of its own."""
    return UserCodeGuard(lambda error: UserCodeFailed(f"{description}: {describe_error(error)}", hint))


def import_callable(code: str, folder: str) -> Callable[..., Any]:
    """What `module:name` names in a folder. Of two models in one process each gets its own modules, though their names
    be the same; what they import, they import at the top of their files."""
    module, _, name = code.partition(":")
    if not folder or not name or not all(part.isidentifier() for part in module.split(".")):
        raise Invalid(f"{code[:100]!r} names no code", "module:name, and the version of the code beside the model")
    root = str(Path(folder).resolve())
    with _IMPORT_LOCK:
        _forget_modules()
        _CODE_FOLDERS.add(root)
        sys.path.insert(0, root)
        try:
            with guard_user_code(f"{module[:100]} cannot be imported", "run it by itself"):
                imported_module = importlib.import_module(module)
        finally:
            sys.path.remove(root)
    target: Callable[..., Any] | None = getattr(imported_module, name, None)
    if not callable(target) or not str(getattr(imported_module, "__file__", "")).startswith(root):
        raise Invalid(f"the model's code has no {code[:100]}", "name a function or class in its folder")
    return target


def prepare_code_folder(config: ModelConfig, private: Path) -> str:
    """Where its code is imported from: a private copy of what was approved, where that is known."""
    code = code_files(config.code, config.files) if config.code else None
    if code is None or not code.digests:
        return config.code
    code.copy(private)
    return str(private)


def describe_error(error: BaseException) -> str:
    """An error of somebody's code in one line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:300]


def _forget_modules() -> None:
    """Modules of models that were loaded before: they live on in what uses them, not under their names."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if any(file.startswith(f"{folder}/") for folder in _CODE_FOLDERS):
            del sys.modules[name]
