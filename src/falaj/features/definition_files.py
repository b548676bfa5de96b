"""Definition files: run beside the caller, whose own code they are, and read for the objects they leave."""

import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType, TracebackType

from falaj.core.errors import FalajError, Invalid, NotFound, UserCodeFailed
from falaj.features.definition_parts import Entity
from falaj.features.records import DefinitionSet
from falaj.features.service_definitions import OnDemand, Service
from falaj.features.view_definitions import Picked, View

DefinitionObject = Entity | View | Service


def load_definitions(path: str | Path) -> DefinitionSet:
    """All that a .py file says, or every .py file of a folder: what stands at the top level of a module counts.

    Tests, hidden files and environments that lie in the folder are passed over.
    """
    resolved_path = Path(path).expanduser().resolve()
    if not resolved_path.exists():
        raise NotFound(
            f"there is no {str(path)[:300]!r}", "name a .py file with definitions, or a folder of such files"
        )
    files = [resolved_path] if resolved_path.is_file() else sorted(_iterate_files(resolved_path))
    if not files:
        raise Invalid(f"{resolved_path.name} holds no .py file", "name a .py file with definitions")
    with _DefinitionImporter(resolved_path if resolved_path.is_dir() else resolved_path.parent) as importer:
        modules = [importer.module(file) for file in files]
    return collect_definitions(module_object for module in modules for module_object in vars(module).values())


def collect_definitions(objects: Iterable[object]) -> DefinitionSet:
    """The definitions among things, and those they are made of; one name, one object."""
    objects_by_name: dict[tuple[type, str], DefinitionObject] = {}
    for reachable in _iterate_reachable(objects):
        key = (type(reachable), reachable.definition.name)
        if (
            objects_by_name.setdefault(key, reachable) is not reachable
            and objects_by_name[key].definition != reachable.definition
        ):
            raise Invalid(f"{key[1]} is defined twice", "keep one of them, and import it where it is needed")
    if not objects_by_name:
        raise Invalid("nothing is defined there", "an Entity, a view or a Service at the top level of the file")
    return DefinitionSet(
        tuple(
            definition_object.definition
            for definition_object in objects_by_name.values()
            if isinstance(definition_object, Entity)
        ),
        tuple(
            definition_object.definition
            for definition_object in objects_by_name.values()
            if isinstance(definition_object, View)
        ),
        tuple(
            definition_object.definition
            for definition_object in objects_by_name.values()
            if isinstance(definition_object, Service)
        ),
    )


def _iterate_reachable(objects: Iterable[object]) -> Iterator[DefinitionObject]:
    for item in objects:
        if isinstance(item, (list, tuple)):
            yield from _iterate_reachable(item)
        elif isinstance(item, dict):
            yield from _iterate_reachable(item.values())
        elif isinstance(item, Picked) and item.view is not None and "@" not in item.pick.view:
            yield from _iterate_reachable([item.view])
        elif isinstance(item, OnDemand):
            yield from _iterate_reachable(item.picks)
        elif isinstance(item, View):
            yield from _iterate_reachable([item.entity])
            yield item
        elif isinstance(item, Service):
            yield from _iterate_reachable(item.parts)
            yield item
        elif isinstance(item, Entity):
            yield item


def _iterate_files(folder: Path) -> Iterator[Path]:
    for current_folder, folders, names in os.walk(folder):
        # An environment that lies inside is somebody else's code.
        folders[:] = [
            folder_name
            for folder_name in folders
            if _is_own_name(folder_name) and not (Path(current_folder) / folder_name / "pyvenv.cfg").exists()
        ]
        yield from (Path(current_folder) / name for name in names if name.endswith(".py") and _is_own_name(name))


def _is_own_name(name: str) -> bool:
    return not name.startswith((".", "__", "test_")) and name not in ("conftest.py", "site-packages", "node_modules")


class _DefinitionImporter:
    """Definition files as modules that can import each other, for as long as they are read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._modules_before = dict(sys.modules)
        self._wrote_no_bytecode = sys.dont_write_bytecode

    def __enter__(self) -> "_DefinitionImporter":
        sys.path.insert(0, str(self._folder))
        sys.dont_write_bytecode = True  # it is told apart by the second, and nobody wants it beside definitions
        return self

    def module(self, file: Path) -> ModuleType:
        """Run a file, once: another may have imported it already."""
        name = ".".join(file.relative_to(self._folder).with_suffix("").parts)
        loaded = sys.modules.get(name)
        if loaded is not None and Path(getattr(loaded, "__file__", None) or "/").resolve() == file:
            return loaded
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise Invalid(f"{file.name} cannot be read as Python", "name a .py file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, error_traceback: TracebackType | None
    ) -> None:
        sys.path.remove(str(self._folder))
        sys.dont_write_bytecode = self._wrote_no_bytecode
        for name, module in list(sys.modules.items()):
            if self._modules_before.get(name) is not module and self._is_user_file(
                getattr(module, "__file__", None) or ""
            ):
                del sys.modules[name]
                sys.modules |= {name: self._modules_before[name]} if name in self._modules_before else {}
        if isinstance(error, FalajError):
            raise type(error)(f"{self._locate_error(error)}: {error.message}", error.hint, error.ref) from error
        if isinstance(error, Exception):
            error_text = traceback.format_exception_only(error)[-1].strip()[:300]
            raise UserCodeFailed(
                f"{self._locate_error(error)}: {error_text}", "correct the file, and apply it again"
            ) from error

    def _is_user_file(self, file: str) -> bool:
        """Whether it is one of the user's files, and not of an environment that lies among them."""
        path = Path(file).resolve()
        return path.is_relative_to(self._folder) and all(map(_is_own_name, path.relative_to(self._folder).parts))

    def _locate_error(self, error: BaseException) -> str:
        """The last line of the user's own files that it went through."""
        if isinstance(error, SyntaxError) and error.filename:
            return f"{Path(error.filename).name}:{error.lineno}"
        frames = traceback.extract_tb(error.__traceback__)
        user_frames = [frame for frame in frames if self._is_user_file(frame.filename)]
        return f"{Path(user_frames[-1].filename).name}:{user_frames[-1].lineno}" if user_frames else self._folder.name
