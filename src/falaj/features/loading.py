"""Definition files: run beside the caller, whose own code they are, and read for the objects they leave."""

import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType, TracebackType

from falaj.core.errors import FalajError, Invalid, NotFound, UserCodeFailed
from falaj.features.asking import OnDemand, Service
from falaj.features.declare import Entity
from falaj.features.records import Definitions
from falaj.features.viewing import Picked, View

Thing = Entity | View | Service


def load(path: str | Path) -> Definitions:
    """All that a .py file says, or every .py file of a folder: what stands at the top level of a module counts.

    Tests, hidden files and environments that lie in the folder are passed over.
    """
    where = Path(path).expanduser().resolve()
    if not where.exists():
        raise NotFound(
            f"there is no {str(path)[:300]!r}", "name a .py file with definitions, or a folder of such files"
        )
    files = [where] if where.is_file() else sorted(_files(where))
    if not files:
        raise Invalid(f"{where.name} holds no .py file", "name a .py file with definitions")
    with _Running(where if where.is_dir() else where.parent) as running:
        modules = [running.module(file) for file in files]
    return gather(thing for module in modules for thing in vars(module).values())


def gather(things: Iterable[object]) -> Definitions:
    """The definitions among things, and those they are made of; one name, one object."""
    found: dict[tuple[type, str], Thing] = {}
    for thing in _reached(things):
        key = (type(thing), thing.definition.name)
        if found.setdefault(key, thing) is not thing and found[key].definition != thing.definition:
            raise Invalid(f"{key[1]} is defined twice", "keep one of them, and import it where it is needed")
    if not found:
        raise Invalid("nothing is defined there", "an Entity, a view or a Service at the top level of the file")
    return Definitions(
        tuple(one.definition for one in found.values() if isinstance(one, Entity)),
        tuple(one.definition for one in found.values() if isinstance(one, View)),
        tuple(one.definition for one in found.values() if isinstance(one, Service)),
    )


def _reached(things: Iterable[object]) -> Iterator[Thing]:
    for thing in things:
        if isinstance(thing, (list, tuple)):
            yield from _reached(thing)
        elif isinstance(thing, dict):
            yield from _reached(thing.values())
        elif isinstance(thing, Picked) and thing.view is not None and "@" not in thing.pick.view:
            yield from _reached([thing.view])
        elif isinstance(thing, OnDemand):
            yield from _reached(thing.picks)
        elif isinstance(thing, View):
            yield from _reached([thing.entity])
            yield thing
        elif isinstance(thing, Service):
            yield from _reached(thing.parts)
            yield thing
        elif isinstance(thing, Entity):
            yield thing


def _files(folder: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        # An environment that lies inside is somebody else's code.
        folders[:] = [one for one in folders if _own(one) and not (Path(where) / one / "pyvenv.cfg").exists()]
        yield from (Path(where) / name for name in names if name.endswith(".py") and _own(name))


def _own(name: str) -> bool:
    return not name.startswith((".", "__", "test_")) and name not in ("conftest.py", "site-packages", "node_modules")


class _Running:
    """Definition files as modules that can import each other, for as long as they are read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = dict(sys.modules)
        self._bytecode = sys.dont_write_bytecode

    def __enter__(self) -> "_Running":
        sys.path.insert(0, str(self._folder))
        sys.dont_write_bytecode = True  # it is told apart by the second, and nobody wants it beside definitions
        return self

    def module(self, file: Path) -> ModuleType:
        """Run a file, once: another may have imported it already."""
        name = ".".join(file.relative_to(self._folder).with_suffix("").parts)
        known = sys.modules.get(name)
        if known is not None and Path(getattr(known, "__file__", None) or "/").resolve() == file:
            return known
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise Invalid(f"{file.name} cannot be read as Python", "name a .py file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.path.remove(str(self._folder))
        sys.dont_write_bytecode = self._bytecode
        for name, module in list(sys.modules.items()):
            if self._before.get(name) is not module and self._within(getattr(module, "__file__", None) or ""):
                del sys.modules[name]
                sys.modules |= {name: self._before[name]} if name in self._before else {}
        if isinstance(error, FalajError):
            raise type(error)(f"{self._where(error)}: {error.message}", error.hint, error.ref) from error
        if isinstance(error, Exception):
            told = traceback.format_exception_only(error)[-1].strip()[:300]
            raise UserCodeFailed(f"{self._where(error)}: {told}", "correct the file, and apply it again") from error

    def _within(self, file: str) -> bool:
        """Whether it is one of the user's files, and not of an environment that lies among them."""
        path = Path(file).resolve()
        return path.is_relative_to(self._folder) and all(map(_own, path.relative_to(self._folder).parts))

    def _where(self, error: BaseException) -> str:
        """The last line of the user's own files that it went through."""
        if isinstance(error, SyntaxError) and error.filename:
            return f"{Path(error.filename).name}:{error.lineno}"
        frames = traceback.extract_tb(error.__traceback__)
        own = [one for one in frames if self._within(one.filename)]
        return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else self._folder.name
