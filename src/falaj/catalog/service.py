"""The catalog's desk: one class, written in the parts it inherits."""

from falaj.catalog.keeping import Keeping
from falaj.catalog.looking import Looking
from falaj.catalog.naming import Names
from falaj.catalog.origins import Origins
from falaj.catalog.restricting import Restricting
from falaj.catalog.stages import Stages
from falaj.catalog.versions import Versions


class Catalog(Versions, Names, Looking, Stages, Keeping, Restricting, Origins):
    """Versions of datasets, models and code: find, compare, promote, roll back, prove."""
