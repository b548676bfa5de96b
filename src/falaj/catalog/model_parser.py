"""Reads what a model's files are and what they say of the model, in an isolated helper process.

`falaj.content.model_formats` and `falaj.catalog.mlflow_model` parse untrusted archives, protobuf, JSON and
YAML; the server, the agent and the dispatcher call them only through this module.
"""

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from falaj.content.isolated_parser import ParserLimits, answer_request, parse_isolated
from falaj.content.model_formats import InspectedModel, inspect_model
from falaj.core.data import dataclass

PARSER_LIMITS = ParserLimits(data_bytes=1 << 30, cpu_seconds=120, wall_seconds=300, spill_bytes=1 << 20)


@dataclass(frozen=True, slots=True)
class ModelParseRequest:
    """Where a model lies (a folder or one file), and whether its MLmodel file is read too."""

    path: str
    mlmodel: bool


@dataclass(frozen=True, slots=True)
class ParsedModel:
    """The format of a model, and the signature and environment that its MLmodel file names."""

    inspected: InspectedModel
    signature: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


def inspect_isolated(path: Path) -> InspectedModel:
    """Return the format of the model at `path`; Invalid, with the file named, when a file is hostile or broken."""
    return _parse_in_helper(path, mlmodel=False).inspected


def parse_model(path: Path) -> ParsedModel:
    """Return the format of the model at `path` and what its MLmodel file says of it."""
    return _parse_in_helper(path, mlmodel=True)


def _parse_in_helper(path: Path, *, mlmodel: bool) -> ParsedModel:
    absolute = str(path.absolute())
    return parse_isolated(__name__, ModelParseRequest(absolute, mlmodel), ParsedModel, [absolute], PARSER_LIMITS)


def parse_files(request: ModelParseRequest) -> ParsedModel:
    """The same in this process, which is the helper."""
    path = Path(request.path)
    if not request.mlmodel:
        return ParsedModel(inspect_model(path))
    from falaj.catalog.mlflow_model import read_mlmodel  # and all that it imports, which a helper mostly does without

    return ParsedModel(inspect_model(path), *read_mlmodel(path))


def main(_arguments: Sequence[str]) -> None:
    """Answer one question; started in a helper process."""
    answer_request(ModelParseRequest, parse_files)
