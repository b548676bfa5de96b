"""Leaving: a person's rows taken out of what is online and of the tail, chapters replaced by the same without them.

And samples of what was read, which the check against history replays.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from falaj.asof.entity_keys import encode_key
from falaj.core.context import CallContext
from falaj.core.errors import Denied, Invalid, StaleRevision
from falaj.core.event import generate_id
from falaj.core.operation import operation
from falaj.core.ports import SeriesBlock
from falaj.core.ref import Ref
from falaj.features.definition_operations import list_users
from falaj.features.person_keys import make_keys_ref
from falaj.features.row_operations import check_segment_groups
from falaj.features.row_removal import parse_person
from falaj.features.row_stream import (
    RowStream,
    compute_online_shape,
    compute_space_name,
    list_column_groups,
    list_group_labels,
    make_dataset_ref,
)
from falaj.features.service_base import FeatureServiceBase, StoredView, put_stream, require_definition
from falaj.features.write_buffer import BufferedRows
from falaj.govern.destruction_checks import ErasureOrder

MAX_PEOPLE = 10_000
MAX_SAMPLE_BYTES = 1 << 20
_MAX_SAMPLES = 10_000
SAMPLE_TTL_S = 30 * 86_400.0
"""So long are samples of reads kept."""
_READS_SERIES_PREFIX = "reads:"


class ErasureOperations(FeatureServiceBase):
    """How rows go, and what is known of reads."""

    @operation(writes=("view",), reads=("request",), group="erase", has_outside_effects=True)
    def forget(
        self,
        ctx: CallContext,
        view: Annotated[Ref, "which view"],
        keys: Annotated[dict[str, list[Any]], "whose rows: each key of the entity with a value for every person"],
        subject: Annotated[str, "only this key names the person: rows of all other values of the others go, too"] = "",
        request: Annotated[Ref | None, "the started erasure request that this belongs to"] = None,
    ) -> int:
        """Take people's rows out of the online store and of what was pushed, and never take them in again.

        Refused without a started erasure request (`falaj privacy erase`) or the approval of a second person, who
        approves these people of this entity: the refusal says how to ask.

        `falaj features erase` does this and all that follows: chapters, training sets, keys, and the report.

        Example:
            falaj features forget view:fraud/spend --keys '{"customer_id": ["c1"]}'
        """
        with self._ledger.read(ctx) as tx:
            stored_view = self._read_view(tx, view)
        person_keys = _encode_people(stored_view, keys, subject)
        entity = Ref.parse(stored_view.record.body["entity"]).bare
        order = ErasureOrder("features.forget", entity, _format_identifiers(keys), request)
        self._destruction.check_erasure(ctx, order)
        pseudonyms = {self._make_pseudonym(ctx, stored_view, value) for value in person_keys}
        self._mark_erased(ctx, stored_view, pseudonyms)
        names_every_key = [key.name for key in stored_view.entity.keys] == list(keys)
        deleted_count = self._delete_online_rows(ctx, stored_view, person_keys, names_every_key)
        self._delete_read_samples(ctx, stored_view.ref)
        return deleted_count + self._delete_buffered_rows(ctx, stored_view, keys)

    @operation(writes=("view",), reads=("faces",), group="erase")
    def replace(
        self,
        ctx: CallContext,
        view: Annotated[Ref, "which view"],
        generation: Annotated[int, "which chapter"],
        faces: Annotated[dict[str, Ref], "the dataset version of each face that takes its place; none: it goes"],
        num_rows: Annotated[int, "how many rows are left in it"] = 0,
    ) -> RowStream:
        """Put the same chapter without somebody's rows, or a merged one, in the place of a chapter.

        Example:
            falaj features replace view:fraud/spend --generation 3 --faces @faces.json --num-rows 120
        """
        with self._ledger.write(ctx) as tx:
            stored_view = self._read_view(tx, view)
            if not any(segment.generation == generation for segment in stored_view.stream.chapters):
                raise StaleRevision(f"{view.bare} has no chapter {generation} any more", "look at it again", view)
            if faces:
                check_segment_groups(tx, stored_view, faces)
            segments = tuple(
                replace(segment, faces=faces, num_rows=num_rows) if segment.generation == generation else segment
                for segment in stored_view.stream.chapters
                if faces or segment.generation != generation
            )
            stream = replace(stored_view.stream, chapters=segments)
            put_stream(tx, stored_view, stream)
            tx.emit("features.replace", stored_view.ref, tuple(faces.values()), generation=generation, rows=num_rows)
        return stream

    @operation(writes=("view",), reads=("before", "after"))
    def rekey(
        self,
        ctx: CallContext,
        view: Annotated[Ref, "which view, a sealed one"],
        after: Annotated[Ref, "the version of the table of keys that counts from now on"],
        before: Annotated[Ref | None, "the one that counted; none when it is the first"] = None,
    ) -> RowStream:
        """Let another version of the table of people's keys count.

        Refused with StaleRevision when a third version counts, or this one is deleted.

        Example:
            falaj features rekey view:fraud/spend dataset:fraud/spend.rows1.keys@v2
        """
        with self._ledger.write(ctx) as tx:
            stored_view = self._read_view(tx, view)
            table = make_keys_ref(make_dataset_ref(stored_view.stream))
            record = tx.need(after)
            if after.bare != table or not record.label.covers(list_group_labels(stored_view.definition)[""]):
                raise Denied(f"{after} is not the table of keys of {view.bare}", f"publish {table}", view)
            if stored_view.stream.keys != before or record.body.get("state") != "live":
                raise StaleRevision("another table of keys counts already", "look again", view)
            stream = replace(stored_view.stream, keys=after)
            put_stream(tx, stored_view, stream)
            tx.emit("features.rekey", stored_view.ref, (after,))
        return stream

    @operation(reads=("view",), group="read")
    def pseudonyms(
        self,
        ctx: CallContext,
        view: Annotated[Ref, "which view"],
        subjects: Annotated[tuple[str, ...], "the bytes of the keys that name people, as hex"],
    ) -> tuple[str, ...]:
        """What the platform calls people in this view's zone: texts that nobody can turn back into who they are.

        Example:
            falaj features pseudonyms view:fraud/spend --subjects 6331
        """
        if len(subjects) > MAX_PEOPLE:
            raise Invalid(f"{len(subjects)} people at once", f"at most {MAX_PEOPLE}", view)
        with self._ledger.read(ctx) as tx:
            stored_view = self._read_view(tx, view)
        return tuple(self._make_pseudonym(ctx, stored_view, bytes.fromhex(subject)) for subject in subjects)

    @operation(reads=("service",), group="write")
    def sample(
        self,
        ctx: CallContext,
        service: Annotated[Ref, "which version was read"],
        reads: Annotated[str, "reads as features/serving_skew.py packs them, in base64"],
    ) -> int:
        """Tell a sample of what was read, for the check of what is served against history.

        Example:
            falaj features sample service:fraud/scorer@v1 --reads …
        """
        if len(reads) > MAX_SAMPLE_BYTES:
            raise Invalid("too many reads at once", f"at most {MAX_SAMPLE_BYTES} bytes", service)
        with self._ledger.read(ctx) as tx:
            record = require_definition(tx, service, "service", "view")
        empty_block = SeriesBlock(
            ctx.tenant, _make_series_name(record.ref), "", generate_id(), record.zone, "", "", 1, ctx.now(), b"", False
        )
        encrypted = self._keyring.seal(ctx.tenant, record.zone, reads.encode(), _make_associated_data(empty_block))
        self._get_series_store().append([empty_block._replace(data=encrypted)])
        self._get_series_store().expire(ctx.tenant, _READS_SERIES_PREFIX, ctx.now() - SAMPLE_TTL_S)
        return 1

    @operation(reads=("service",), group="read")
    def samples(
        self,
        ctx: CallContext,
        service: Annotated[Ref, "which version was read"],
        after: Annotated[str, "where the last look ended"] = "",
    ) -> tuple[tuple[str, str], ...]:
        """Samples of reads: a cursor and the packed reads of each, oldest first.

        Example:
            falaj features samples service:fraud/scorer
        """
        with self._ledger.read(ctx) as tx:
            record = require_definition(tx, service, "service", "view")
        blocks = self._get_series_store().read(ctx.tenant, (_make_series_name(record.ref),), "", limit=_MAX_SAMPLES)
        return tuple(
            (
                sample_block.id,
                self._keyring.unseal(
                    sample_block.tenant, sample_block.zone, sample_block.data, _make_associated_data(sample_block)
                ).decode(),
            )
            for sample_block in sorted(blocks, key=lambda block: block.id)
            if sample_block.id > after
        )

    def _mark_erased(self, ctx: CallContext, view: StoredView, pseudonyms: set[str]) -> None:
        """From now on their rows are kept out: before anything is deleted, so that none slips in behind."""
        with self._ledger.write(ctx) as tx:
            current = self._read_view(tx, view.ref)
            stream = replace(current.stream, erased=tuple(sorted({*current.stream.erased, *pseudonyms})))
            put_stream(tx, current, stream)
            tx.emit("features.forget", current.ref, people=len(pseudonyms))

    def count_online(self, ctx: CallContext, view: Ref, subject: str) -> int:
        """How many online rows of a view a person has, whether or not readers would get them. For the search only."""
        with self._ledger.read(ctx) as tx:
            stored_view = self._read_view(tx, view)
        try:
            person = parse_person(stored_view.entity, subject)
        except Invalid:  # its keys are of another type than this identifier
            return 0
        online_store, count = self._get_online_store(ctx.tenant), 0
        for space in _list_online_spaces(ctx, stored_view):
            if len(stored_view.entity.keys) == 1:
                count += sum(row is not None for rows in online_store.get([(space, [person.bytes])]) for row in rows)
                continue
            cursor: bytes | None = None
            while page := online_store.scan(space, cursor):
                count += sum(_extract_person_key(stored_view, key) == person.bytes for key, _ in page)
                cursor = page[-1][0]
        return count

    def _delete_online_rows(
        self, ctx: CallContext, view: StoredView, person_keys: Sequence[bytes], is_whole_key: bool
    ) -> int:
        online_store, spaces = self._get_online_store(ctx.tenant), _list_online_spaces(ctx, view)
        if is_whole_key:
            return sum(online_store.delete(space, person_keys) for space in spaces)
        deleted_count = 0
        for space in spaces:
            cursor: bytes | None = None
            while page := online_store.scan(space, cursor):
                matching_keys = [key for key, _ in page if _extract_person_key(view, key) in set(person_keys)]
                deleted_count += online_store.delete(space, matching_keys) if matching_keys else 0
                cursor = page[-1][0]
        return deleted_count

    def _delete_read_samples(self, ctx: CallContext, view: Ref) -> None:
        """Samples of reads hold keys: those of every service that takes from the view go."""
        with self._ledger.read(ctx) as tx:
            versions = [view.at(f"v{number}") for number in range(1, int(view.version[1:]) + 1)]
            reading_services = {
                ref for version in versions for ref, _ in list_users(tx, version) if ref.kind == "service"
            }
        for ref in (*versions, *reading_services):
            self._get_series_store().delete(ctx.tenant, _make_series_name(ref))

    def _delete_buffered_rows(self, ctx: CallContext, view: StoredView, keys: dict[str, list[Any]]) -> int:
        """The same blocks without their rows, in the place of those that have them."""
        buffer, deleted_count = self._open_buffer(), 0
        for pushed, rows in buffer.read(ctx, view.stream, view.stream.tail):
            remaining, remaining_bad = _remove_rows(rows.good, keys), _remove_rows(rows.bad, keys)
            removed_count = len(rows.good["event"]) - len(remaining["event"])
            if removed_count or remaining_bad != rows.bad:
                buffer.replace(ctx, view.stream, view.zone, pushed.id, BufferedRows(remaining, remaining_bad))
                deleted_count += removed_count
        return deleted_count


def _list_online_spaces(ctx: CallContext, view: StoredView) -> set[str]:
    """Every online space that a view has, of all shapes and eras."""
    return {
        compute_space_name(view.stream, ctx.tenant, shape, group, epoch)
        for shape in {compute_online_shape(view.definition), *view.stream.shapes}
        for group in list_column_groups(view.definition)
        for epoch in {0, view.stream.era, *(retired_space[1] for retired_space in view.stream.retired)}
    }


def _encode_people(view: StoredView, keys: dict[str, list[Any]], subject: str) -> list[bytes]:
    """The bytes of the keys asked about; a part of a key only where that part names the person."""
    fields = {key.name: key.type for key in view.entity.keys}
    unknown_keys = [name for name in keys if name not in fields]
    if unknown_keys or not keys:
        raise Invalid(
            f"{view.definition.entity} has no key {', '.join(unknown_keys)}", f"it has {', '.join(fields)}", view.ref
        )
    is_partial = len(keys) < len(fields)
    if is_partial and [*keys] != [subject or view.entity.subject]:
        raise Denied("a part of a key that names nobody", "name every key, or the one that names the person", view.ref)
    types = [fields[name] for name in fields if name in keys]
    encoded_keys = [
        encode_key(values, types) for values in zip(*(keys[name] for name in fields if name in keys), strict=True)
    ]
    if len(encoded_keys) > MAX_PEOPLE or not all(encoded_keys):
        raise Invalid("no people, too many, or a key that is null", f"1 to {MAX_PEOPLE}", view.ref)
    return [key for key in encoded_keys if key]


def _format_identifiers(keys: dict[str, list[Any]]) -> tuple[str, ...]:
    """The people asked about as texts; of a key of several parts, the parts in the order of their names."""
    rows = zip(*(keys[name] for name in sorted(keys)), strict=True)
    return tuple(
        "/".join(key_part.hex() if isinstance(key_part, bytes) else str(key_part) for key_part in row) for row in rows
    )


def _extract_person_key(view: StoredView, key: bytes) -> bytes:
    """The bytes of the part of a stored key that names the person, as the one part of a key would have them."""
    offset, last_number = 0, len(view.entity.keys) - 1
    for number, key_field in enumerate(view.entity.keys):
        size = {"int64": 8, "time": 8, "bool": 1}.get(key_field.type, len(key) - offset)
        if key_field.type in ("string", "bytes") and number != last_number:
            size, offset = int.from_bytes(key[offset : offset + 4], "little"), offset + 4
        if key_field.name == view.entity.subject:
            return key[offset : offset + size]
        offset += size
    return key


def _remove_rows(columns: dict[str, list[Any]], keys: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Rows less those whose keys are asked about."""
    if not columns:
        return columns
    names = [name for name in keys if name in columns]
    removed_keys = set(zip(*(keys[name] for name in names), strict=True))
    kept_positions = [
        position
        for position, row in enumerate(zip(*(columns[name] for name in names), strict=True))
        if row not in removed_keys
    ]
    return {name: [values[position] for position in kept_positions] for name, values in columns.items()}


def _make_series_name(ref: Ref) -> str:
    return f"{_READS_SERIES_PREFIX}{ref}"


def _make_associated_data(block: SeriesBlock) -> bytes:
    return f"reads\0{block.tenant}\0{block.series}\0{block.id}".encode()
