"""Reads what a model's files are and what they say of the model, in an isolated helper process.

`falaj.content.formats` and `falaj.catalog.mlmodel` parse untrusted archives, protobuf, JSON and
YAML; the server, the agent and the dispatcher call them only through this module.
"""

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from falaj.content.formats import Inspected, inspect
from falaj.content.isolated_parser import ParserLimits, answer_question, parse_isolated
from falaj.core.data import dataclass

LIMITS = ParserLimits(data_bytes=1 << 30, cpu_seconds=120, wall_seconds=300, spill_bytes=1 << 20)


@dataclass(frozen=True, slots=True)
class ModelQuestion:
    """Where a model lies (a folder or one file), and whether its MLmodel file is read too."""

    path: str
    mlmodel: bool


@dataclass(frozen=True, slots=True)
class ParsedModel:
    """The format of a model, and the signature and environment that its MLmodel file names."""

    inspected: Inspected
    signature: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


def inspect_isolated(path: Path) -> Inspected:
    """Return the format of the model at `path`; Invalid, with the file named, when a file is hostile or broken."""
    return _parse(path, mlmodel=False).inspected


def parse_model(path: Path) -> ParsedModel:
    """Return the format of the model at `path` and what its MLmodel file says of it."""
    return _parse(path, mlmodel=True)


def _parse(path: Path, *, mlmodel: bool) -> ParsedModel:
    absolute = str(path.absolute())
    return parse_isolated(__name__, ModelQuestion(absolute, mlmodel), ParsedModel, [absolute], LIMITS)


def parse_files(question: ModelQuestion) -> ParsedModel:
    """The same in this process, which is the helper."""
    path = Path(question.path)
    if not question.mlmodel:
        return ParsedModel(inspect(path))
    from falaj.catalog.mlmodel import read_mlmodel  # and all that it imports, which a helper mostly does without

    return ParsedModel(inspect(path), *read_mlmodel(path))


def main(_arguments: Sequence[str]) -> None:
    """Answer one question; started in a helper process."""
    answer_question(ModelQuestion, parse_files)
