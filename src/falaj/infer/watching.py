"""Counts what a model is given and what it answers, as its profile says, without anybody noticing.

Whole runs are copied into a buffer and counted some hundred rows at a time. What that takes is measured, and where it
is more than its share only some runs are counted, drawn by chance: what the values are has no say in it.
"""

import logging
from _thread import allocate_lock
from collections.abc import Sequence
from pathlib import Path
from random import random
from time import monotonic, process_time, thread_time
from typing import Any, NamedTuple

import numpy as np

from falaj.core.errors import Invalid
from falaj.core.sheet import TensorSpec
from falaj.drift.profile import digest, read_profile
from falaj.drift.records import FILE, INPUT, NUMBER, PREDICTION, Profile
from falaj.drift.tally import Tally
from falaj.infer.batcher import BROKEN
from falaj.infer.columns import CHOSEN, chosen, derived, figures, plain, scores_of
from falaj.infer.queue import Waiting
from falaj.infer.records import Arrays, Counting, ModelConfig
from falaj.infer.runtimes.verify import Files
from falaj.oip.tensors import Lot

Specs = Sequence[TensorSpec]
Tensors = dict[str, tuple[str, ...]]
_log = logging.getLogger(__name__)
BLOCK_ROWS, BLOCK_VALUES, LEAST_ROWS = 1024, 51_200, 32
"""Counted at once: many, because each block costs the same again; few, because somebody waits meanwhile."""
MOST_ROWS = 4096
"""Of one run; of a larger one every second row is counted, or every third, …"""
SAMPLE_ROWS = 32
"""Rows that a delta carries along."""
_WIDE = ("INT32", "INT64", "UINT32", "UINT64", "FP64")
"""What a float32 cannot hold."""
_NOTE_S, _ID_S, _PERIOD_S, _BURST_S, _LEAST, _IDLE = 3e-6, 5e-8, 0.25, 0.02, 2e-4, 0.1


class Governor:
    """Lets a share of runs be counted, so that counting takes no more than its share of what the process takes.

    A process that does next to nothing has time to spare: it counts as one that is busy for a tenth of the time.
    """

    def __init__(self, most: float) -> None:
        self.share, self._most = 1.0, most
        self._spent, self._since, self._used = 0.0, monotonic(), process_time()

    def wants(self) -> bool:
        """Whether this run is counted."""
        return self.share >= 1.0 or random() < self.share  # noqa: S311 # nosec B311 - a sample is no secret

    def spent(self, seconds: float) -> None:
        """What counting took."""
        self._spent += seconds
        now = monotonic()
        if now - self._since >= _PERIOD_S or self._spent > _BURST_S:
            used = process_time()
            allowed = self._most * max(used - self._used, _IDLE * (now - self._since), 1e-4)
            self.share = min(1.0, max(_LEAST, self.share * min(4.0, allowed / max(self._spent, 1e-9))))
            self._spent, self._since, self._used = 0.0, now, used


class _Part(NamedTuple):
    """One tensor, and the columns of the buffer that it goes to."""

    output: bool
    at: int
    first: int
    last: int
    datatype: str
    figures: bool


