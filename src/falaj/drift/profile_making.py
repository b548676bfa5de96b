"""The profile of a model: its inputs as columns, its answers as columns, and what they were worth where truth is known.

How tensors become columns is said here once: who makes profiles and who counts what is served must agree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Invalid
from falaj.drift.performance import detect_task, to_texts
from falaj.drift.performance_estimate import calibrate_quality
from falaj.drift.profiles import build_unchecked_profile, count_rows, require_valid
from falaj.drift.records import (
    MAX_CLASS_SCORES,
    MAX_COLUMNS,
    TASK_BINARY,
    TASK_CLASSES,
    DataProfile,
    ModelQuality,
    ProfileAxis,
)

Columns = dict[str, NDArray[Any]]
CHOSEN_COLUMN = "prediction"
"""The column of the class with the highest score; no tensor names it, it is told by the scores."""


def to_columns(
    name: str, values: NDArray[Any], names: Sequence[str] = (), *, max_columns: int = MAX_COLUMNS
) -> Columns:
    """A tensor as columns: one by its own name; several by the names given, else NAME[0], NAME[1], …; of one with more
    than `max_columns` values a row, mean and deviation of each row."""
    values = np.asarray(values)
    flat = values.reshape(len(values), -1) if len(values) else values.reshape(0, int(np.prod(values.shape[1:])))
    width = flat.shape[1]
    if width > max_columns:
        as_float = flat.astype(np.float64)
        return {f"{name}.mean": as_float.mean(1), f"{name}.std": as_float.std(1)}
    own_names = [name] if width == 1 else [f"{name}[{position}]" for position in range(width)]
    return {
        column_name: flat[:, position]
        for position, column_name in enumerate(names if len(names) == width else own_names)
    }


def find_score_output(outputs: Mapping[str, NDArray[Any]]) -> str:
    """The answer that is judged: scores of classes where there are some, else the first number."""
    floats = [name for name, values in outputs.items() if values.dtype.kind == "f"]
    return max(floats or list(outputs), key=lambda name: int(np.prod(outputs[name].shape[1:])), default="")


def judge_answers(truth: Any, answer: NDArray[Any], labels: Sequence[Any] = ()) -> ModelQuality:
    """What the answers were worth. Scores that are no chances (logits) are split at nought."""
    answer = np.asarray(answer)
    answer = answer[:, 0] if answer.ndim == 2 and answer.shape[1] == 1 else answer
    if answer.ndim > 2:
        raise Invalid("answers of several dimensions cannot be judged", "give a score for each class, or a number")
    truth_values = np.asarray(truth)
    truth_values = to_texts(truth_values) if truth_values.dtype.kind == "O" else truth_values
    task = detect_task(truth_values, answer)
    if len(labels):  # Whoever names classes foretells classes.
        task = TASK_BINARY if len(labels) == 2 and answer.dtype.kind == "f" else TASK_CLASSES
    if answer.ndim == 2 and not len(labels) and truth_values.dtype.kind == "U":
        labels = np.unique(truth_values).tolist()
    are_chances = answer.dtype.kind != "f" or bool(((answer >= 0) & (answer <= 1) | ~np.isfinite(answer)).all())
    if task == TASK_BINARY and answer.ndim == 2 and not are_chances:
        # Their difference decides, and no axis has that: metrics, and no curve.
        quality = calibrate_quality(task, truth_values, answer[:, 1] - answer[:, 0], labels=labels, threshold=0.0)
        return replace(quality, scores=(), chances=(), weights=())
    # Of two equal scores the first is chosen, as by argmax.
    equal_score_threshold = float(np.nextafter(0.5, 1)) if answer.ndim == 2 else 0.5
    return calibrate_quality(
        task, truth_values, answer, labels=labels, threshold=equal_score_threshold if are_chances else 0.0
    )


def make_profile(
    columns: Mapping[str, NDArray[Any]],
    outputs: Mapping[str, NDArray[Any]],
    truth: Any = None,
    *,
    held_out_columns: Mapping[str, NDArray[Any]] | None = None,
    labels: Sequence[Any] = (),
    **options: Any,
) -> DataProfile:
    """A profile whose inputs are `columns` and whose answers are those to other rows, held out: their truth, and of
    their inputs (`held_out_columns`) at least the segment's column. Without `held_out_columns` they are the same rows.
    `options`: target, segment, source, tensors, weights, seed."""
    target, segment = str(options.pop("target", "")) or "label", str(options.get("segment", ""))
    input_profile = build_unchecked_profile(columns, **options)
    answer_columns = {
        name: _avoid_input_names(columns, to_columns(name, output_values, max_columns=MAX_CLASS_SCORES))
        for name, output_values in outputs.items()
    }
    predictions = {
        column: values for output_columns in answer_columns.values() for column, values in output_columns.items()
    }
    known_truth = None if truth is None or _all_missing(truth) else np.asarray(truth)
    if not predictions and known_truth is None:
        return require_valid(input_profile)
    judged_output = find_score_output(outputs)
    if judged_output and len(answer_columns[judged_output]) > 2 and CHOSEN_COLUMN not in {*predictions, *columns}:
        predictions[CHOSEN_COLUMN] = np.stack(list(answer_columns[judged_output].values()), 1).argmax(1)
    quality = (
        judge_answers(known_truth, outputs[judged_output], labels)
        if known_truth is not None and judged_output
        else ModelQuality()
    )
    tensors = {
        **options.get("tensors", {}),
        **{name: tuple(output_columns) for name, output_columns in answer_columns.items()},
    }
    segment_columns = {segment: (columns if held_out_columns is None else held_out_columns)[segment]} if segment else {}
    label = (
        {}
        if known_truth is None
        else {"label": known_truth, "label_name": f"{target} true" if target in {**columns, **predictions} else target}
    )
    answer_profile = build_unchecked_profile(segment_columns, predictions=predictions, segment=segment, **label)  # type: ignore[arg-type]
    if segment:
        # By the segments of the inputs, whatever the held-out rows have.
        answer_profile = count_rows(
            replace(answer_profile, segments=input_profile.segments),
            {**segment_columns, **predictions, **_get_label_columns(label)},
        )
    return require_valid(
        _join_profiles(
            input_profile, answer_profile, len(segment_columns), replace(quality, output=judged_output), tensors
        )
    )


def _avoid_input_names(columns: Mapping[str, Any], output_columns: Columns) -> Columns:
    """Under other names than those of inputs."""
    return {f"{name} said" if name in columns else name: values for name, values in output_columns.items()}


def _get_label_columns(label: Mapping[str, Any]) -> Columns:
    return {label["label_name"]: label["label"]} if label else {}


def _join_profiles(
    first: DataProfile,
    second: DataProfile,
    skipped_axes: int,
    quality: ModelQuality,
    tensors: Mapping[str, tuple[str, ...]],
) -> DataProfile:
    """The axes of both, without those of the second that only tell its segments."""
    axes: tuple[ProfileAxis, ...] = first.axes + second.axes[skipped_axes:]
    segment_counts = zip(first.by_segment, second.by_segment, strict=True) if second.by_segment else ()
    return replace(
        first,
        axes=axes,
        counts=first.counts + second.counts[skipped_axes:],
        rows=max(first.rows, second.rows),
        by_segment=tuple(counts + other_counts[skipped_axes:] for counts, other_counts in segment_counts),
        quality=quality,
        tensors=dict(tensors),
    )


def _all_missing(truth: Iterable[Any]) -> bool:
    values = np.asarray(truth)
    return not len(values) or (values.dtype.kind == "f" and not np.isfinite(values).any())


def describe_task(profile: DataProfile) -> str:
    """In words, for whoever reads a log."""
    quality = profile.quality
    inputs = sum(axis.role == "input" for axis in profile.axes)
    kind = {TASK_BINARY: "two classes", TASK_CLASSES: "several classes", "": "answers without truth"}.get(
        quality.task, "numbers"
    )
    return f"{inputs} inputs over {profile.rows:,} rows, {kind}" + (
        f" judged on {quality.rows:,}" if quality.rows else ""
    )
