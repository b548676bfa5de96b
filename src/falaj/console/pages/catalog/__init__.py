"""The catalog's pages: what there is, what a version is, what lies between two, where it came from, where it goes."""

from falaj.console.page import Route
from falaj.console.pages.catalog.diff import diff
from falaj.console.pages.catalog.files import file, files, statement
from falaj.console.pages.catalog.lineage import lineage
from falaj.console.pages.catalog.listing import listing
from falaj.console.pages.catalog.stages import stages
from falaj.console.pages.catalog.version import thing

_DATA, _MODEL = "catalog/dataset:fraud/transactions", "catalog/model:fraud/scorer"

ROUTES: tuple[Route, ...] = (
    Route("catalog", listing, ("catalog", "catalog?kind=model&alias=production", "catalog?q=nothing-like-it")),
    Route("catalog/<ref>", thing, (f"{_DATA}@v3", f"{_MODEL}@v3", _MODEL, "catalog/dataset:hostile/rows@v2")),
    Route("catalog/<ref>/files", files, (f"{_DATA}@v3/files", f"{_MODEL}@v3/files")),
    Route("catalog/<ref>/file", file, (f"{_MODEL}@v3/file?path=README.md",)),
    Route("catalog/<ref>/provenance", statement, (f"{_MODEL}@v3/provenance?form=cyclonedx",)),
    Route("catalog/<ref>/diff", diff, (f"{_DATA}@v3/diff", f"{_MODEL}@v1/diff")),
    Route(
        "catalog/<ref>/lineage", lineage, (f"{_DATA}@v1/lineage", "catalog/dataset:fraud/cards@v1/lineage?column=fils")
    ),
    Route("catalog/<ref>/stages", stages, (f"{_MODEL}@v3/stages", f"{_DATA}@v3/stages")),
)
