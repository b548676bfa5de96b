"""The catalog's desk: one class, written in the parts it inherits."""

from falaj.catalog.versions import Versions


class Catalog(Versions):
    """Versions of datasets, models and code: find, compare, promote, roll back, prove."""
