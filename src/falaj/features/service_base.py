"""What the parts of the features' desk share: definitions and streams as their records hold them."""

from collections.abc import Callable
from typing import Any

from falaj.asof.encrypted_online_store import EncryptedOnlineStore
from falaj.asof.records import Window
from falaj.core.client_command import Client
from falaj.core.context import CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Invalid, NotFound, StaleRevision
from falaj.core.label import Label
from falaj.core.ports import SeriesStore
from falaj.core.ref import Ref
from falaj.features.records import KINDS, EntityDef, ServiceDef, ViewDef
from falaj.features.row_stream import RowStream, ViewDetails, get_column_group, list_group_labels, make_stream_ref
from falaj.features.write_buffer import WriteBuffer
from falaj.govern.destruction_checks import DestructionChecks
from falaj.govern.keyring import Keyring
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord

HEAD_TERMS = {"head": "yes"}
DEFINITION_TYPES: dict[str, Any] = {"entity": EntityDef, "view": ViewDef, "service": ServiceDef}


@dataclass(frozen=True, slots=True)
class StoredView:
    """One version of a view with all that belongs to it."""

    record: LedgerRecord
    definition: ViewDef
    entity: EntityDef
    stream: RowStream
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
    def arrival(self) -> ViewDetails:
        """The same for whoever brings or reads rows."""
        stream, labels = self.stream, list_group_labels(self.definition)
        return ViewDetails(stream, self.definition, self.entity, self.ref, stream.next_seq, self.zone, labels)

    def windows_of(self, group: str) -> tuple[Window, ...]:
        """The windows over columns of one face; those that only count rows are of the first."""
        group_by_column = {item.name: get_column_group(item.label) for item in self.definition.features}
        return tuple(item for item in self.definition.windows if group_by_column.get(item.of, "") == group)


class FeatureServiceBase:
    """The furniture every part of the desk stands on."""

    def __init__(
        self,
        ledger: Ledger,
        open_client: Callable[..., Client],
        get_series_store: Callable[[], SeriesStore],
        get_online_store: Callable[[str], EncryptedOnlineStore],
        keyring: Keyring,
        destruction: DestructionChecks,
    ) -> None:
        """`open_client` gives the platform with an actor bound: what we read for somebody, they must be allowed to
        read."""
        self._ledger = ledger
        self._open_client = open_client
        self._get_series_store = get_series_store
        self._get_online_store = get_online_store
        self._keyring = keyring
        self._destruction = destruction

    def _clear_plans(self) -> None:
        """Readers read from another place now; whoever keeps plans makes them anew."""

    def _open_buffer(self) -> WriteBuffer:
        return WriteBuffer(self._get_series_store(), self._ledger)

    def _make_pseudonym(self, ctx: CallContext, view: StoredView, person: bytes) -> str:
        """What the platform calls a person in the zone of a view, by the bytes of the key that names them."""
        return self._keyring.subjects.pseudonym(ctx.tenant, view.zone, person.hex() or "00")

    def _as_caller(self, ctx: CallContext) -> Client:
        """The platform as this caller sees it."""
        return self._open_client(ctx.actor, ctx.purpose)

    def _read_view(self, tx: LedgerReader, name: Ref) -> StoredView:
        """A version of a view, the newest when none is named, with its entity and its stream."""
        record = require_definition(tx, name, "view")
        definition = read_definition(record)
        entity = read_definition(tx.need(Ref.parse(record.body["entity"])))
        stream_record = tx.get(make_stream_ref(record.ref, record.body["rows"]))
        stream: RowStream = (
            from_plain(RowStream, stream_record.body)
            if stream_record
            else RowStream(record.ref.bare, record.body["rows"])
        )
        return StoredView(record, definition, entity, stream, stream_record.rev if stream_record else 0)


def put_stream(tx: LedgerWriter, view: StoredView, stream: RowStream) -> LedgerRecord:
    """Write the stream over the revision it was read at."""
    ref, terms = make_stream_ref(stream.view, stream.rows), {"stream": "yes"}
    try:
        return tx.put(ref, to_plain(stream), rev=view.rev or None, label=Label(), zone=view.zone, terms=terms)
    except Conflict as error:
        raise StaleRevision(f"somebody else wrote rows of {stream.view} just now", "call again", view.ref) from error


def require_definition(tx: LedgerReader, name: Ref, *kinds: str) -> LedgerRecord:
    """The record of a definition's version, the newest when none is named."""
    if name.kind not in (kinds or KINDS):
        raise Invalid(
            f"{name} is no {' or '.join(kinds or KINDS)}", f"for example {(kinds or KINDS)[0]}:fraud/spend", name
        )
    if name.pinned:
        return tx.need(name)
    head = tx.get(name.bare)
    newest = head.body.get("newest", "") if head else ""
    chosen_version = newest if name.version in ("", "latest") else ""
    if not chosen_version:
        raise NotFound(f"there is no {name}", "falaj features list shows what there is", name)
    return tx.need(name.at(chosen_version))


def read_definition(record: LedgerRecord) -> Any:
    """The definition a version's record holds."""
    return from_plain(DEFINITION_TYPES[record.key.kind], record.body["definition"])
