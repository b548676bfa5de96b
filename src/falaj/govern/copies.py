"""Where copies lie, each judged again by place(): what was lawful when it was made may not be so today.

The ledger knows every copy the platform made: records that keep bytes name the zones they lie in, and every sealed
object is kept under its zone. What left the platform is not here to be counted: the log tells of it.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated

from falaj.core.context import Context
from falaj.core.errors import Invalid
from falaj.core.verb import verb
from falaj.govern.place import place
from falaj.govern.records import CopyPage, Misplaced, Move, Places, Verdict
from falaj.govern.view import PlaceView
from falaj.store.blobs import digest_of
from falaj.store.ledger import Ledger, Reader
from falaj.store.objects import DELETING, Object, objects_after, wholes_of
from falaj.store.records import Record

HOLDERS = ("blob", "dataset", "model", "code", "artifact", "document")
"""Kinds of records that keep bytes alive."""
OBJECTS = "object"
_PAGE = 1000


class Copies:
    """A part of the desk of zones."""

    _ledger: Ledger
    _places: PlaceView

    @verb(group="audit")
    def copies(
        self,
        ctx: Context,
        kind: Annotated[str, "which kind of thing, for example dataset; `object` is the sealed bytes themselves"],
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many things at most"] = _PAGE,
    ) -> CopyPage:
        """Count the copies of things zone by zone, and name those that may not lie where they are.

        Of objects, those are named that nothing accounts for: nobody can say which law holds for them.

        Example:
            falaj zones copies dataset
        """
        if not 0 < limit <= _PAGE:
            raise Invalid(f"a page of {limit} things", f"ask for 1 to {_PAGE} and go on with --after")
        places = self._places.of(ctx.tenant, ctx.now())
        if kind == OBJECTS:
            return self._objects(ctx, places)
        with self._ledger.read(ctx) as tx:
            page = tx.find(kind, cells=ctx.cells(kind), after=after, limit=limit)
        counted: Counter[str] = Counter()
        wrong: list[Misplaced] = []
        for record in page.records:
            for zone in _zones_of(record):
                counted[zone] += 1
                verdict = _judged(record, zone, places, ctx)
                if not verdict.allowed:
                    wrong.append(Misplaced(str(record.ref), zone, verdict.rules, "; ".join(verdict.reasons)))
        return CopyPage(len(page.records), dict(counted), tuple(wrong), page.next)

    def _objects(self, ctx: Context, places: Places) -> CopyPage:
        """All of the tenant's objects in one pass: what accounts for them is read once."""
        counted: Counter[str] = Counter()
        wrong: list[Misplaced] = []
        seen = 0
        with self._ledger.read(ctx) as tx:
            held = _held(tx, ctx.tenant)
            for thing in _all_objects(tx, ctx.tenant):
                seen += 1
                counted[thing.zone] += 1
                rules = _unaccounted(tx, thing, held, places)
                if rules:
                    name = f"object {digest_of(thing.digest)[:19]} ({thing.state})"
                    wrong.append(Misplaced(name, thing.zone, rules, "nothing that may lie there accounts for it"))
        return CopyPage(seen, dict(counted), tuple(wrong))


def _zones_of(record: Record) -> tuple[str, ...]:
    named = tuple(sorted(name[3:] for name in record.terms if name.startswith("at.")))
    return named or ((record.zone,) if record.zone else ())


def _judged(record: Record, zone: str, places: Places, ctx: Context) -> Verdict:
    """Lying there is asked as keeping. A grant is for a purpose, so a copy may lie there for any that one names."""
    size = record.body.get("size")
    whys = ("", *sorted({purpose for grant in places.grants if grant.dst == zone for purpose in grant.purposes}))
    verdict = Verdict(False)
    for why in whys if record.label.regimes else whys[:1]:
        move = Move(
            "replicate", record.label, str(record.ref.bare), ctx.tenant, record.zone or zone, zone, why,
            size=size if isinstance(size, int) else None, since=record.at,
        )  # fmt: skip
        verdict = place(move, places.zones, places.regimes, places.grants, ctx.now())
        if verdict.allowed:
            break
    return verdict


def _held(tx: Reader, tenant: str) -> dict[str, set[str]]:
    """Which digests records keep alive, and in which zones; `*` where they name none."""
    held: dict[str, set[str]] = {}
    for kind in HOLDERS:
        after = ""
        while True:
            page = tx.find(kind, tenant=tenant, after=after, limit=_PAGE)
            for record in page.records:
                zones = {name[3:] for name in record.terms if name.startswith("at.")} or {"*"}
                for name, digest in record.terms.items():
                    if name == "digest" or name.startswith("digest."):
                        held.setdefault(digest, set()).update(zones)
            after = page.next
            if not after:
                break
    return held


def _all_objects(tx: Reader, tenant: str) -> Iterator[Object]:
    after = ""
    while True:
        page, after = objects_after(tx, tenant, after, _PAGE)
        yield from page
        if not after:
            return


def _unaccounted(tx: Reader, thing: Object, held: dict[str, set[str]], places: Places) -> tuple[str, ...]:
    if thing.zone not in places.zones:
        return ("zone-unknown",)
    zones = held.get(digest_of(thing.digest), set())
    if thing.state == DELETING or {"*", thing.zone} & zones or wholes_of(tx, thing):
        return ()
    return ("unaccounted",)
