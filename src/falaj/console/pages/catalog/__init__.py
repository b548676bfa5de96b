"""The catalog's pages: what there is, what a version is, what lies between two, where it came from, where it goes."""

from falaj.console.page import PageRoute
from falaj.console.pages.catalog.diff import render_diff_page
from falaj.console.pages.catalog.lineage import render_lineage_page
from falaj.console.pages.catalog.stage_history import render_stages_page
from falaj.console.pages.catalog.version_files import download_file, download_provenance, render_files_page
from falaj.console.pages.catalog.version_list import render_list_page
from falaj.console.pages.catalog.version_page import render_catalog_page

_DATASET_PATH, _MODEL_PATH = "catalog/dataset:fraud/transactions", "catalog/model:fraud/scorer"

ROUTES: tuple[PageRoute, ...] = (
    PageRoute(
        "catalog", render_list_page, ("catalog", "catalog?kind=model&alias=production", "catalog?q=nothing-like-it")
    ),
    PageRoute(
        "catalog/<ref>",
        render_catalog_page,
        (f"{_DATASET_PATH}@v3", f"{_MODEL_PATH}@v3", _MODEL_PATH, "catalog/dataset:hostile/rows@v2"),
    ),
    PageRoute("catalog/<ref>/files", render_files_page, (f"{_DATASET_PATH}@v3/files", f"{_MODEL_PATH}@v3/files")),
    PageRoute("catalog/<ref>/file", download_file, (f"{_MODEL_PATH}@v3/file?path=README.md",)),
    PageRoute("catalog/<ref>/provenance", download_provenance, (f"{_MODEL_PATH}@v3/provenance?form=cyclonedx",)),
    PageRoute("catalog/<ref>/diff", render_diff_page, (f"{_DATASET_PATH}@v3/diff", f"{_MODEL_PATH}@v1/diff")),
    PageRoute(
        "catalog/<ref>/lineage",
        render_lineage_page,
        (f"{_DATASET_PATH}@v1/lineage", "catalog/dataset:fraud/cards@v1/lineage?column=fils"),
    ),
    PageRoute("catalog/<ref>/stages", render_stages_page, (f"{_MODEL_PATH}@v3/stages", f"{_DATASET_PATH}@v3/stages")),
)