class Watching:
    """One model's counting by one profile. `note` may be called from any thread."""

    def __init__(self, profile: Profile, inputs: Specs, outputs: Specs, told: Counting, *, batches: bool) -> None:
        self.profile, self.digest = profile, digest(profile)
        self._batches = batches
        self._tally = Tally(profile, keep=SAMPLE_ROWS)
        self._governor = Governor(told.share)
        tensors = fitting(profile, inputs, outputs, batches=batches)
        specs = [(False, at, spec) for at, spec in enumerate(inputs)] + [
            (True, at, spec) for at, spec in enumerate(outputs)
        ]
        self._parts, self._names = _laid(specs, tensors, text=False)
        self._texts, self._text_names = _laid(specs, tensors, text=True)
        self._scores = [self._names.index(one) for one in scores_of(tensors, outputs) if one in self._names]
        self._argmax = any(axis.name == CHOSEN and axis.role != INPUT for axis in profile.axes) and bool(self._scores)
        wide = any(spec.datatype in _WIDE for _, _, spec in specs if spec.name in tensors)
        self._size = max(LEAST_ROWS, min(BLOCK_ROWS, BLOCK_VALUES // max(1, len(self._names) + len(self._text_names))))
        self._matrix = np.zeros((self._size, len(self._names)), np.float64 if wide else np.float32)
        self._words = np.empty((self._size, len(self._text_names)), object)
        self._simple = not self._texts and not any(one.figures or one.datatype == "BF16" for one in self._parts)
        self._ids: list[str | bytes] = []
        """What the rows of the buffer are called: a label names them so."""
        self._filled, self._notes, self._lock, self._logged = 0, 0, allocate_lock(), False

    def note(self, inputs: Arrays, outputs: Arrays, members: Sequence[Waiting] = ()) -> None:
        """One run. It never fails: rows that the profile does not know are counted as such."""
        rows = len(inputs[0]) if self._batches and inputs else 1
        with self._lock:
            self._tally.seen += rows
            if not self._governor.wants():
                return
            try:
                self._put(inputs, outputs, rows, members)
            except BROKEN as error:
                self._tally.odd += rows
                if not self._logged:
                    self._logged = True
                    _log.warning("rows are not as the profile says: %s", error)

    def take(self) -> Tally:
        """What was counted since the last time."""
        with self._lock:
            self._count()
            taken, self._tally = self._tally, self._tally.anew()
            return taken

    @property
    def size_bytes(self) -> int:
        """What it takes of memory."""
        return self._matrix.nbytes + self._words.nbytes + self._tally.size_bytes

    def _put(self, inputs: Arrays, outputs: Arrays, rows: int, members: Sequence[Waiting]) -> None:
        """Into the buffer; all of a run, or nothing."""
        self._notes += 1
        at, end = self._filled, self._filled + rows
        if self._simple and end < self._size:  # The way most of them go.
            for output, index, first, last, _, _ in self._parts:
                array = outputs[index] if output else inputs[index]
                self._matrix[at:end, first:last] = array.reshape(rows, last - first)
            self._filled = end
            self._ids += _ids(members, rows)
        else:
            self._put_parts(inputs, outputs, rows, _ids(members, rows))

    def _put_parts(self, inputs: Arrays, outputs: Arrays, rows: int, ids: Sequence[str | bytes]) -> None:
        """The same for tensors of any kind and runs of any size."""
        given = [_flat(inputs, outputs, part, rows) for part in self._parts]
        texts = [_flat(inputs, outputs, part, rows) for part in self._texts]
        step = -(-rows // MOST_ROWS)
        first = int(random() * step)  # noqa: S311 # nosec B311 - a sample is no secret
        while first < rows:
            at = self._filled
            last = min(rows, first + (self._size - at) * step)
            end = at + -(-(last - first) // step)
            for part, flat in zip(self._parts, given, strict=True):
                self._matrix[at:end, part.first : part.last] = flat[first:last:step]
            for part, flat in zip(self._texts, texts, strict=True):
                self._words[at:end, part.first : part.last] = flat[first:last:step]
            self._ids += ids[first:last:step]
            self._filled, first = end, first + (end - at) * step
            if end == self._size:
                self._count()

    def _count(self) -> None:
        rows, self._filled, ids, self._ids = self._filled, 0, self._ids, []
        if not rows:
            return
        began = thread_time()
        block = self._matrix[:rows]
        beside = {name: self._words[:rows, at] for at, name in enumerate(self._text_names)}
        if self._argmax:
            beside[CHOSEN] = chosen(block[:, self._scores])
        try:
            self._tally.add_matrix(block, self._names, beside, ids=ids, seen=0)
        except BROKEN:  # Counting must not cost anybody an answer, whatever is wrong with it.
            self._tally.odd += rows
            _log.exception("rows were not counted")
        self._words[:rows] = None  # Nobody's texts are kept longer than they must.
        self._governor.spent(thread_time() - began + _NOTE_S * self._notes + _ID_S * rows)
        self._notes = 0


def read_folder(config: ModelConfig) -> Profile | None:
    """The profile that came with the model, if one did."""
    if not config.folder or not config.watch.share or not (Path(config.folder) / FILE).is_file():
        return None
    return read_profile(Files(config.folder, config.files).read(FILE))


def fitting(profile: Profile, inputs: Specs, outputs: Specs, *, batches: bool = True) -> Tensors:
    """The tensors that the profile names; Invalid when it is about another model."""
    tensors = dict(profile.tensors) or _guessed(profile, inputs, outputs)
    specs = {spec.name: spec for spec in (*inputs, *outputs)}
    axes = {axis.name: axis for axis in profile.axes}
    if not tensors or set(tensors) - set(specs):
        odd = min(set(tensors) - set(specs), default="nothing")
        raise Invalid(f"the profile watches {odd[:80]!r}, which the model does not have", "make one of this model")
    for name, columns in tensors.items():
        trailing = specs[name].shape[1:] if batches else specs[name].shape
        open_ = any(size < 0 for size in trailing)
        width = int(np.prod(trailing)) if not open_ else len(columns)
        if width != len(columns) and columns != figures(name):
            raise Invalid(f"{name[:80]!r} has {width} values a row, the profile {len(columns)}", "make it anew")
        texts = specs[name].datatype == "BYTES"
        if texts and any(axes[one].kind == NUMBER for one in columns if one in axes):
            raise Invalid(f"{name[:80]!r} is text, and the profile has numbers", "make one of this model")
    return tensors


def _guessed(profile: Profile, inputs: Specs, outputs: Specs) -> Tensors:
    """A profile that names no tensors: its columns are tensors, or those of the only one, in order."""
    found: Tensors = {}
    for specs, role in ((inputs, INPUT), (outputs, PREDICTION)):
        names = tuple(axis.name for axis in profile.axes if axis.role == role and axis.name != CHOSEN)
        known = {spec.name: (spec.name,) for spec in specs if spec.name in names}
        if len(known) == len(names):
            found |= known
        elif len(specs) == 1 and names:
            found[specs[0].name] = names
    return found


def _laid(
    specs: Sequence[tuple[bool, int, TensorSpec]], tensors: Tensors, *, text: bool
) -> tuple[list[_Part], tuple[str, ...]]:
    """Where each tensor goes, of numbers or of texts; and the names of the columns, in order."""
    parts: list[_Part] = []
    names: list[str] = []
    for output, at, spec in specs:
        columns = tensors.get(spec.name)
        if columns is not None and (spec.datatype == "BYTES") == text:
            place = (len(names), len(names) + len(columns))
            parts.append(_Part(output, at, *place, spec.datatype, columns == figures(spec.name)))
            names += columns
    return parts, tuple(names)


def _ids(members: Sequence[Waiting], rows: int) -> Sequence[str | bytes]:
    """What each row of a run is called: as the gateway calls its request, else as the caller does."""
    if len(members) == rows:
        return [one.ask.name or one.ask.id for one in members]
    whole: list[str | bytes] = []
    for one in members:
        ask = one.ask
        names = ask.names if isinstance(ask, Lot) else [ask.name or ask.id]
        whole += names if len(names) == one.rows else [name for name in names for _ in range(one.rows // len(names))]
    return whole if len(whole) == rows else [""] * rows


def _flat(inputs: Arrays, outputs: Arrays, part: _Part, rows: int) -> Any:
    array = plain((outputs if part.output else inputs)[part.at], part.datatype)
    flat = array.reshape(rows, -1)
    if flat.dtype == object and part.datatype != "BYTES":
        flat = flat.astype(np.float64)
    if part.figures and rows:
        flat = derived(flat)
    if flat.shape[1] != part.last - part.first:
        raise Invalid(f"{flat.shape[1]} values a row, not {part.last - part.first}", "send rows like the training's")
    return flat
