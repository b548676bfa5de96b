"""The code of a model, brought in by name from its folder."""

import importlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from falaj.core.errors import Invalid, UserCodeFailed
from falaj.infer.records import ModelConfig
from falaj.infer.runtimes.verify import code_of

BROKEN = (
    ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, ImportError, LookupError, MemoryError,
    NameError, OSError, RuntimeError, StopIteration, SyntaxError, TypeError, ValueError, Warning,
)  # fmt: skip
"""What somebody's code raises. An error of a kind of its own ends the run's thread, or in a cage the process."""
_LOCK = threading.Lock()
_FOLDERS: set[str] = set()


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
            found = importlib.import_module(module)
        except BROKEN as error:
            raise UserCodeFailed(f"{module[:100]} cannot be imported: {said(error)}", "run it by itself") from error
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
