"""What the desk of experiments knows: experiments, runs, points, curves, files. Frozen, plain, the same on the wire."""

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, ClassVar

from falaj.core.data import dataclass
from falaj.core.label import Label
from falaj.core.ref import Ref

RUN_STATUSES = ("running", "scheduled", "finished", "failed", "killed")
FINISHED_STATUSES = ("finished", "failed", "killed")
DEFAULT_EXPERIMENT = Ref("experiment", "default", "default")
"""The experiment of whoever names none; its number is 0."""
UNTIMED = -1.0
_SPECIAL_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True, slots=True)
class Experiment:
    """A question that runs try to answer."""

    STRUCTURE: ClassVar = ("ref", "id", "state", "made_at", "changed_at", "author")
    MARKER: ClassVar = "title"
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "id", "title", "state", "changed_at")

    ref: Ref
    id: str
    """A decimal number, unique in the tenant, as MLflow's clients name experiments; 0 is the default one."""
    title: str
    tags: Mapping[str, str] = field(default_factory=dict)
    state: str = "active"
    made_at: float = 0.0
    changed_at: float = 0.0
    author: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """One point. JSON knows no NaN and no infinity: those stand in `odd`, and `value` is 0. Read `number`."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("key", "number", "at", "step")

    key: str
    value: float = 0.0
    at: float = UNTIMED
    """In seconds since 1970. Less than 0: when it arrives."""
    step: int = 0
    odd: str = ""
    """nan, inf or -inf; empty for every other number."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            object.__setattr__(self, "odd", repr(float(self.value)))
            object.__setattr__(self, "value", 0.0)

    @property
    def number(self) -> float:
        """What was measured."""
        return _SPECIAL_NUMBERS.get(self.odd, self.value) if self.odd else self.value

    @property
    def brief(self) -> str:
        """The number alone, short, for lists."""
        return f"{self.number:.6g}"


@dataclass(frozen=True, slots=True)
class UsedData:
    """Data that a run used, ours (`ref`) or somebody else's."""

    STRUCTURE: ClassVar = ("ref",)

    name: str
    digest: str = ""
    source_type: str = ""
    source: str = ""
    schema: str = ""
    profile: str = ""
    ref: Ref | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoggedModelRef:
    """A model that a run logged: its id, and at which step."""

    STRUCTURE: ClassVar = ("id",)

    id: str
    step: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """One run: what it was told, what it used, the newest of each thing it measured."""

    STRUCTURE: ClassVar = (
        "ref", "experiment", "experiment_id", "status", "author", "started", "ended", "inputs", "state", "label",
        "zone", "outputs",
    )  # fmt: skip
    KIND: ClassVar = "run"
    MARKER: ClassVar = "title"
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "title", "status", "author", "started", "metrics", "params")

    ref: Ref
    experiment: Ref
    experiment_id: str
    title: str
    status: str
    author: str
    started: float
    ended: float
    """0 while it goes on."""
    params: Mapping[str, str]
    tags: Mapping[str, str]
    metrics: Mapping[str, Metric]
    inputs: tuple[UsedData, ...]
    state: str
    label: Label
    zone: str
    outputs: tuple[LoggedModelRef, ...] = ()

    @property
    def id(self) -> str:
        """The 32 hexadecimal digits that MLflow's clients know it by."""
        return self.ref.name


@dataclass(frozen=True, slots=True)
class RunPage:
    """Some runs and the cursor of the next page, empty at the end."""

    STRUCTURE: ClassVar = ("runs", "next")

    runs: tuple[Run, ...]
    next: str = ""


@dataclass(frozen=True, slots=True)
class TableWindow:
    """Which part of a table is wanted."""

    first: Annotated[int, "the first row, from 0"] = 0
    rows: Annotated[int, "how many rows at most"] = 50
    left: Annotated[int, "the first column, from 0"] = 0
    width: Annotated[int, "how many columns at most"] = 20
    find: Annotated[str, "only columns whose name has this in it"] = ""


@dataclass(frozen=True, slots=True)
class RunCells:
    """One row of a table of runs; a number that is none (NaN, infinity) is a word."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "title", "cells")

    ref: Ref
    title: str
    cells: tuple[float | str | None, ...]


@dataclass(frozen=True, slots=True)
class RunTable:
    """A window of a table of runs, and how large the whole is."""

    columns: tuple[str, ...]
    """As filters write them: status, params.lr, metrics.loss."""
    rows: tuple[RunCells, ...]
    first: int
    left: int
    num_rows: int
    num_columns: int


@dataclass(frozen=True, slots=True)
class ExperimentPage:
    """Some experiments and the cursor of the next page, empty at the end."""

    STRUCTURE: ClassVar = ("experiments", "next")

    experiments: tuple[Experiment, ...]
    next: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one metric by step and time. Down-sampled: the lowest, the highest and the last of each bin."""

    key: str
    points: tuple[Metric, ...]
    next: str = ""
    total: int | None = None
    """How many points there are; of a curve in pages nobody counts them, unless one page is all of it."""


@dataclass(frozen=True, slots=True)
class RunCurve:
    """A curve of a run, down-sampled."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("run", "curve")

    run: Ref
    curve: Curve


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of a run, or a folder of them."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("path", "folder", "size_bytes", "digest")

    path: str
    size_bytes: int
    digest: str = ""
    folder: bool = False
    made_at: float = 0.0


@dataclass(frozen=True, slots=True)
class RunDifference:
    """One parameter or metric in which runs differ: its value in each run, in the order they were asked for."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("kind", "key", "values", "lowest", "highest")

    kind: str
    """param or metric."""
    key: str
    values: tuple[str, ...]
    lowest: Ref | None = None
    highest: Ref | None = None
    """Of a metric: the runs with the lowest and the highest value. Which of them is best, its name must tell."""


@dataclass(frozen=True, slots=True)
class RunComparison:
    """How runs differ; what is the same in all of them is counted and left out."""

    runs: tuple[Ref, ...]
    titles: tuple[str, ...]
    differences: tuple[RunDifference, ...]
    same_params: int = 0
    same_metrics: int = 0
