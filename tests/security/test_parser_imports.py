"""Large parsers are imported where untrusted bytes are isolated, and in named places that read no untrusted bytes.

A new import fails here until its module runs in an isolated helper process, or says below why it need not.
"""

import ast

from tests.shape.source import PACKAGE

PARSERS = frozenset({
    "PIL", "cv2", "deltalake", "duckdb", "fastparquet", "google", "h5py", "lxml", "onnx", "openpyxl", "pandas",
    "polars", "pyiceberg", "tarfile", "xml", "yaml", "zipfile",
})  # fmt: skip
"""pyarrow is left out: its arrays are computed with everywhere. Its readers of files are found by name, see READERS."""
READERS = frozenset({
    "ParquetFile", "ParquetDataset", "read_table", "read_csv", "open_csv", "read_feather", "read_orc", "open_file",
    "open_stream",
})  # fmt: skip
ATTEMPTS = ("demo", "feed", "gauge", "infer", "optimize", "simulator", "state", "train")
"""Packages whose code runs inside an attempt's sandbox, or on nothing but files of ours."""
HELPERS = frozenset({
    "content.duck_engine", "content.archives", "catalog.mlflow_model", "drift.table_comparison",
    "features.isolated_query", "privacy.search.file_formats",
})  # fmt: skip
"""Run in isolated helper processes by the server, the dispatcher and the agent."""
ELSEWHERE = {
    "content.isolated_stream": "reads the Arrow stream of a helper, and validates each batch",
    "api.grpc_messages": "protobuf of the feature API: bounded bodies, after the token; no native reader of files",
    "backends.kubernetes_connection": "the kubeconfig of the person who runs the platform",
    "backends.ray": "writes an archive of ours",
    "worker.launcher_archive": "writes an archive of ours",
    "serve.edge_files": "writes an archive of ours",
    "serve.bundle_commands": "writes an archive, on the caller's machine",
    "audit.falaj_verify": "the standalone verifier, on the machine of whoever checks an evidence pack",
    "jobs.spec": "the caller's own job file, on the caller's machine",
    "track.recorded_runs": "the caller's own folder of runs, on the caller's machine",
    "exchange.untrusted_input": "projects that the caller imports, on the caller's machine: Python's loader, no merges",
    "exchange.oci": "layers that the caller pulls, on the caller's machine: bounded, plain files only",
    "exchange.lake": "tables that the caller imports, on the caller's machine",
    "asof.external_rows": "point-in-time joins on the caller's machine or in a job; SQL without external access",
    "asof.distributed_sets": "point-in-time joins on the caller's machine or in a job",
    "asof.row_spill": "reads what it wrote itself",
    "features.source_reading": "rows that the caller ingests, on the caller's machine or in a job",
    "features.row_removal": "erasure of a person's rows, on the machine of the data protection officer",
    "privacy.row_removal": "erasure of rows that the search found, on the machine of who carries the erasure out",
}


def find_parser_imports() -> dict[str, set[str]]:
    """The parsers that each module of ours names, by module."""
    named: dict[str, set[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
        if module.partition(".")[0] in ATTEMPTS:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                words = {alias.name.partition(".")[0] for alias in node.names} & PARSERS
            elif isinstance(node, ast.ImportFrom):
                words = {(node.module or "").partition(".")[0]} & PARSERS
                words |= (
                    {alias.name for alias in node.names} & READERS
                    if (node.module or "").startswith("pyarrow")
                    else set()
                )
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
                words = {node.attr} & READERS if _is_pyarrow(node.value) else set()
            else:
                continue
            if words:
                named.setdefault(module, set()).update(words)
    return named


def _is_pyarrow(node: ast.expr) -> bool:
    return ast.unparse(node) in (
        "pq",
        "pa.ipc",
        "ipc",
        "parquet",
        "pyarrow.parquet",
        "pyarrow.csv",
        "csv",
        "pyarrow.ipc",
    )


def test_every_module_that_parses_files_is_isolated_or_named() -> None:
    named = find_parser_imports()
    assert {module: words for module, words in named.items() if module not in HELPERS | ELSEWHERE.keys()} == {}


def test_no_named_module_has_stopped_parsing() -> None:
    assert (HELPERS | ELSEWHERE.keys()) - find_parser_imports().keys() == set()


MODEL_READERS = frozenset({"inspect_model", "read_mlmodel"})


def test_model_files_are_inspected_through_the_helper() -> None:
    """Both run in the caller's process; only the helper and a job's own program call them."""
    callers = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and {alias.name for alias in node.names} & {
                "inspect_model",
                "read_mlmodel",
            }:
                callers.add(".".join(file.relative_to(PACKAGE).with_suffix("").parts))
    assert callers == {"catalog.model_parser", "study.optimize_command"}
