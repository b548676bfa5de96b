"""`python -m falaj.infer.profiling`: a model over the rows of a dataset, as a job. What it was given and what it
answered become a profile, so that a model that came without one can be watched.

FALAJ_INPUT_MODEL, FALAJ_INPUT_DATA and, where the model needs it, FALAJ_INPUT_CODE are folders; the profile is written
to FALAJ_OUTPUT_PROFILE. FALAJ_PARAM_TARGET names the column of the truth, _SEGMENT the one that keeps rows apart,
_SPLIT the one that tells which rows were held out; _SOURCE is what the data is called.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj import worker
from falaj.core.errors import FalajError, Invalid, UserCodeFailed
from falaj.drift.making import Columns, columns_of, made, task_says
from falaj.drift.profile import to_json
from falaj.drift.records import FILE, Profile
from falaj.drift.tally import as_numbers
from falaj.infer.bulk import ROWS, Order, input_of
from falaj.infer.columns import plain
from falaj.infer.records import ModelConfig, Runtime

MOST_ROWS, MOST_VALUES = 200_000, 10_000_000
"""Of a larger dataset an even choice of rows is looked at: the reference gets no better by more."""
SPLITS = ("split", "fold", "subset", "partition")
HELD_OUT = ("test", "valid", "validation", "val", "eval", "evaluation", "holdout", "held-out", "held_out", "dev")
_TAKEN, _MOST_CARD = 8192, 1 << 20


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be made of which columns."""

    target: str = ""
    segment: str = ""
    split: str = ""
    source: str = ""


