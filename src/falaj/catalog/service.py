"""The catalog's desk: one class, written in the parts it inherits."""

from falaj.catalog.origins import Origins
from falaj.catalog.versions import Versions


class Catalog(Versions, Origins):
    """Versions of datasets, models and code: find, compare, promote, roll back, prove."""
