"""The way back: `falaj reproduce` fetches what a model was made from, and makes it again beside the caller."""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from falaj.catalog.provenance_statements import HIDDEN_NAME
from falaj.catalog.records import VERSION_KINDS, CatalogVersion, ModelCard
from falaj.catalog.reproduce import (
    FileComparison,
    build_program_environment,
    compare_environments,
    compare_folders,
    create_exact_environment,
    list_installed_packages,
    run_program,
    to_variable_name,
)
from falaj.core.client_command import Client, client_command
from falaj.core.errors import Denied, Invalid
from falaj.core.ref import Ref


@dataclass(frozen=True, slots=True)
class ReproductionResult:
    """What came out when a version was made again."""

    ref: Ref
    ok: bool
    """True when every file is the same bytes."""
    verdict: str
    files: tuple[FileComparison, ...]
    environment: tuple[str, ...]
    """What of the recorded environment is not the same here."""
    made_from: dict[str, Ref]
    """The exact versions it was made from, both times."""
    command: tuple[str, ...]
    seconds: float
    folder: str = ""


@client_command
def reproduce(
    client: Client,
    name: Annotated[Ref, "which version of a model; the newest when none is given"],
    folder: Annotated[str, "a new folder to work in and to keep; one that goes away afterwards when left out"] = "",
    exact: Annotated[bool, "make a Python environment with exactly the recorded packages, and use it"] = False,
    timeout_s: Annotated[float, "stop the program after so many seconds; 0 is never"] = 0.0,
) -> ReproductionResult:
    """Make a model again from exactly what it was made from, and say whether it is the same, byte for byte.

    The recorded program runs on this machine, with your rights: look at it first if you do not know who wrote it. It
    runs in a fresh copy of its code. FALAJ_INPUT_<ROLE> names the folder of each input, FALAJ_PARAM_<NAME> each
    parameter, and what it writes to the folder FALAJ_OUTPUT is compared with the version. The exit code is 1 when
    anything differs, and what differs is named: of weights each tensor, and by how much.

    Example:
        falaj catalog reproduce model:fraud/scorer@v7
    """
    started_at = time.monotonic()
    version: CatalogVersion = client.catalog.show(name)
    _require_visible_origins(client, version.ref)
    card, code = _require_recipe(version)
    with _open_work_folder(folder) as work_folder:
        output = work_folder / "output"
        output.mkdir()
        data = {role: ref for role, ref in version.inputs.items() if ref != code and ref.kind in VERSION_KINDS}
        inputs = {role: work_folder / "inputs" / to_variable_name(role).lower() for role in data}
        env = build_program_environment(card, inputs, output)
        client.catalog.checkout(code, str(work_folder / "code"))
        for role, path in inputs.items():
            client.catalog.checkout(data[role], str(path))
        client.catalog.checkout(version.ref, str(work_folder / "recorded"))
        python = Path(sys.executable)
        if exact:
            python = create_exact_environment(card.environment, work_folder / "python")
            env["PATH"] = f"{python.parent}:{env.get('PATH', '')}"
        environment_differences = compare_environments(card.environment, list_installed_packages(python, env))
        command = (str(python) if card.command[0] in ("python", "python3") else card.command[0], *card.command[1:])
        with client.progress.task(f"running {' '.join(card.command)[:60]}", unit="steps"):
            run_program(command, work_folder / "code", env, work_folder / "log.txt", timeout_s)
        files = compare_folders(work_folder / "recorded", output)
    differing_count = sum(not compared_file.same for compared_file in files)
    verdict = (
        f"{differing_count} of {len(files)} files differ"
        if differing_count
        else f"the same bytes in all {len(files)} files"
    )
    return ReproductionResult(
        version.ref, not differing_count, verdict, files, environment_differences, {**data, "code": code}, card.command,
        round(time.monotonic() - started_at, 3), folder,
    )  # fmt: skip


def _require_visible_origins(client: Client, version: Ref) -> None:
    """Denied when it was made from something the caller may not know of: without that it would be another model."""
    provenance = json.loads(client.catalog.provenance(version, form="json"))
    hidden = [origin_item["role"] for origin_item in provenance["origins"] if origin_item["ref"] == HIDDEN_NAME]
    if hidden:
        message = f"{version} was made from something you may not see: {', '.join(hidden)[:200]}"
        raise Denied(message, "ask somebody who may read all of its inputs to reproduce it", version)


def _require_recipe(version: CatalogVersion) -> tuple[ModelCard, Ref]:
    """What is needed to make it again, or Invalid when its publisher did not say."""
    card = version.card
    hint = "publish it with --code FOLDER --command 'python train.py' --inputs data=dataset:…"
    if card is None or card.code is None or card.code.ref is None:
        raise Invalid(f"nobody kept the program that made {version.ref}", hint, version.ref)
    if not card.command:
        raise Invalid(f"nobody said what was run to make {version.ref}", hint, version.ref)
    return card, card.code.ref


@contextmanager
def _open_work_folder(folder: str) -> Iterator[Path]:
    """The folder asked for, or one that only its owner can read and that goes away."""
    if folder:
        work_folder = Path(folder).expanduser().resolve()
        if work_folder.exists() and (not work_folder.is_dir() or any(work_folder.iterdir())):
            raise Invalid(f"{folder!r:.200} is not empty", "name a new folder")
        work_folder.mkdir(parents=True, exist_ok=True)
        yield work_folder
        return
    work_folder = Path(tempfile.mkdtemp(prefix="falaj-reproduce-"))
    try:
        yield work_folder
    finally:
        shutil.rmtree(work_folder, ignore_errors=True)
