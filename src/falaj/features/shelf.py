"""What the parts of the features' desk share: definitions and streams as their records hold them."""

from collections.abc import Callable
from typing import Any

from falaj.asof.encrypted_online import EncryptedOnline
from falaj.asof.records import Window
from falaj.core.context import Context
from falaj.core.data import dataclass
from falaj.core.errand import Here
from falaj.core.errors import Conflict, Invalid, NotFound, Stale
from falaj.core.label import Label
from falaj.core.ports import Series
from falaj.core.ref import Ref
from falaj.features.records import KINDS, EntityDef, ServiceDef, ViewDef
from falaj.features.stream import Arrival, Stream, face_of, labels_of, stream_ref
from falaj.features.tail import Tail
from falaj.govern.destruction import DestructionChecks
from falaj.govern.keys import Keyring
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.records import Record

HEAD = {"head": "yes"}
DEFS: dict[str, Any] = {"entity": EntityDef, "view": ViewDef, "service": ServiceDef}


@dataclass(frozen=True, slots=True)
class View:
    """One version of a view with all that belongs to it."""

    record: Record
    definition: ViewDef
    entity: EntityDef
    stream: Stream
    rev: int
    """Of the stream's record."""

    @property
    def ref(self) -> Ref:
        """Pinned."""
        return self.record.ref

    @property
    def zone(self) -> str:
        """Where its rows lie."""
        return self.definition.zone or self.record.zone

    @property
    def arrival(self) -> Arrival:
        """The same for whoever brings or reads rows."""
        stream, labels = self.stream, labels_of(self.definition)
        return Arrival(stream, self.definition, self.entity, self.ref, stream.next_seq, self.zone, labels)

    def windows_of(self, face: str) -> tuple[Window, ...]:
        """The windows over columns of one face; those that only count rows are of the first."""
        faces = {one.name: face_of(one.label) for one in self.definition.features}
        return tuple(one for one in self.definition.windows if faces.get(one.of, "") == face)


class Shelf:
    """The furniture every part of the desk stands on."""

    def __init__(
        self,
        ledger: Ledger,
        act: Callable[..., Here],
        series: Callable[[], Series],
        online: Callable[[str], EncryptedOnline],
        keyring: Keyring,
        destruction: DestructionChecks,
    ) -> None:
        """`act` gives the platform with an actor bound: what we read for somebody, they must be allowed to read."""
        self._ledger = ledger
        self._act = act
        self._series = series
        self._online = online
        self._keyring = keyring
        self._destruction = destruction

    def _moved(self) -> None:
        """Readers read from another place now; whoever keeps plans makes them anew."""

    def _tail(self) -> Tail:
        return Tail(self._series(), self._ledger)

    def _pseudonym(self, ctx: Context, view: View, person: bytes) -> str:
        """What the platform calls a person in the zone of a view, by the bytes of the key that names them."""
        return self._keyring.subjects.pseudonym(ctx.tenant, view.zone, person.hex() or "00")

    def _as(self, ctx: Context) -> Here:
        """The platform as this caller sees it."""
        return self._act(ctx.actor, ctx.purpose)

    def _view(self, tx: Reader, name: Ref) -> View:
        """A version of a view, the newest when none is named, with its entity and its stream."""
        record = need(tx, name, "view")
        definition = define_of(record)
        entity = define_of(tx.need(Ref.parse(record.body["entity"])))
        kept = tx.get(stream_ref(record.ref, record.body["rows"]))
        stream: Stream = from_plain(Stream, kept.body) if kept else Stream(record.ref.bare, record.body["rows"])
        return View(record, definition, entity, stream, kept.rev if kept else 0)


def keep(tx: Writer, view: View, stream: Stream) -> Record:
    """Write the stream over the revision it was read at."""
    ref, terms = stream_ref(stream.view, stream.rows), {"stream": "yes"}
    try:
        return tx.put(ref, to_plain(stream), rev=view.rev or None, label=Label(), zone=view.zone, terms=terms)
    except Conflict as error:
        raise Stale(f"somebody else wrote rows of {stream.view} just now", "call again", view.ref) from error


def need(tx: Reader, name: Ref, *kinds: str) -> Record:
    """The record of a definition's version, the newest when none is named."""
    if name.kind not in (kinds or KINDS):
        raise Invalid(
            f"{name} is no {' or '.join(kinds or KINDS)}", f"for example {(kinds or KINDS)[0]}:fraud/spend", name
        )
    if name.pinned:
        return tx.need(name)
    head = tx.get(name.bare)
    newest = head.body.get("newest", "") if head else ""
    chosen = newest if name.version in ("", "latest") else ""
    if not chosen:
        raise NotFound(f"there is no {name}", "falaj features list shows what there is", name)
    return tx.need(name.at(chosen))


def define_of(record: Record) -> Any:
    """The definition a version's record holds."""
    return from_plain(DEFS[record.key.kind], record.body["definition"])
