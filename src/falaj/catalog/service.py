"""The catalog's desk: one class, written in the parts it inherits."""

from falaj.catalog.model_inspection import InspectionOperations
from falaj.catalog.name_operations import NameOperations
from falaj.catalog.provenance import ProvenanceOperations
from falaj.catalog.restrictions import RestrictionOperations
from falaj.catalog.stages import StageOperations
from falaj.catalog.version_lifecycle import LifecycleOperations
from falaj.catalog.versions import VersionOperations


class CatalogService(
    VersionOperations,
    NameOperations,
    InspectionOperations,
    StageOperations,
    LifecycleOperations,
    RestrictionOperations,
    ProvenanceOperations,
):
    """Versions of datasets, models and code: find, compare, promote, roll back, prove."""
