"""The organisation that is the controller: its names and contacts as documents print them, one record per tenant."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated

from falaj.core.context import CallContext
from falaj.core.documents import IssuingOrganisation, find_time_zone
from falaj.core.errors import Invalid
from falaj.core.operation import operation
from falaj.privacy.service_base import PrivacyServiceBase, load_record, make_ref, require_text, save_record
from falaj.store.ledger import LedgerReader

ORGANISATION_KIND, ORGANISATION_NAME = "organisation", "controller"
ORGANISATION_FIELDS = tuple(item.name for item in fields(IssuingOrganisation))


class OrganisationOperations(PrivacyServiceBase):
    """A part of the privacy service."""

    @operation(group="govern")
    def set_organisation(
        self,
        ctx: CallContext,
        values: Annotated[dict[str, str], "name=…, name_ar=…, address=…, address_ar=…, email=…, officer=…, timezone=…"],
    ) -> IssuingOrganisation:
        """Say who the controller is, as documents name it. What is not given stays; an empty value is removed.

        Example:
            falaj privacy set-organisation --values name="Gulf Example Bank" --values name_ar="بنك الخليج المثالي"
        """
        changes = _require_valid_fields(values)
        with self._ledger.write(ctx) as tx:
            record = tx.get(make_ref(ORGANISATION_KIND, ORGANISATION_NAME))
            changed_organisation = replace(read_organisation(tx), **changes)
            saved_record = save_record(tx, make_ref(ORGANISATION_KIND, ORGANISATION_NAME), changed_organisation, record)
            tx.emit("privacy.set_organisation", saved_record.ref, fields=",".join(sorted(changes)))
        return changed_organisation

    @operation()
    def organisation(self, ctx: CallContext) -> IssuingOrganisation:
        """Show who the controller is, as documents name it.

        Example:
            falaj privacy organisation
        """
        with self._ledger.read(ctx) as tx:
            return read_organisation(tx)


def read_organisation(tx: LedgerReader) -> IssuingOrganisation:
    """Return the tenant's organisation; without a name while nobody has set it."""
    record = tx.get(make_ref(ORGANISATION_KIND, ORGANISATION_NAME))
    organisation: IssuingOrganisation = (
        load_record(IssuingOrganisation, record) if record is not None else IssuingOrganisation()
    )
    return organisation


def _require_valid_fields(values: Mapping[str, str]) -> dict[str, str]:
    unknown_fields = sorted(set(values) - set(ORGANISATION_FIELDS))
    if unknown_fields or not values:
        raise Invalid(
            f"organisation: expected one of {', '.join(ORGANISATION_FIELDS)}; "
            f"got {', '.join(unknown_fields)[:200] or 'nothing'}",
            'for example --values name="Gulf Example Bank"',
        )
    for name, text in values.items():
        require_text(f"organisation {name}", text, allow_empty=True)
    if values.get("timezone"):
        find_time_zone(values["timezone"])
    return dict(values)
