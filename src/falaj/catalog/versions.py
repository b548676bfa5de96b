"""Versions: begin a publish, commit it, open one to read, list and show them."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from falaj.catalog.provenance import hide_unseen
from falaj.catalog.publish_limits import MAX_BATCHES, require_valid_facts, require_valid_inputs, require_valid_tree
from falaj.catalog.records import CatalogVersion, OpenedVersion, PublishFacts, PublishTicket, SentTree, VersionPage
from falaj.catalog.service_base import (
    CatalogServiceBase,
    choose_read_zone,
    create_visibility_check,
    missing_version_error,
    read_tree,
    require_catalog_kind,
    to_version,
)
from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Denied, FalajError, Invalid
from falaj.core.label import Label
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.govern.refusals import STEWARD_ROLE, is_view_storage, require_usable
from falaj.snapshot.records import PublishedTree
from falaj.store.blob_store import parse_digest
from falaj.store.codec import from_json, to_json, to_plain
from falaj.store.ledger import LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord
from falaj.store.stored_objects import find_stored_object

_LIST_REF = Ref("list", "catalog", "versions")


class VersionOperations(CatalogServiceBase):
    """How versions come in and are found again."""

    @operation(writes=("name",), reads=("inputs",), zone_param="zone", has_outside_effects=True)
    def begin(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "what is to be published, for example dataset:fraud/tx"],
        zone: Annotated[str, "where its bytes shall lie; your own zone when left out"] = "",
        label: Annotated[Label | None, "what the law says of it, as the commit will say"] = None,
        inputs: Annotated[dict[str, Ref] | None, "what it was made from, as the commit will say"] = None,
    ) -> PublishTicket:
        """Ask to publish: gives the ticket to send bytes under, and the newest version to build on.

        Refused before a byte is sent where what carries that label, those of the inputs and that of the version before
        may not lie. `falaj catalog publish` does this and all that follows. What is sent and never committed is taken
        back.

        Example:
            falaj catalog begin dataset:fraud/tx --label AE-PDPL,sensitive
        """
        del label, inputs  # the guard has joined them into ctx.label, and asked whether that may lie there
        require_catalog_kind(name)
        target_zone, resource_name = zone or ctx.zone, str(name.bare)
        ticket = self._transfers.begin(ctx, resource_name, target_zone, ctx.permit("write", resource_name, target_zone))
        with self._ledger.read(ctx) as tx:
            head_record = tx.get(name.bare)
            base_record = (
                tx.get(name.at(head_record.body["newest"])) if head_record and head_record.body["newest"] else None
            )
        is_in_zone = base_record is not None and target_zone in base_record.body["zones"]
        return PublishTicket(ticket, base_record.ref if base_record is not None and is_in_zone else None)

    @operation(writes=("name",), reads=("inputs", "base"))
    def commit(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "what is published, without a version"],
        made: Annotated[SentTree, "the tree, its ticket and its receipts, as the client made them"],
        facts: Annotated[PublishFacts | None, "what its publisher says of it"] = None,
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
        require_catalog_kind(name)
        if name.version:
            raise Invalid(f"{name} names a version", "versions are numbered by the platform: leave it out", name)
        facts, resource_name = facts or PublishFacts(), str(name.bare)
        zone = self._transfers.zone_of(ctx, made.ticket)
        if self._transfers.thing_of(ctx, made.ticket) != resource_name:
            raise Denied("the ticket is for another thing", "begin again", name)
        self.require_permit(ctx, resource_name, zone, made)
        if base is not None and base.bare != name:
            # Who may see another thing may not read it, and a version hands out all that it holds.
            raise Denied(f"{base} is another thing", f"build on a version of {name}, or send everything", base)
        if len(made.receipts) > MAX_BATCHES:
            raise Invalid(f"{len(made.receipts)} receipts", f"at most {MAX_BATCHES}")
        for receipt in made.receipts:
            self._transfers.accept(receipt, ctx, resource_name, zone)
        with self._ledger.write(ctx) as tx:
            self.require_owned_batches(tx, ctx, zone, made, base)
            tx.after(lambda durable: self.end_upload(ctx, made.ticket) if durable else None)
            return self.add_next_version(tx, ctx, name, (made.tree, zone), facts, inputs or {})

    @operation(writes=("name",), zone_param="zone")
    def confirm(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "what is published, without a version"],
        root: Annotated[str, "the root of the tree that the files still are"],
        zone: Annotated[str, "where its bytes shall lie; your own zone when left out"] = "",
    ) -> Ref | None:
        """Publish again what did not change: gives the newest version if that is this tree, and no more was said of it.

        Otherwise nothing, and `begin` is next. `falaj catalog publish` does this where no file changed.

        Example:
            falaj catalog confirm dataset:fraud/tx b3:…
        """
        require_catalog_kind(name)
        target_zone = zone or ctx.zone
        ctx.permit("write", str(name.bare), target_zone)
        with self._ledger.write(ctx) as tx:
            head_record = tx.get(name.bare)
            newest = tx.get(name.at(head_record.body["newest"])) if head_record and head_record.body["newest"] else None
            if newest is None or target_zone not in newest.body["zones"] or newest.body["root"] != root:
                return None
            tree, stored_facts = (
                read_tree(newest),
                {**_to_stored_facts(PublishFacts(), {}), "table": newest.body.get("table")},
            )
            if not _is_unchanged(newest, tree, stored_facts, ctx):
                return None
            self.require_owned_batches(tx, ctx, target_zone, SentTree("", tree, ()), newest.ref)
            tx.emit("catalog.publish", newest.ref, unchanged=1)
            return newest.ref

    @operation(reads=("name", "view"), group="read")
    def open(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "which version; the newest when none is given"],
        view: Annotated[Ref | None, "the feature view by way of which its own rows are read"] = None,
    ) -> OpenedVersion:
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
            record = self.require_live(tx, name)
            is_view_storage_read = view is not None and is_view_storage(tx, view, record.ref)
            if STEWARD_ROLE not in ctx.actor.roles and not is_view_storage_read:
                require_usable(tx, ctx.tenant, ctx.purpose, (record.ref,))
        zone = choose_read_zone(record, ctx)
        ticket = self._transfers.grant(ctx, record.ref, zone, ctx.permit("read", str(name.bare), zone))
        version = to_version(record, {})
        signature, key = record.body.get("signature", ""), record.body.get("key", "")
        return OpenedVersion(record.ref, read_tree(record), ticket, version.table, version.card, signature, key)

    @operation(reads=("name",))
    def show(
        self, ctx: CallContext, name: Annotated[Ref, "which version; the newest when none is given"]
    ) -> CatalogVersion:
        """Show what a version is: size, label, schema, statistics, where it lies and who made it.

        Example:
            falaj catalog show dataset:fraud/tx
        """
        require_catalog_kind(name)
        with self._ledger.read(ctx) as tx:
            version = to_version(tx.need(self.resolve_version(tx, name)), self.read_aliases(tx, name))
            return hide_unseen(version, create_visibility_check(self._ledger, ctx, name))

    @operation()
    def list(
        self,
        ctx: CallContext,
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
        kind_project_name = _parse_list_name(kind, project, name)
        with self._ledger.read(ctx) as tx:
            if search or alias:
                page_records, next_cursor = self.find_by_head(
                    tx, ctx, kind_project_name, (search, alias), (after, limit)
                )
            elif all(kind_project_name):
                page_records, next_cursor = self.list_versions_of(tx, ctx, Ref(*kind_project_name), after, limit)
            elif name:
                page_records, next_cursor = self.list_namesakes(tx, ctx, kind_project_name, after, limit)
            else:
                page_records, next_cursor = self.find_page(tx, ctx, kind_project_name, {"newest": "yes"}, after, limit)
            listed_versions = [to_version(record, self.read_aliases(tx, record.ref)) for record in page_records]
            can_see = create_visibility_check(self._ledger, ctx, _LIST_REF)
            return VersionPage(tuple(hide_unseen(version, can_see) for version in listed_versions), next_cursor)

    def add_version(
        self,
        ctx: CallContext,
        name: Ref,
        tree: tuple[PublishedTree, str],
        facts: PublishFacts,
        inputs: Mapping[str, Ref],
    ) -> Ref:
        """The same as `commit` for a room above that has put and bundled the bytes itself; inside its transaction.

        `tree` comes with the zone its bytes lie in.
        """
        require_catalog_kind(name)
        with self._ledger.write(ctx) as tx:
            return self.add_next_version(tx, ctx, name.bare, tree, facts, inputs)

    def end_upload(self, ctx: CallContext, ticket: str) -> None:
        """The record holds what was sent from now on; an intent that cannot be closed runs out by itself."""
        with suppress(FalajError):
            self._transfers.end(ctx, ticket)

    def require_permit(self, ctx: CallContext, resource_name: str, zone: str, sent_tree: SentTree) -> None:
        """Once more: the label may be stricter than when the publish began, and older clients name none then."""
        try:
            ctx.permit("write", resource_name, zone)
        except Denied:
            with self._ledger.write(ctx) as tx:
                tx.after(lambda durable: self.discard_upload(ctx, sent_tree))
            raise

    def discard_upload(self, ctx: CallContext, sent_tree: SentTree) -> None:
        """What lies where it may not goes at once; what cannot go now is left to the collector."""
        with suppress(FalajError):
            self._transfers.drop(ctx, sent_tree.ticket, sent_tree.receipts[:MAX_BATCHES])

    def require_owned_batches(
        self, tx: LedgerReader, ctx: CallContext, zone: str, sent_tree: SentTree, base_ref: Ref | None
    ) -> None:
        """Every batch is new and paid for by a receipt, or held by the version that this one is built on."""
        require_valid_tree(sent_tree.tree)
        allowed_digests = {receipt.digest for receipt in sent_tree.receipts}
        if base_ref is not None:
            allowed_digests |= {batch.bundle for batch in read_tree(self.require_live(tx, base_ref)).batches}
        for batch in sent_tree.tree.batches:
            if batch.bundle not in allowed_digests:
                raise Denied(f"{batch.bundle[:20]}… is not yours to build on", "publish again from the newest version")
            bundle = find_stored_object(tx, ctx.tenant, zone, parse_digest(batch.bundle))
            if bundle is None or parse_digest(batch.shard) not in bundle.parts:
                raise Conflict("what was sent was taken back meanwhile", "publish again")

    def add_next_version(
        self,
        tx: LedgerWriter,
        ctx: CallContext,
        name: Ref,
        tree_and_zone: tuple[PublishedTree, str],
        facts: PublishFacts,
        inputs: Mapping[str, Ref],
    ) -> Ref:
        version_tree, zone = tree_and_zone
        require_valid_facts(facts)
        require_valid_inputs(inputs)
        head_record = tx.get(name)
        newest = tx.get(name.at(head_record.body["newest"])) if head_record and head_record.body["newest"] else None
        pinned_inputs = {role: _pin_input(tx, ref) for role, ref in inputs.items()}
        stored_facts = _to_stored_facts(facts, pinned_inputs)
        # The same files in another zone are a version of their own: whoever works there may touch no other.
        if (
            newest is not None
            and zone in newest.body["zones"]
            and _is_unchanged(newest, version_tree, stored_facts, ctx)
        ):
            tx.emit("catalog.publish", newest.ref, unchanged=1)
            return newest.ref
        count = (head_record.body["count"] if head_record else 0) + 1
        version = name.at(f"v{count}")
        for batch in version_tree.batches:
            self._blobs.hold(tx, ctx, zone, batch.bundle)
        self._write_head(tx, name, {"newest": version.version, "count": count}, ctx.now())
        if newest is not None:
            terms = {key: value for key, value in newest.terms.items() if key != "newest"}
            tx.put(newest.ref, newest.body, rev=newest.rev, label=newest.label, terms=terms)
        body = {
            "root": version_tree.root,
            "num_files": version_tree.num_files,
            "size": version_tree.size_bytes,
            "stage": "experiment",
            "batches": to_plain(version_tree.batches),
            "zones": [zone],
            "made_at": ctx.now(),
            "state": "live",
            **stored_facts,
            **self.sign_files(ctx, version, zone, facts),
        }
        tx.put(version, body, zone=zone, terms=_make_terms(version_tree, zone, pinned_inputs))
        tx.emit(
            "catalog.publish",
            version,
            tuple(dict.fromkeys(pinned_inputs.values())),
            root=version_tree.root,
            size_bytes=version_tree.size_bytes,
            num_files=version_tree.num_files,
            place=zone,
        )
        return version

    def sign_files(self, ctx: CallContext, version: Ref, zone: str, facts: PublishFacts) -> dict[str, str]:
        """Of a model whose files were named: the signature over them, and the key that made it."""
        if version.kind != "model" or not facts.files:
            return {}
        from falaj.catalog.model_signing import sign_model

        signature, key = sign_model(self._keyring, ctx.tenant, zone, str(version), facts.files)
        return {"signature": signature, "key": key}


def _parse_list_name(kind: str, project: str, name: str) -> tuple[str, str, str]:
    """Kind, project and name as a list is asked for them; a name may be a whole reference and say all three."""
    if "@" in name:
        raise Invalid(f"{name[:200]!r} names one version", "falaj catalog show shows it; leave out what follows @")
    name_kind, colon, project_and_name = name.rpartition(":")
    name_project, slash, bare_name = project_and_name.rpartition("/")
    has_conflict = (colon and kind and kind != name_kind) or (slash and project and project != name_project)
    if (colon and not slash) or has_conflict:
        raise Invalid(f"{name[:200]!r} is no name there", "write dataset:fraud/tx, or --kind dataset --project fraud")
    return name_kind or kind, name_project or project, bare_name


def _make_terms(version_tree: PublishedTree, zone: str, pinned_inputs: Mapping[str, Ref]) -> dict[str, str]:
    """How a version is found: by what it holds, where it lies and what it was made from."""
    digest_terms = {f"digest.{index}": batch.bundle for index, batch in enumerate(version_tree.batches)}
    sources = {f"from.{ref}": "yes" for ref in pinned_inputs.values()}
    return {**digest_terms, **sources, "root": version_tree.root, "live": "yes", "newest": "yes", f"at.{zone}": "yes"}


def _pin_input(tx: LedgerReader, ref: Ref) -> Ref:
    """Exactly what was used: a version that is or was, or the revision of a thing that has none."""
    if ref.pinned:
        return tx.need(ref).ref
    head = tx.need(ref.bare)
    version = (
        head.body.get("newest") if ref.version in ("", "latest") else head.body.get("aliases", {}).get(ref.version)
    )
    if not version and ("newest" in head.body or ref.version):
        raise missing_version_error(ref)
    return ref.at(version) if version else head.ref


def _to_stored_facts(facts: PublishFacts, pinned_inputs: Mapping[str, Ref]) -> dict[str, object]:
    """What a publisher said, as the record keeps it."""
    # By way of JSON, so that what is compared with a record's body has lists where that has lists.
    plain_facts: dict[str, object] = from_json(dict[str, Any], to_json(facts))
    return {**plain_facts, "inputs": {role: str(ref) for role, ref in pinned_inputs.items()}}


def _is_unchanged(
    newest: LedgerRecord, version_tree: PublishedTree, stored_facts: Mapping[str, object], ctx: CallContext
) -> bool:
    newest_fields = {key: newest.body.get(key) for key in stored_facts if key != "message"}
    new_fields = {key: value for key, value in stored_facts.items() if key != "message"}
    is_label_covered = ctx.label is None or newest.label.covers(ctx.label)
    is_equal = {**newest_fields, "inputs": _normalize_inputs(newest_fields["inputs"])} == {
        **new_fields,
        "inputs": _normalize_inputs(new_fields["inputs"]),
    }
    return newest.body["root"] == version_tree.root and is_equal and is_label_covered


def _normalize_inputs(inputs: Any) -> dict[str, str]:
    """What it was made from; a run, or what one logged, is the same whatever was noted of it since."""
    mutable_prefixes = ("run:", "output:")
    return {
        role: ref.partition("@")[0] if ref.startswith(mutable_prefixes) else ref for role, ref in (inputs or {}).items()
    }
