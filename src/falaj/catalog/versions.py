"""Versions: begin a publish, commit it, open one to read, list and show them."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from falaj.catalog.limits import MOST_BATCHES, check_facts, check_inputs, check_tree
from falaj.catalog.origins import covered
from falaj.catalog.records import Begun, Facts, Made, Opened, Version, VersionPage
from falaj.catalog.shelf import Shelf, as_version, check_kind, missing, nearest, sight, tree_of
from falaj.core.context import Context
from falaj.core.errors import Conflict, Denied, FalajError, Invalid
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.refusals import STEWARD, check_usable, is_view_storage
from falaj.snapshot.records import Tree
from falaj.store.blobs import hex_of
from falaj.store.codec import from_json, to_json, to_plain
from falaj.store.ledger import Reader, Writer
from falaj.store.objects import find_object
from falaj.store.records import Record

_LIST = Ref("list", "catalog", "versions")


class Versions(Shelf):
    """How versions come in and are found again."""

    @verb(writes=("name",), reads=("inputs",), into="zone", outside=True)
    def begin(
        self,
        ctx: Context,
        name: Annotated[Ref, "what is to be published, for example dataset:fraud/tx"],
        zone: Annotated[str, "where its bytes shall lie; your own zone when left out"] = "",
        label: Annotated[Label | None, "what the law says of it, as the commit will say"] = None,
        inputs: Annotated[dict[str, Ref] | None, "what it was made from, as the commit will say"] = None,
    ) -> Begun:
        """Ask to publish: gives the ticket to send bytes under, and the newest version to build on.

        Refused before a byte is sent where what carries that label, those of the inputs and that of the version before
        may not lie. `falaj catalog publish` does this and all that follows. What is sent and never committed is taken
        back.

        Example:
            falaj catalog begin dataset:fraud/tx --label AE-PDPL,sensitive
        """
        del label, inputs  # the guard has joined them into ctx.label, and asked whether that may lie there
        check_kind(name)
        place, thing = zone or ctx.zone, str(name.bare)
        ticket = self._transfers.begin(ctx, thing, place, ctx.permit("write", thing, place))
        with self._ledger.read(ctx) as tx:
            head = tx.get(name.bare)
            base = tx.get(name.at(head.body["newest"])) if head and head.body["newest"] else None
        there = base is not None and place in base.body["zones"]
        return Begun(ticket, base.ref if base is not None and there else None)

    @verb(writes=("name",), reads=("inputs", "base"))
    def commit(
        self,
        ctx: Context,
        name: Annotated[Ref, "what is published, without a version"],
        made: Annotated[Made, "the tree, its ticket and its receipts, as the client made them"],
        facts: Annotated[Facts | None, "what its publisher says of it"] = None,
        label: Annotated[Label | None, "what the law says of it; joined to what it carries already"] = None,
        inputs: Annotated[dict[str, Ref] | None, "what it was made from, by role; their labels are joined"] = None,
        base: Annotated[Ref | None, "the version whose batches it builds on"] = None,
    ) -> Ref:
        """Make a tree whose bytes were sent the next version of a name.

        The same tree as the newest version with nothing new to say gives that version, and no new one.

        Example:
            falaj catalog commit dataset:fraud/tx --made @made.json
        """
        del label  # the guard has joined it into ctx.label, which is what counts
        check_kind(name)
        if name.version:
            raise Invalid(f"{name} names a version", "versions are numbered by the platform: leave it out", name)
        facts, thing = facts or Facts(), str(name.bare)
        zone = self._transfers.zone_of(ctx, made.ticket)
        if self._transfers.thing_of(ctx, made.ticket) != thing:
            raise Denied("the ticket is for another thing", "begin again", name)
        self._check_place(ctx, thing, zone, made)
        if base is not None and base.bare != name:
            # Who may see another thing may not read it, and a version hands out all that it holds.
            raise Denied(f"{base} is another thing", f"build on a version of {name}, or send everything", base)
        if len(made.receipts) > MOST_BATCHES:
            raise Invalid(f"{len(made.receipts)} receipts", f"at most {MOST_BATCHES}")
        for receipt in made.receipts:
            self._transfers.accept(receipt, ctx, thing, zone)
        with self._ledger.write(ctx) as tx:
            self._check_batches(tx, ctx, zone, made, base)
            tx.after(lambda durable: self._ended(ctx, made.ticket) if durable else None)
            return self._add(tx, ctx, name, (made.tree, zone), facts, inputs or {})

    @verb(writes=("name",), into="zone")
    def confirm(
        self,
        ctx: Context,
        name: Annotated[Ref, "what is published, without a version"],
        root: Annotated[str, "the root of the tree that the files still are"],
        zone: Annotated[str, "where its bytes shall lie; your own zone when left out"] = "",
    ) -> Ref | None:
        """Publish again what did not change: gives the newest version if that is this tree, and no more was said of it.

        Otherwise nothing, and `begin` is next. `falaj catalog publish` does this where no file changed.

        Example:
            falaj catalog confirm dataset:fraud/tx b3:…
        """
        check_kind(name)
        place = zone or ctx.zone
        ctx.permit("write", str(name.bare), place)
        with self._ledger.write(ctx) as tx:
            head = tx.get(name.bare)
            newest = tx.get(name.at(head.body["newest"])) if head and head.body["newest"] else None
            if newest is None or place not in newest.body["zones"] or newest.body["root"] != root:
                return None
            tree, told = tree_of(newest), {**_told(Facts(), {}), "table": newest.body.get("table")}
            if not _same(newest, tree, told, ctx):
                return None
            self._check_batches(tx, ctx, place, Made("", tree, ()), newest.ref)
            tx.emit("catalog.publish", newest.ref, unchanged=1)
            return newest.ref

    @verb(reads=("name", "view"), group="read")
    def open(
        self,
        ctx: Context,
        name: Annotated[Ref, "which version; the newest when none is given"],
        view: Annotated[Ref | None, "the feature view by way of which its own rows are read"] = None,
    ) -> Opened:
        """Ask to read a version: gives its tree, and the ticket to get its bytes under.

        Refused for a version that is restricted, and for personal data that was made before somebody took back their
        consent to the caller's purpose, objected or was restricted. A data steward, who carries out what people ask
        for, may open the latter, and so may reads of features (`view`), which leave such people out row by row: only
        rows that the stream of that view has, whatever other datasets are called.

        `falaj catalog checkout` does this and all that follows.

        Example:
            falaj catalog open dataset:fraud/tx@v3
        """
        with self._ledger.read(ctx) as tx:
            record = self._live(tx, name)
            by_view = view is not None and is_view_storage(tx, view, record.ref)
            if STEWARD not in ctx.actor.roles and not by_view:
                check_usable(tx, ctx.tenant, ctx.purpose, (record.ref,))
        zone = nearest(record, ctx)
        ticket = self._transfers.grant(ctx, record.ref, zone, ctx.permit("read", str(name.bare), zone))
        version = as_version(record, {})
        signature, key = record.body.get("signature", ""), record.body.get("key", "")
        return Opened(record.ref, tree_of(record), ticket, version.table, version.card, signature, key)

    @verb(reads=("name",))
    def show(self, ctx: Context, name: Annotated[Ref, "which version; the newest when none is given"]) -> Version:
        """Show what a version is: size, label, schema, statistics, where it lies and who made it.

        Example:
            falaj catalog show dataset:fraud/tx
        """
        check_kind(name)
        with self._ledger.read(ctx) as tx:
            version = as_version(tx.need(self._pinned(tx, name)), self._aliases(tx, name))
            return covered(version, sight(self._ledger, ctx, name))

    @verb()
    def list(
        self,
        ctx: Context,
        kind: Annotated[str, "dataset, model or code; all of them when left out"] = "",
        project: Annotated[str, "of one project only"] = "",
        name: Annotated[str, "every version of this one name: dataset:fraud/tx, fraud/tx, or tx in every project"] = "",
        search: Annotated[str, "only names with this text in them"] = "",
        alias: Annotated[str, "only what has this alias or holds this stage, each at that version"] = "",
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> VersionPage:
        """List what you may see, each at its newest version, or every version of one name, the newest first.

        Example:
            falaj catalog list --project fraud
            falaj catalog list dataset:fraud/tx
        """
        of = _named(kind, project, name)
        with self._ledger.read(ctx) as tx:
            if search or alias:
                found, following = self._chosen(tx, ctx, of, (search, alias), (after, limit))
            elif all(of):
                found, following = self._numbered(tx, ctx, Ref(*of), after, limit)
            elif name:
                found, following = self._namesakes(tx, ctx, of, after, limit)
            else:
                found, following = self._page(tx, ctx, of, {"newest": "yes"}, after, limit)
            shown = [as_version(record, self._aliases(tx, record.ref)) for record in found]
            sees = sight(self._ledger, ctx, _LIST)
            return VersionPage(tuple(covered(version, sees) for version in shown), following)

    def add_version(
        self, ctx: Context, name: Ref, tree: tuple[Tree, str], facts: Facts, inputs: Mapping[str, Ref]
    ) -> Ref:
        """The same as `commit` for a room above that has put and bundled the bytes itself; inside its transaction.

        `tree` comes with the zone its bytes lie in.
        """
        check_kind(name)
        with self._ledger.write(ctx) as tx:
            return self._add(tx, ctx, name.bare, tree, facts, inputs)

    def _ended(self, ctx: Context, ticket: str) -> None:
        """The record holds what was sent from now on; an intent that cannot be closed runs out by itself."""
        with suppress(FalajError):
            self._transfers.end(ctx, ticket)

    def _check_place(self, ctx: Context, thing: str, zone: str, made: Made) -> None:
        """Once more: the label may be stricter than when the publish began, and older clients name none then."""
        try:
            ctx.permit("write", thing, zone)
        except Denied:
            with self._ledger.write(ctx) as tx:
                tx.after(lambda durable: self._dropped(ctx, made))
            raise

    def _dropped(self, ctx: Context, made: Made) -> None:
        """What lies where it may not goes at once; what cannot go now is left to the collector."""
        with suppress(FalajError):
            self._transfers.drop(ctx, made.ticket, made.receipts[:MOST_BATCHES])

    def _check_batches(self, tx: Reader, ctx: Context, zone: str, made: Made, base: Ref | None) -> None:
        """Every batch is new and paid for by a receipt, or held by the version that this one is built on."""
        check_tree(made.tree)
        known = {receipt.digest for receipt in made.receipts}
        if base is not None:
            known |= {batch.bundle for batch in tree_of(self._live(tx, base)).batches}
        for batch in made.tree.batches:
            if batch.bundle not in known:
                raise Denied(f"{batch.bundle[:20]}… is not yours to build on", "publish again from the newest version")
            bundle = find_object(tx, ctx.tenant, zone, hex_of(batch.bundle))
            if bundle is None or hex_of(batch.shard) not in bundle.parts:
                raise Conflict("what was sent was taken back meanwhile", "publish again")

    def _add(
        self, tx: Writer, ctx: Context, name: Ref, tree: tuple[Tree, str], facts: Facts, inputs: Mapping[str, Ref]
    ) -> Ref:
        made, zone = tree
        check_facts(facts)
        check_inputs(inputs)
        head = tx.get(name)
        newest = tx.get(name.at(head.body["newest"])) if head and head.body["newest"] else None
        pins = {role: _pin(tx, ref) for role, ref in inputs.items()}
        told = _told(facts, pins)
        # The same files in another zone are a version of their own: whoever works there may touch no other.
        if newest is not None and zone in newest.body["zones"] and _same(newest, made, told, ctx):
            tx.emit("catalog.publish", newest.ref, unchanged=1)
            return newest.ref
        count = (head.body["count"] if head else 0) + 1
        version = name.at(f"v{count}")
        for batch in made.batches:
            self._blobs.hold(tx, ctx, zone, batch.bundle)
        self._write_head(tx, name, {"newest": version.version, "count": count}, ctx.now())
        if newest is not None:
            terms = {key: value for key, value in newest.terms.items() if key != "newest"}
            tx.put(newest.ref, newest.body, rev=newest.rev, label=newest.label, terms=terms)
        body = {
            "root": made.root, "num_files": made.num_files, "size": made.size_bytes, "stage": "experiment",
            "batches": to_plain(made.batches), "zones": [zone], "made_at": ctx.now(), "state": "live", **told,
            **self._signed(ctx, version, zone, facts),
        }  # fmt: skip
        tx.put(version, body, zone=zone, terms=_terms(made, zone, pins))
        tx.emit(
            "catalog.publish", version, tuple(dict.fromkeys(pins.values())),
            root=made.root, size_bytes=made.size_bytes, num_files=made.num_files, place=zone,
        )  # fmt: skip
        return version

    def _signed(self, ctx: Context, version: Ref, zone: str, facts: Facts) -> dict[str, str]:
        """Of a model whose files were named: the signature over them, and the key that made it."""
        if version.kind != "model" or not facts.files:
            return {}
        from falaj.catalog.signing import sign_model

        signature, key = sign_model(self._keyring, ctx.tenant, zone, str(version), facts.files)
        return {"signature": signature, "key": key}


def _named(kind: str, project: str, name: str) -> tuple[str, str, str]:
    """Kind, project and name as a list is asked for them; a name may be a whole reference and say all three."""
    if "@" in name:
        raise Invalid(f"{name[:200]!r} names one version", "falaj catalog show shows it; leave out what follows @")
    said, colon, rest = name.rpartition(":")
    of, slash, bare = rest.rpartition("/")
    clash = (colon and kind and kind != said) or (slash and project and project != of)
    if (colon and not slash) or clash:
        raise Invalid(f"{name[:200]!r} is no name there", "write dataset:fraud/tx, or --kind dataset --project fraud")
    return said or kind, of or project, bare


def _terms(made: Tree, zone: str, pins: Mapping[str, Ref]) -> dict[str, str]:
    """How a version is found: by what it holds, where it lies and what it was made from."""
    held = {f"digest.{index}": batch.bundle for index, batch in enumerate(made.batches)}
    sources = {f"from.{ref}": "yes" for ref in pins.values()}
    return {**held, **sources, "root": made.root, "live": "yes", "newest": "yes", f"at.{zone}": "yes"}


def _pin(tx: Reader, ref: Ref) -> Ref:
    """Exactly what was used: a version that is or was, or the revision of a thing that has none."""
    if ref.pinned:
        return tx.need(ref).ref
    head = tx.need(ref.bare)
    version = (
        head.body.get("newest") if ref.version in ("", "latest") else head.body.get("aliases", {}).get(ref.version)
    )
    if not version and ("newest" in head.body or ref.version):
        raise missing(ref)
    return ref.at(version) if version else head.ref


def _told(facts: Facts, pins: Mapping[str, Ref]) -> dict[str, object]:
    """What a publisher said, as the record keeps it."""
    # By way of JSON, so that what is compared with a record's body has lists where that has lists.
    said: dict[str, object] = from_json(dict[str, Any], to_json(facts))
    return {**said, "inputs": {role: str(ref) for role, ref in pins.items()}}


def _same(newest: Record, made: Tree, told: Mapping[str, object], ctx: Context) -> bool:
    kept = {key: newest.body.get(key) for key in told if key != "message"}
    asked = {key: value for key, value in told.items() if key != "message"}
    covered = ctx.label is None or newest.label.covers(ctx.label)
    alike = {**kept, "inputs": _sources(kept["inputs"])} == {**asked, "inputs": _sources(asked["inputs"])}
    return newest.body["root"] == made.root and alike and covered


def _sources(inputs: Any) -> dict[str, str]:
    """What it was made from; a run, or what one logged, is the same whatever was noted of it since."""
    noted = ("run:", "output:")
    return {role: ref.partition("@")[0] if ref.startswith(noted) else ref for role, ref in (inputs or {}).items()}