def main() -> int:
    """Read what the attempt was told, and do it."""
    known = os.environ
    try:
        model, data, out = (known[name] for name in ("FALAJ_INPUT_MODEL", "FALAJ_INPUT_DATA", "FALAJ_OUTPUT_PROFILE"))
        wish = Wish(*(known.get(f"FALAJ_PARAM_{name}", "") for name in ("TARGET", "SEGMENT", "SPLIT", "SOURCE")))
        code = known.get("FALAJ_INPUT_CODE", "")
        made = profile_model(ModelConfig("model", "1", model, code=code), data, wish)
        write(made, Path(out))
    except KeyError as error:
        print(f"falaj.infer.profiling: there is no {error}", file=sys.stderr)  # noqa: T201
        return 2
    except FalajError as error:
        print(f"falaj.infer.profiling: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return 0


def write(profile: Profile, folder: Path) -> None:
    """Into the folder, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{FILE}.{os.getpid()}"
    draft.write_bytes(to_json(profile))
    draft.replace(folder / FILE)


def profile_model(config: ModelConfig, data: str, wish: Wish) -> Profile:
    """Run the model over the rows; of those it was not trained on, where the data says which, comes what its answers
    were worth."""
    from falaj.infer.runtimes import load, sheet_of

    here, notes = worker.attempt(), list[str]()
    wish = _known(wish, config)
    runtime = load(config)
    try:
        order = Order(config, columns=_named(sheet_of(config).parameters.get("features.order", "")))
        seen = _Seen(runtime, order, wish)
        for done, total in seen.read(data, notes):
            here.progress(done, total)
    finally:
        runtime.close()
    profile = seen.profile(notes)
    for note in (task_says(profile), *notes):
        here.note(note)
        print(note)  # noqa: T201
    return profile


class _Seen:
    """Rows as they were given to the model, what it answered, and what is right."""

    def __init__(self, runtime: Runtime, order: Order, wish: Wish) -> None:
        self._runtime, self._wish = runtime, wish
        self._order = order
        self._columns: dict[str, list[NDArray[Any]]] = {}
        self._answers: dict[str, list[NDArray[Any]]] = {}
        self._truth: list[NDArray[Any]] = []
        self._held: list[NDArray[np.bool_]] = []
        self._tensors: dict[str, tuple[str, ...]] = {}
        self._failed = 0

    def read(self, data: str, notes: list[str]) -> Iterator[tuple[int, int]]:
        """Everything, in pieces; after each, how much is done of how much."""
        from falaj.feed.sources import open_source

        source = open_source(data, cache=False)
        total, rows = len(source), self._most(source)
        ids, step = np.arange(total), max(self._runtime.inputs[0].shape[0], 0) or ROWS
        if total > rows:
            ids = np.sort(np.random.default_rng(0).choice(total, rows, replace=False))
            notes.append(f"{rows:,} of {total:,} rows were looked at")
        for first in range(0, len(ids), _TAKEN):
            some = _columns(source.take(ids[first : first + _TAKEN]))
            self._settle(some)
            for start in range(0, len(_any(some)), step):
                self._run({name: one[start : start + step] for name, one in some.items()})
            yield min(first + _TAKEN, len(ids)), len(ids)
        if self._failed:
            notes.append(f"the model failed on {self._failed:,} rows: they are left out")

    def profile(self, notes: list[str]) -> Profile:
        """What was seen, as a profile."""
        if not self._columns:
            raise Invalid(
                "the model answered no row of the data", "look at why: run it over them with falaj serve batch"
            )
        wish, columns = self._wish, {name: np.concatenate(parts) for name, parts in self._columns.items()}
        answers = {name: np.concatenate(parts) for name, parts in self._answers.items()}
        truth = np.concatenate(self._truth) if self._truth else None
        held = np.concatenate(self._held) if self._held else np.zeros(0, bool)
        segment = wish.segment if wish.segment in columns else ""
        if wish.segment and not segment:
            notes.append(f"{wish.segment[:80]} is no input of the model: rows cannot be kept apart by it")
        which = held if held.any() else slice(None)
        if not held.any() and truth is not None:
            notes.append("no column says which rows were held out: its answers are judged on all of them")
        source = f"{wish.source or 'a dataset'}{'' if held.any() else ', all rows'}"[:250]
        return made(
            columns, {name: one[which] for name, one in answers.items()}, None if truth is None else truth[which],
            aside={segment: columns[segment][which]} if segment else {}, target=wish.target, segment=segment,
            source=source, tensors=self._tensors,
        )  # fmt: skip

    def _most(self, source: Any) -> int:
        widths = [int(np.prod(one.shape[1:])) for one in _columns(source.take(np.arange(1))).values()] if source else []
        return max(1000, min(MOST_ROWS, MOST_VALUES // max(1, sum(widths))))

    def _settle(self, some: Columns) -> None:
        """Which columns are which, by the first rows."""
        if self._order.keep:
            return
        wish, tensors = self._wish, {one.name for one in self._runtime.inputs}
        for name in (wish.target, wish.split):
            if name and name not in some:
                raise Invalid(f"the data has no column {name[:80]!r}", f"it has: {', '.join(some)}"[:300])
        split = wish.split or next((name for name in SPLITS if name in some and name not in tensors), "")
        self._wish = replace(wish, split=split)
        apart = tuple(name for name in (wish.target, split) if name) or ("",)
        columns = self._order.columns
        if not columns and len(tensors) == 1 and not tensors & set(some) and set(some) != {"data"}:
            columns = tuple(name for name, one in some.items() if _is_number(one) and name not in apart)
        self._order = Order(self._order.model, columns=columns, keep=apart)

    def _run(self, some: Columns) -> None:
        """One batch through the model."""
        specs, wish = self._runtime.inputs, self._wish
        try:
            given = [input_of(one, some, specs, self._order) for one in specs]
            answers = self._runtime.run(given, {})
        except (UserCodeFailed, ValueError, TypeError, OverflowError):
            self._failed += len(_any(some))
            return
        for spec, one in zip(specs, given, strict=True):
            self._note(spec.name, plain(one, spec.datatype), some)
        for spec, one in zip(self._runtime.outputs, answers, strict=True):
            self._answers.setdefault(spec.name, []).append(np.asarray(plain(np.asarray(one), spec.datatype)))
        if wish.target:
            self._truth.append(some[wish.target])
        if wish.split:
            told = [str(one).lower() for one in some[wish.split].tolist()]
            self._held.append(np.array([one in HELD_OUT for one in told], bool))

    def _note(self, name: str, tensor: NDArray[Any], some: Columns) -> None:
        """An input as columns; under the names and with the values of the table where it was made of one."""
        names = self._order.columns
        found = columns_of(name, tensor, names)
        self._tensors[name] = tuple(found)
        for column, values in found.items():
            self._columns.setdefault(column, []).append(some[column] if column in names else values)


def _columns(batch: Any) -> Columns:
    """A batch as arrays: numbers some of which are missing are floats, texts are objects."""
    found = batch if isinstance(batch, Mapping) else {"data": batch}
    return {str(name): _array(one) for name, one in found.items()}


def _array(values: Any) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        return values
    made = np.empty(len(values), object)
    made[:] = values
    kinds = {type(one) for one in made.tolist()} - {type(None)}
    return as_numbers(made) if kinds and kinds <= {int, float, bool} else made


def _is_number(column: NDArray[Any]) -> bool:
    return column.ndim == 1 and column.dtype.kind in "biuf"


def _any(some: Columns) -> NDArray[Any]:
    return next(iter(some.values()))


def _named(order: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in order.split(",") if one.strip())


def _known(wish: Wish, config: ModelConfig) -> Wish:
    """The target, as the model's own card has it where nobody says another."""
    path = Path(config.folder) / "model.json"
    if wish.target or not path.is_file() or path.stat().st_size > _MOST_CARD:
        return wish
    try:
        told = json.loads(path.read_bytes()).get("target")
    except (ValueError, AttributeError, RecursionError):
        told = None  # Another's file of that name.
    return replace(wish, target=told) if isinstance(told, str) else wish


if __name__ == "__main__":
    sys.exit(main())
