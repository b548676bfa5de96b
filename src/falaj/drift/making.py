"""The profile of a model: its inputs as columns, its answers as columns, and what they were worth where truth is known.

How tensors become columns is said here once: who makes profiles and who counts what is served must agree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Invalid
from falaj.drift.estimate import calibrate
from falaj.drift.performance import task_of, texts
from falaj.drift.profile import checked, counted, unchecked
from falaj.drift.records import BINARY, CLASSES, MOST_COLUMNS, MOST_SCORES, Axis, Profile, Quality

Columns = dict[str, NDArray[Any]]
CHOSEN = "prediction"
"""The column of the class with the highest score; no tensor names it, it is told by the scores."""


def columns_of(name: str, values: NDArray[Any], names: Sequence[str] = (), *, most: int = MOST_COLUMNS) -> Columns:
    """A tensor as columns: one by its own name; several by the names given, else NAME[0], NAME[1], …; of one with more
    than `most` values a row, mean and deviation of each row."""
    values = np.asarray(values)
    flat = values.reshape(len(values), -1) if len(values) else values.reshape(0, int(np.prod(values.shape[1:])))
    width = flat.shape[1]
    if width > most:
        wide = flat.astype(np.float64)
        return {f"{name}.mean": wide.mean(1), f"{name}.std": wide.std(1)}
    own = [name] if width == 1 else [f"{name}[{at}]" for at in range(width)]
    return {one: flat[:, at] for at, one in enumerate(names if len(names) == width else own)}


def score_output(outputs: Mapping[str, NDArray[Any]]) -> str:
    """The answer that is judged: scores of classes where there are some, else the first number."""
    floats = [name for name, one in outputs.items() if one.dtype.kind == "f"]
    return max(floats or list(outputs), key=lambda name: int(np.prod(outputs[name].shape[1:])), default="")


def judged(truth: Any, answer: NDArray[Any], labels: Sequence[Any] = ()) -> Quality:
    """What the answers were worth. Scores that are no chances (logits) are split at nought."""
    answer = np.asarray(answer)
    answer = answer[:, 0] if answer.ndim == 2 and answer.shape[1] == 1 else answer
    if answer.ndim > 2:
        raise Invalid("answers of several dimensions cannot be judged", "give a score for each class, or a number")
    known = np.asarray(truth)
    known = texts(known) if known.dtype.kind == "O" else known
    task = task_of(known, answer)
    if len(labels):  # Whoever names classes foretells classes.
        task = BINARY if len(labels) == 2 and answer.dtype.kind == "f" else CLASSES
    if answer.ndim == 2 and not len(labels) and known.dtype.kind == "U":
        labels = np.unique(known).tolist()
    chances = answer.dtype.kind != "f" or bool(((answer >= 0) & (answer <= 1) | ~np.isfinite(answer)).all())
    if task == BINARY and answer.ndim == 2 and not chances:
        # Their difference decides, and no axis has that: metrics, and no curve.
        found = calibrate(task, known, answer[:, 1] - answer[:, 0], labels=labels, threshold=0.0)
        return replace(found, scores=(), chances=(), weights=())
    # Of two equal scores the first is chosen, as by argmax.
    half = float(np.nextafter(0.5, 1)) if answer.ndim == 2 else 0.5
    return calibrate(task, known, answer, labels=labels, threshold=half if chances else 0.0)


def made(
    columns: Mapping[str, NDArray[Any]],
    outputs: Mapping[str, NDArray[Any]],
    truth: Any = None,
    *,
    aside: Mapping[str, NDArray[Any]] | None = None,
    labels: Sequence[Any] = (),
    **about: Any,
) -> Profile:
    """A profile whose inputs are `columns` and whose answers are those to other rows, held out: their truth, and of
    their inputs (`aside`) at least the segment's column. Without `aside` they are the same rows. `about`: target,
    segment, source, tensors, weights, seed."""
    target, segment = str(about.pop("target", "")) or "label", str(about.get("segment", ""))
    first = unchecked(columns, **about)
    answers = {name: _unlike(columns, columns_of(name, one, most=MOST_SCORES)) for name, one in outputs.items()}
    said = {column: values for found in answers.values() for column, values in found.items()}
    known = None if truth is None or _all_missing(truth) else np.asarray(truth)
    if not said and known is None:
        return checked(first)
    best = score_output(outputs)
    if best and len(answers[best]) > 2 and CHOSEN not in {*said, *columns}:
        said[CHOSEN] = np.stack(list(answers[best].values()), 1).argmax(1)
    quality = judged(known, outputs[best], labels) if known is not None and best else Quality()
    tensors = {**about.get("tensors", {}), **{name: tuple(found) for name, found in answers.items()}}
    beside = {segment: (columns if aside is None else aside)[segment]} if segment else {}
    label = (
        {}
        if known is None
        else {"label": known, "label_name": f"{target} true" if target in {**columns, **said} else target}
    )
    second = unchecked(beside, predictions=said, segment=segment, **label)  # type: ignore[arg-type]
    if segment:
        # By the segments of the inputs, whatever the held-out rows have.
        second = counted(replace(second, segments=first.segments), {**beside, **said, **_named(label)})
    return checked(_joined(first, second, len(beside), replace(quality, output=best), tensors))


def _unlike(columns: Mapping[str, Any], found: Columns) -> Columns:
    """Under other names than those of inputs."""
    return {f"{name} said" if name in columns else name: values for name, values in found.items()}


def _named(label: Mapping[str, Any]) -> Columns:
    return {label["label_name"]: label["label"]} if label else {}


def _joined(
    first: Profile, second: Profile, skip: int, quality: Quality, tensors: Mapping[str, tuple[str, ...]]
) -> Profile:
    """The axes of both, without those of the second that only tell its segments."""
    axes: tuple[Axis, ...] = first.axes + second.axes[skip:]
    parts = zip(first.by_segment, second.by_segment, strict=True) if second.by_segment else ()
    return replace(
        first, axes=axes, counts=first.counts + second.counts[skip:], rows=max(first.rows, second.rows),
        by_segment=tuple(one + other[skip:] for one, other in parts), quality=quality, tensors=dict(tensors),
    )  # fmt: skip


def _all_missing(truth: Iterable[Any]) -> bool:
    values = np.asarray(truth)
    return not len(values) or (values.dtype.kind == "f" and not np.isfinite(values).any())


def task_says(profile: Profile) -> str:
    """In words, for whoever reads a log."""
    quality = profile.quality
    inputs = sum(axis.role == "input" for axis in profile.axes)
    kind = {BINARY: "two classes", CLASSES: "several classes", "": "answers without truth"}.get(quality.task, "numbers")
    return f"{inputs} inputs over {profile.rows:,} rows, {kind}" + (
        f" judged on {quality.rows:,}" if quality.rows else ""
    )
