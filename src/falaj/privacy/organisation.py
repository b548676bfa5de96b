"""The organisation that is the controller: its names and contacts as documents print them, one record per tenant."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated

from falaj.core.context import Context
from falaj.core.documents import Organisation, find_time_zone
from falaj.core.errors import Invalid
from falaj.core.verb import verb
from falaj.privacy.shelf import Shelf, check_text, load, named, save
from falaj.store.ledger import Reader

KIND, NAME = "organisation", "controller"
FIELDS = tuple(item.name for item in fields(Organisation))


class OrganisationProfile(Shelf):
    """A part of the privacy service."""

    @verb(group="govern")
    def set_organisation(
        self,
        ctx: Context,
        values: Annotated[dict[str, str], "name=…, name_ar=…, address=…, address_ar=…, email=…, officer=…, timezone=…"],
    ) -> Organisation:
        """Say who the controller is, as documents name it. What is not given stays; an empty value is removed.

        Example:
            falaj privacy set-organisation --values name="Gulf Example Bank" --values name_ar="بنك الخليج المثالي"
        """
        changes = _check_values(values)
        with self._ledger.write(ctx) as tx:
            record = tx.get(named(KIND, NAME))
            changed = replace(read_organisation(tx), **changes)
            kept = save(tx, named(KIND, NAME), changed, record)
            tx.emit("privacy.set_organisation", kept.ref, fields=",".join(sorted(changes)))
        return changed

    @verb()
    def organisation(self, ctx: Context) -> Organisation:
        """Show who the controller is, as documents name it.

        Example:
            falaj privacy organisation
        """
        with self._ledger.read(ctx) as tx:
            return read_organisation(tx)


def read_organisation(tx: Reader) -> Organisation:
    """Return the tenant's organisation; without a name while nobody has set it."""
    record = tx.get(named(KIND, NAME))
    organisation: Organisation = load(Organisation, record) if record is not None else Organisation()
    return organisation


def _check_values(values: Mapping[str, str]) -> dict[str, str]:
    unknown = sorted(set(values) - set(FIELDS))
    if unknown or not values:
        raise Invalid(
            f"organisation: expected one of {', '.join(FIELDS)}; got {', '.join(unknown)[:200] or 'nothing'}",
            'for example --values name="Gulf Example Bank"',
        )
    for name, text in values.items():
        check_text(f"organisation {name}", text, empty=True)
    if values.get("timezone"):
        find_time_zone(values["timezone"])
    return dict(values)
