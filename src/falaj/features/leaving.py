"""Leaving: a person's rows taken out of what is online and of the tail, chapters replaced by the same without them.

And samples of what was read, which the check against history replays.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from falaj.asof.keys import key_bytes
from falaj.core.context import Context
from falaj.core.errors import Denied, Invalid, Stale
from falaj.core.event import new_id
from falaj.core.ports import Block
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.features.defining import users_of
from falaj.features.persons import keys_ref
from falaj.features.rewriting import person_of
from falaj.features.rows import check_faces
from falaj.features.shelf import Shelf, View, keep, need
from falaj.features.stream import Stream, dataset_of, faces_of, labels_of, shape_of, space_of
from falaj.features.tail import Rows
from falaj.govern.destruction import ErasureOrder

MOST_PEOPLE = 10_000
MOST_SAMPLE_BYTES = 1 << 20
_SAMPLES = 10_000
KEEP_S = 30 * 86_400.0
"""So long are samples of reads kept."""
_READS = "reads:"


class Leaving(Shelf):
    """How rows go, and what is known of reads."""

    @verb(writes=("view",), reads=("request",), group="erase", outside=True)
    def forget(
        self,
        ctx: Context,
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
            found = self._view(tx, view)
        wanted = _people(found, keys, subject)
        entity = Ref.parse(found.record.body["entity"]).bare
        order = ErasureOrder("features.forget", entity, _identifiers(keys), request)
        self._destruction.check_erasure(ctx, order)
        names = {self._pseudonym(ctx, found, value) for value in wanted}
        self._mark_erased(ctx, found, names)
        whole = [one.name for one in found.entity.keys] == list(keys)
        gone = self._forget_online(ctx, found, wanted, whole)
        self._forget_reads(ctx, found.ref)
        return gone + self._forget_pushed(ctx, found, keys)

    @verb(writes=("view",), reads=("faces",), group="erase")
    def replace(
        self,
        ctx: Context,
        view: Annotated[Ref, "which view"],
        generation: Annotated[int, "which chapter"],
        faces: Annotated[dict[str, Ref], "the dataset version of each face that takes its place; none: it goes"],
        num_rows: Annotated[int, "how many rows are left in it"] = 0,
    ) -> Stream:
        """Put the same chapter without somebody's rows, or a merged one, in the place of a chapter.

        Example:
            falaj features replace view:fraud/spend --generation 3 --faces @faces.json --num-rows 120
        """
        with self._ledger.write(ctx) as tx:
            found = self._view(tx, view)
            if not any(one.generation == generation for one in found.stream.chapters):
                raise Stale(f"{view.bare} has no chapter {generation} any more", "look at it again", view)
            if faces:
                check_faces(tx, found, faces)
            chapters = tuple(
                replace(one, faces=faces, num_rows=num_rows) if one.generation == generation else one
                for one in found.stream.chapters
                if faces or one.generation != generation
            )
            stream = replace(found.stream, chapters=chapters)
            keep(tx, found, stream)
            tx.emit("features.replace", found.ref, tuple(faces.values()), generation=generation, rows=num_rows)
        return stream

    @verb(writes=("view",), reads=("before", "after"))
    def rekey(
        self,
        ctx: Context,
        view: Annotated[Ref, "which view, a sealed one"],
        after: Annotated[Ref, "the version of the table of keys that counts from now on"],
        before: Annotated[Ref | None, "the one that counted; none when it is the first"] = None,
    ) -> Stream:
        """Let another version of the table of people's keys count; Stale when a third one does, or it is deleted.

        Example:
            falaj features rekey view:fraud/spend dataset:fraud/spend.rows1.keys@v2
        """
        with self._ledger.write(ctx) as tx:
            found = self._view(tx, view)
            table = keys_ref(dataset_of(found.stream))
            record = tx.need(after)
            if after.bare != table or not record.label.covers(labels_of(found.definition)[""]):
                raise Denied(f"{after} is not the table of keys of {view.bare}", f"publish {table}", view)
            if found.stream.keys != before or record.body.get("state") != "live":
                raise Stale("another table of keys counts already", "look again", view)
            stream = replace(found.stream, keys=after)
            keep(tx, found, stream)
            tx.emit("features.rekey", found.ref, (after,))
        return stream

    @verb(reads=("view",), group="read")
    def pseudonyms(
        self,
        ctx: Context,
        view: Annotated[Ref, "which view"],
        subjects: Annotated[tuple[str, ...], "the bytes of the keys that name people, as hex"],
    ) -> tuple[str, ...]:
        """What the platform calls people in this view's zone: texts that nobody can turn back into who they are.

        Example:
            falaj features pseudonyms view:fraud/spend --subjects 6331
        """
        if len(subjects) > MOST_PEOPLE:
            raise Invalid(f"{len(subjects)} people at once", f"at most {MOST_PEOPLE}", view)
        with self._ledger.read(ctx) as tx:
            found = self._view(tx, view)
        return tuple(self._pseudonym(ctx, found, bytes.fromhex(one)) for one in subjects)

    @verb(reads=("service",), group="write")
    def sample(
        self,
        ctx: Context,
        service: Annotated[Ref, "which version was read"],
        reads: Annotated[str, "reads as features/skew.py packs them, in base64"],
    ) -> int:
        """Tell a sample of what was read, for the check of what is served against history.

        Example:
            falaj features sample service:fraud/scorer@v1 --reads …
        """
        if len(reads) > MOST_SAMPLE_BYTES:
            raise Invalid("too many reads at once", f"at most {MOST_SAMPLE_BYTES} bytes", service)
        with self._ledger.read(ctx) as tx:
            record = need(tx, service, "service", "view")
        bare = Block(ctx.tenant, _series(record.ref), "", new_id(), record.zone, "", "", 1, ctx.now(), b"", False)
        sealed = self._keyring.seal(ctx.tenant, record.zone, reads.encode(), _aad(bare))
        self._series().append([bare._replace(data=sealed)])
        self._series().expire(ctx.tenant, _READS, ctx.now() - KEEP_S)
        return 1

    @verb(reads=("service",), group="read")
    def samples(
        self,
        ctx: Context,
        service: Annotated[Ref, "which version was read"],
        after: Annotated[str, "where the last look ended"] = "",
    ) -> tuple[tuple[str, str], ...]:
        """Samples of reads: a cursor and the packed reads of each, oldest first.

        Example:
            falaj features samples service:fraud/scorer
        """
        with self._ledger.read(ctx) as tx:
            record = need(tx, service, "service", "view")
        blocks = self._series().read(ctx.tenant, (_series(record.ref),), "", limit=_SAMPLES)
        return tuple(
            (one.id, self._keyring.unseal(one.tenant, one.zone, one.data, _aad(one)).decode())
            for one in sorted(blocks, key=lambda block: block.id)
            if one.id > after
        )

    def _mark_erased(self, ctx: Context, view: View, names: set[str]) -> None:
        """From now on their rows are kept out: before anything is deleted, so that none slips in behind."""
        with self._ledger.write(ctx) as tx:
            now = self._view(tx, view.ref)
            stream = replace(now.stream, erased=tuple(sorted({*now.stream.erased, *names})))
            keep(tx, now, stream)
            tx.emit("features.forget", now.ref, people=len(names))

    def count_online(self, ctx: Context, view: Ref, subject: str) -> int:
        """How many online rows of a view a person has, whether or not readers would get them. For the search only."""
        with self._ledger.read(ctx) as tx:
            found = self._view(tx, view)
        try:
            person = person_of(found.entity, subject)
        except Invalid:  # its keys are of another type than this identifier
            return 0
        store, count = self._online(ctx.tenant), 0
        for space in _spaces(ctx, found):
            if len(found.entity.keys) == 1:
                count += sum(row is not None for rows in store.get([(space, [person.bytes])]) for row in rows)
                continue
            cursor: bytes | None = None
            while page := store.scan(space, cursor):
                count += sum(_names(found, key) == person.bytes for key, _ in page)
                cursor = page[-1][0]
        return count

    def _forget_online(self, ctx: Context, view: View, wanted: Sequence[bytes], whole: bool) -> int:
        store, spaces = self._online(ctx.tenant), _spaces(ctx, view)
        if whole:
            return sum(store.delete(space, wanted) for space in spaces)
        gone = 0
        for space in spaces:
            cursor: bytes | None = None
            while page := store.scan(space, cursor):
                chosen = [key for key, _ in page if _names(view, key) in set(wanted)]
                gone += store.delete(space, chosen) if chosen else 0
                cursor = page[-1][0]
        return gone

    def _forget_reads(self, ctx: Context, view: Ref) -> None:
        """Samples of reads hold keys: those of every service that takes from the view go."""
        with self._ledger.read(ctx) as tx:
            versions = [view.at(f"v{number}") for number in range(1, int(view.version[1:]) + 1)]
            readers = {ref for one in versions for ref, _ in users_of(tx, one) if ref.kind == "service"}
        for ref in (*versions, *readers):
            self._series().delete(ctx.tenant, _series(ref))

    def _forget_pushed(self, ctx: Context, view: View, keys: dict[str, list[Any]]) -> int:
        """The same blocks without their rows, in the place of those that have them."""
        tail, gone = self._tail(), 0
        for pushed, rows in tail.read(ctx, view.stream, view.stream.tail):
            left, bad = _without(rows.good, keys), _without(rows.bad, keys)
            lost = len(rows.good["event"]) - len(left["event"])
            if lost or bad != rows.bad:
                tail.replace(ctx, view.stream, view.zone, pushed.id, Rows(left, bad))
                gone += lost
        return gone


def _spaces(ctx: Context, view: View) -> set[str]:
    """Every online space that a view has, of all shapes and eras."""
    return {
        space_of(view.stream, ctx.tenant, shape, face, era)
        for shape in {shape_of(view.definition), *view.stream.shapes}
        for face in faces_of(view.definition)
        for era in {0, view.stream.era, *(retired[1] for retired in view.stream.retired)}
    }


def _people(view: View, keys: dict[str, list[Any]], subject: str) -> list[bytes]:
    """The bytes of the keys asked about; a part of a key only where that part names the person."""
    fields = {one.name: one.type for one in view.entity.keys}
    unknown = [name for name in keys if name not in fields]
    if unknown or not keys:
        raise Invalid(
            f"{view.definition.entity} has no key {', '.join(unknown)}", f"it has {', '.join(fields)}", view.ref
        )
    partial = len(keys) < len(fields)
    if partial and [*keys] != [subject or view.entity.subject]:
        raise Denied("a part of a key that names nobody", "name every key, or the one that names the person", view.ref)
    types = [fields[name] for name in fields if name in keys]
    found = [key_bytes(values, types) for values in zip(*(keys[name] for name in fields if name in keys), strict=True)]
    if len(found) > MOST_PEOPLE or not all(found):
        raise Invalid("no people, too many, or a key that is null", f"1 to {MOST_PEOPLE}", view.ref)
    return [one for one in found if one]


def _identifiers(keys: dict[str, list[Any]]) -> tuple[str, ...]:
    """The people asked about as texts; of a key of several parts, the parts in the order of their names."""
    rows = zip(*(keys[name] for name in sorted(keys)), strict=True)
    return tuple("/".join(part.hex() if isinstance(part, bytes) else str(part) for part in row) for row in rows)


def _names(view: View, key: bytes) -> bytes:
    """The bytes of the part of a stored key that names the person, as the one part of a key would have them."""
    at, last = 0, len(view.entity.keys) - 1
    for number, one in enumerate(view.entity.keys):
        size = {"int64": 8, "time": 8, "bool": 1}.get(one.type, len(key) - at)
        if one.type in ("string", "bytes") and number != last:
            size, at = int.from_bytes(key[at : at + 4], "little"), at + 4
        if one.name == view.entity.subject:
            return key[at : at + size]
        at += size
    return key


def _without(columns: dict[str, list[Any]], keys: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Rows less those whose keys are asked about."""
    if not columns:
        return columns
    names = [name for name in keys if name in columns]
    gone = set(zip(*(keys[name] for name in names), strict=True))
    kept = [at for at, row in enumerate(zip(*(columns[name] for name in names), strict=True)) if row not in gone]
    return {name: [values[at] for at in kept] for name, values in columns.items()}


def _series(ref: Ref) -> str:
    return f"{_READS}{ref}"


def _aad(block: Block) -> bytes:
    return f"reads\0{block.tenant}\0{block.series}\0{block.id}".encode()
