"""Requests that came as one, run as one where they ask alike: what a gateway's turn gathered and sent in one piece, or
what one turn of our own loop read from all connections. Most of what a small model's request costs is handing it on.

Whatever is not plain goes by itself, and so does each of those whose run failed: nobody pays for a neighbour.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from falaj.core.errors import FalajError
from falaj.infer.batcher import MODEL_ERRORS
from falaj.infer.request_queue import ResponseCallback
from falaj.oip.again import Known, Listed, Wanted, known, listed, rows_of
from falaj.oip.handler_calls import CancelCall, HttpReply, SendNumberedReply
from falaj.oip.lot_frames import TellLot
from falaj.oip.lots import answer_of, asked_of, encode_each, encode_lot, joined
from falaj.oip.rest_codec import error_reply
from falaj.oip.tensors import InferenceRequest, InferenceResponse, RequestGroup

if TYPE_CHECKING:
    from falaj.infer.engine import InferenceEngine
    from falaj.infer.model_session import ModelSession

_log = logging.getLogger(__name__)
One = tuple[int, bytes, int, bytes]
"""A request: its number, what the gateway calls it, the length of its JSON as `parse_json_length` says it, and its
body."""
Read = Callable[[str, str, int, bytes], tuple[InferenceRequest, Wanted]]
Alone = Callable[[InferenceRequest, Wanted, Callable[[HttpReply], Any]], CancelCall | None]
"""How a request of a model and version is read, and how it goes by itself."""
Left = list[tuple[int, CancelCall | None]]


class Group:
    """Requests that ask alike: those that are one that came before but for their numbers, or those that are read."""

    __slots__ = ("asked", "given", "known", "rows", "wanted")

    def __init__(self, known: Known | Listed | None, wanted: Wanted, rows: int) -> None:
        self.known, self.wanted, self.rows = known, wanted, rows
        """`rows` are those of one request; 0 where it goes by itself."""
        self.asked: list[One] = []
        self.given: list[Any] = []
        """Of each its numbers; or the request itself."""

    def part(self, part: slice) -> "Group":
        """Some of them."""
        made = Group(self.known, self.wanted, self.rows)
        made.asked, made.given = self.asked[part], self.given[part]
        return made


class Turn:
    """What came as one for one model, taken apart and put together."""

    __slots__ = (
        "_alone", "_came", "_engine", "_groups", "_left", "_model", "_read", "_tell", "_tell_lot", "_version",
    )  # fmt: skip

    def __init__(
        self, engine: "InferenceEngine", read: Read, alone: Alone, model: tuple[str, str], tell: SendNumberedReply
    ) -> None:
        self._engine, self._read, self._alone, self._tell = engine, read, alone, tell
        self._model, self._version = model
        self._groups: dict[Any, Group] = {}
        self._left: Left = []
        self._came = 0.0
        self._tell_lot: TellLot | None = None

    def take(self, asked: Sequence[One], came: float = 0.0, tell_lot: TellLot | None = None) -> Left:
        """Run them; gives what ends those that go by themselves. `came`: when the first did, where they are all that
        the turn of the loop has read, so that nothing is gained by waiting for its end. `tell_lot`: where answers go
        that could be made as one."""
        self._came, self._tell_lot, groups = came, tell_lot, self._groups
        for one in asked:
            _, _, json_bytes, body = one
            found: Any = known(body, json_bytes) if json_bytes > 0 else listed(body) if json_bytes < 0 else None
            if found is None:
                self._sort(one)
                continue
            form, given = found
            group = groups.get(form)
            if group is None:
                group = groups[form] = Group(form, form.wanted, form.rows)
            group.asked.append(one)
            group.given.append(given)
        session = self._engine.joining(self._model, self._version)
        for group in groups.values():
            self._go(session, group)
        return self._left

    def _sort(self, one: One) -> None:
        """Read a request, and find where it belongs."""
        ask = self._ask(one)
        if ask is None:
            return
        found, wanted = ask
        sign: Any = one
        rows = 0
        if _plain(found) and type(wanted) is bool:
            sign = (wanted, *[(given.name, given.datatype, given.shape) for given in found.inputs])
            rows = rows_of([given.shape for given in found.inputs])
        group = self._groups.get(sign)
        if group is None:
            group = self._groups[sign] = Group(None, wanted, rows)
        group.asked.append(one)
        group.given.append(found)

    def _ask(self, one: One) -> tuple[InferenceRequest, Wanted] | None:
        """A request, read; None where it is none, and has been told so."""
        number, name, json_bytes, body = one
        try:
            ask, wanted = self._read(self._model, self._version, json_bytes, body)
        except FalajError as error:
            self._tell(number, error_reply(error))
            return None
        ask.name = name
        return ask, wanted

    def _go(self, session: "ModelSession | None", group: Group) -> None:
        num = len(group.asked)
        most = session.curve.limit() // group.rows if session is not None and group.rows else 0
        # Before the end of the turn there may be others yet that one by itself can be run with.
        if session is None or most < 1 or (min(num, most) == 1 and not self._came):
            self._apart(group)
            return
        for at in range(0, num, most):
            self._run(session, group.part(slice(at, at + most)) if num > most else group)

    def _run(self, session: "ModelSession", group: Group) -> None:
        inputs = group.known.joined(group.given) if group.known is not None else joined(group.given)
        if inputs is None:
            self._reread(session, group)
            return
        num = len(group.asked)
        if group.known is not None:
            ids, names = [""] * num, [one[1] for one in group.asked]
        else:
            ids, names = [ask.id for ask in group.given], [ask.name or ask.id for ask in group.given]
        lot = RequestGroup(session.name, session.version, inputs, names, self._came)
        if group.known is not None:
            lot.outputs = group.known.outputs
        if num == 1:
            lot.id, lot.name = ids[0], group.asked[0][1]
        notes = [(at, self._engine.noting(asked_of(lot, at, ids[at]))) for at in self._engine.sample(num)]
        session.enter(lot, partial(self._ran, group, ids, notes), runs_now=bool(self._came))

    def _reread(self, session: "ModelSession", group: Group) -> None:
        """One of them holds no such numbers, and is told so; the others are still alike."""
        again = Group(None, group.wanted, group.rows)
        for one in group.asked:
            ask = self._ask(one)
            if ask is not None:
                again.asked.append(one)
                again.given.append(ask[0])
        if again.asked:
            self._run(session, again)

    def _ran(
        self,
        group: Group,
        ids: Sequence[str],
        notes: Sequence[tuple[int, ResponseCallback]],
        answer: InferenceResponse | FalajError,
    ) -> None:
        num, tell = len(ids), self._tell
        if isinstance(answer, FalajError):
            if num > 1:
                self._apart(group)
                return
            for _, note in notes:
                note(answer)
            tell(group.asked[0][0], error_reply(answer))
            return
        for at, note in notes:
            note(answer_of(answer, at, num, ids[at]))
        told = encode_lot(answer, group.wanted, ids)
        if told is not None and self._tell_lot is not None:
            self._tell_lot([one[0] for one in group.asked], told)
            return
        replies = map(told.reply, range(num)) if told is not None else encode_each(answer, group.wanted, ids)
        for one, reply in zip(group.asked, replies, strict=True):
            try:
                tell(one[0], reply)
            except MODEL_ERRORS:  # whoever writes the answer broke: the others are answered all the same
                _log.exception("an answer could not be handed on")

    def _apart(self, group: Group) -> None:
        """Each by itself."""
        for one, given in zip(group.asked, group.given, strict=True):
            read = (given, group.wanted) if group.known is None else self._ask(one)
            if read is not None:
                self._left.append((one[0], self._alone(read[0], read[1], partial(self._tell, one[0]))))


def _plain(ask: InferenceRequest) -> bool:
    """Whether it says nothing of how it is to be run, and its inputs are numbers."""
    said = ask.parameters or ask.outputs or ask.sequence or ask.priority or ask.deadline
    return not said and all(one.datatype != "BYTES" for one in ask.inputs)
