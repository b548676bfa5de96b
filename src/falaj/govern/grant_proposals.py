"""Proposes transfer grants: resolves their documents, counts consents, asks approvers, notifies the officers."""

from dataclasses import replace

from falaj.core.context import CallContext
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.govern import residency_cache
from falaj.govern.approvals import APPROVING_ROLES, ApprovalService
from falaj.govern.grants import digest_grant
from falaj.govern.officer_notices import notify_officers
from falaj.govern.records import ApprovalQuestion, LegalRegime, TransferGrant
from falaj.govern.supporting_documents import resolve_documents
from falaj.store.codec import to_plain
from falaj.store.ledger import LedgerReader, LedgerWriter

CONSENT_DOCUMENTS = ("customer-consent", "patient-consent", "consent")
"""Documents of a basis that stand for what individual people agreed to."""
_MAX_COUNTED_CONSENTS = 1000
"""Consents are counted up to this many; approvers are told whether there are any, not exactly how many millions."""


def resolve_grant_documents(tx: LedgerReader, grant: TransferGrant) -> tuple[TransferGrant, dict[str, str]]:
    """Return the grant with the digest of each stored document, and the documents' names for approvers."""
    records = resolve_documents(tx, grant.documents)
    digests = {name: str(record.body["sha256"]) for name, record in records.items()}
    names = {name: str(record.ref.bare) for name, record in records.items()}
    return replace(grant, documents=digests), names


def propose_grant(
    ctx: CallContext,
    tx: LedgerWriter,
    approvals: ApprovalService,
    grant: TransferGrant,
    regime: LegalRegime,
    document_names: dict[str, str],
) -> None:
    """Write the grant, ask the approvers, and notify the officers where its basis demands that."""
    facts = count_consents(tx, grant)
    grant_digest = digest_grant(grant)
    record = tx.put(Ref("grant", "zones", grant.id), to_plain(grant), terms={"state": "open", "regime": grant.regime})
    tx.emit(
        residency_cache.GRANT_ACTION,
        record.ref,
        regime=grant.regime,
        basis=grant.basis,
        src=grant.src,
        dst=grant.dst,
        scope=grant.scope,
        purposes=",".join(grant.purposes),
        expires=int(grant.expires),
        digest=grant_digest,
    )
    movement = f"{grant.scope} from {grant.src} to {grant.dst}, {grant.regime} basis {grant.basis}"
    officers = residency_cache.count_officers(grant, {grant.regime: regime})
    question = ApprovalQuestion(
        action=residency_cache.GRANT_ACTION,
        digest=grant_digest,
        needs=residency_cache.MIN_GRANT_APPROVERS,
        dpo=officers,
        roles=APPROVING_ROLES,
        asker=ctx.actor.person,
        barred=(ctx.actor.id,),
        reason=grant.reason or movement,
        asked=ctx.now(),
        expires=grant.expires,
        about=str(record.ref),
        documents=document_names,
        facts=facts,
    )
    state = approvals.propose(ctx, tx, question)
    if officers:
        notify_officers(ctx, tx, f"transfer of personal data proposed: {movement}", record.ref, state.ref)


def count_consents(tx: LedgerReader, grant: TransferGrant) -> dict[str, str]:
    """Return how many recorded consents stand behind each consent document of a grant, or raise Invalid for none.

    The document is the wording that people agreed to; `falaj privacy consent` records its digest for each of them.
    """
    facts = {}
    for name in CONSENT_DOCUMENTS:
        wording_digest = grant.documents.get(name)
        if wording_digest is None:
            continue
        for purpose in grant.purposes:
            terms = {"purpose": purpose, "state": "given", "text": wording_digest}
            count = len(tx.find("consent", terms=terms, limit=_MAX_COUNTED_CONSENTS).records)
            if not count:
                raise Invalid(
                    f"document {name}: nobody's recorded consent to the purpose {purpose} has this wording "
                    f"({wording_digest[:20]}…)",
                    f"record each with: falaj privacy consent {purpose} WHO {wording_digest} LANGUAGE CHANNEL",
                )
            at_least_text = "at least " if count == _MAX_COUNTED_CONSENTS else ""
            facts[f"consents to {purpose}"] = f"{at_least_text}{count} recorded on the wording {name}"
    return facts
