"""Requests that came in one piece, run as one where they ask alike: a gateway sends what its turn gathered at once, and
most of what a small model's request costs is handing it on, not running it.

Whatever is not plain goes by itself, and so does each of those whose run failed: nobody pays for a neighbour.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from falaj.core.errors import FalajError
from falaj.oip.calls import Asked, Call, Cancel, Reply, Tell
from falaj.oip.lots import encode_each, joined, joined_tails, rows_of
from falaj.oip.rest import Known, Wanted, header_bytes, known, problem
from falaj.oip.tensors import Answer, Ask, Lot

if TYPE_CHECKING:
    from falaj.infer.engine import Engine
    from falaj.infer.session import Session

Read = Callable[[str, str, Call], tuple[Ask, Wanted]]
Alone = Callable[[Ask, Wanted, Call, Callable[[Reply], Any]], Cancel | None]
"""How a request of a model and version is read, and how it goes by itself."""


class Group:
    """Requests that ask alike: those whose bytes stand behind one header that is known, or those that are read."""

    __slots__ = ("asked", "given", "header", "rows", "wanted")

    def __init__(self, header: Known | None, wanted: Wanted, rows: int) -> None:
        self.header, self.wanted, self.rows = header, wanted, rows
        """`rows` are those of one request; 0 where it goes by itself."""
        self.asked: list[Asked] = []
        self.given: list[Any] = []
        """Of each what stands behind the header; or the request itself."""


class Together:
    """What takes them apart and puts them together."""

    def __init__(self, engine: "Engine", read: Read, alone: Alone) -> None:
        self._engine, self._read, self._alone = engine, read, alone

    def take(self, model: str, version: str, asked: Sequence[Asked], tell: Tell) -> list[tuple[int, Cancel | None]]:
        """Run inferences of one model; gives what ends those that go by themselves."""
        groups: dict[Any, Group] = {}
        for one in asked:
            call = one[1]
            try:
                group, given = self._group(model, version, call, groups)
            except FalajError as error:
                tell(one[0], problem(error))
                continue
            group.asked.append(one)
            group.given.append(given)
        session, left = self._engine.joining(model, version), list[tuple[int, Cancel | None]]()
        for group in groups.values():
            most = session.joins // group.rows if session is not None and group.rows else 0
            if session is not None and most > 1 and len(group.asked) > 1:
                for at in range(0, len(group.asked), most):
                    self._run(session, group, slice(at, at + most), tell)
            else:
                left += self._apart(model, version, group, tell)
        return left

    def _group(self, model: str, version: str, call: Call, groups: dict[Any, Group]) -> tuple[Group, Any]:
        """Where a request belongs, and what is kept of it."""
        json_bytes = header_bytes(call.headers)
        if json_bytes > 0 and (found := known(call.body, json_bytes)) is not None:
            group = groups.get(found[0])
            if group is None:
                header = found[0]
                group = groups[header] = Group(header, header.wanted, rows_of([one[2] for one in header.inputs]))
            return group, found[1]
        ask, wanted = self._read(model, version, call)
        if _plain(ask) and type(wanted) is bool:
            sign = (wanted, *[(one.name, one.datatype, one.shape) for one in ask.inputs])
            group = groups.get(sign)
            if group is None:
                group = groups[sign] = Group(None, wanted, rows_of([one.shape for one in ask.inputs]))
        else:
            group = groups[call] = Group(None, wanted, 0)
        return group, ask

    def _run(self, session: "Session", group: Group, part: slice, tell: Tell) -> None:
        asked, given = group.asked[part], group.given[part]
        names, lot = [call.name for _, call in asked], None
        if group.header is not None:
            ids = [""] * len(asked)
            lot = joined_tails(session.name, session.version, group.header, given, names)
        else:
            ids = [ask.id for ask in given]
            lot = joined(session.name, session.version, given, names)
        session.enter(lot, partial(self._ran, lot, group, part, ids, tell))

    def _ran(
        self, lot: Lot, group: Group, part: slice, ids: Sequence[str], tell: Tell, answer: Answer | FalajError
    ) -> None:
        asked = group.asked[part]
        if isinstance(answer, FalajError):
            again = Group(group.header, group.wanted, 0)
            again.asked, again.given = asked, group.given[part]
            self._apart(lot.model, lot.version, again, tell)
            return
        for (stream, _), reply in zip(asked, encode_each(answer, group.wanted, ids), strict=True):
            tell(stream, reply)

    def _apart(self, model: str, version: str, group: Group, tell: Tell) -> list[tuple[int, Cancel | None]]:
        left = []
        for (stream, call), given in zip(group.asked, group.given, strict=True):
            ask = given
            if group.header is not None:
                ask = group.header.again(model, version, given)[0]
                ask.name = call.name
            left.append((stream, self._alone(ask, group.wanted, call, partial(tell, stream))))
        return left


def _plain(ask: Ask) -> bool:
    """Whether it says nothing of how it is to be run, and its inputs are numbers."""
    said = ask.parameters or ask.outputs or ask.sequence or ask.priority or ask.deadline
    return not said and all(one.datatype != "BYTES" for one in ask.inputs)
