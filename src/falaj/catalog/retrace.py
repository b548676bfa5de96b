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

from falaj.catalog.records import KINDS, Card, Version
from falaj.catalog.reproduce import Matched, compare, environ, environment_differs, installed, make_exact, run, variable
from falaj.catalog.statements import HIDDEN
from falaj.core.errand import Here, errand
from falaj.core.errors import Denied, Invalid
from falaj.core.ref import Ref


@dataclass(frozen=True, slots=True)
class Reproduced:
    """What came out when a version was made again."""

    ref: Ref
    ok: bool
    """True when every file is the same bytes."""
    verdict: str
    files: tuple[Matched, ...]
    environment: tuple[str, ...]
    """What of the recorded environment is not the same here."""
    made_from: dict[str, Ref]
    """The exact versions it was made from, both times."""
    command: tuple[str, ...]
    seconds: float
    folder: str = ""


@errand
def reproduce(
    here: Here,
    name: Annotated[Ref, "which version of a model; the newest when none is given"],
    folder: Annotated[str, "a new folder to work in and to keep; one that goes away afterwards when left out"] = "",
    exact: Annotated[bool, "make a Python environment with exactly the recorded packages, and use it"] = False,
    timeout_s: Annotated[float, "stop the program after so many seconds; 0 is never"] = 0.0,
) -> Reproduced:
    """Make a model again from exactly what it was made from, and say whether it is the same, byte for byte.

    The recorded program runs on this machine, with your rights: look at it first if you do not know who wrote it. It
    runs in a fresh copy of its code. FALAJ_INPUT_<ROLE> names the folder of each input, FALAJ_PARAM_<NAME> each
    parameter, and what it writes to the folder FALAJ_OUTPUT is compared with the version. The exit code is 1 when
    anything differs, and what differs is named: of weights each tensor, and by how much.

    Example:
        falaj catalog reproduce model:fraud/scorer@v7
    """
    began = time.monotonic()
    version: Version = here.catalog.show(name)
    _check_sight(here, version.ref)
    card, code = _recipe(version)
    with _workplace(folder) as place:
        output = place / "output"
        output.mkdir()
        data = {role: ref for role, ref in version.inputs.items() if ref != code and ref.kind in KINDS}
        inputs = {role: place / "inputs" / variable(role).lower() for role in data}
        env = environ(card, inputs, output)
        here.catalog.checkout(code, str(place / "code"))
        for role, path in inputs.items():
            here.catalog.checkout(data[role], str(path))
        here.catalog.checkout(version.ref, str(place / "recorded"))
        python = Path(sys.executable)
        if exact:
            python = make_exact(card.environment, place / "python")
            env["PATH"] = f"{python.parent}:{env.get('PATH', '')}"
        differs = environment_differs(card.environment, installed(python, env))
        command = (str(python) if card.command[0] in ("python", "python3") else card.command[0], *card.command[1:])
        with here.progress.task(f"running {' '.join(card.command)[:60]}", unit="steps"):
            run(command, place / "code", env, place / "log.txt", timeout_s)
        files = compare(place / "recorded", output)
    wrong = sum(not one.same for one in files)
    verdict = f"{wrong} of {len(files)} files differ" if wrong else f"the same bytes in all {len(files)} files"
    return Reproduced(
        version.ref, not wrong, verdict, files, differs, {**data, "code": code}, card.command,
        round(time.monotonic() - began, 3), folder,
    )  # fmt: skip


def _check_sight(here: Here, version: Ref) -> None:
    """Denied when it was made from something the caller may not know of: without that it would be another model."""
    told = json.loads(here.catalog.provenance(version, form="json"))
    hidden = [one["role"] for one in told["origins"] if one["ref"] == HIDDEN]
    if hidden:
        said = f"{version} was made from something you may not see: {', '.join(hidden)[:200]}"
        raise Denied(said, "ask somebody who may read all of its inputs to reproduce it", version)


def _recipe(version: Version) -> tuple[Card, Ref]:
    """What is needed to make it again, or Invalid when its publisher did not say."""
    card = version.card
    hint = "publish it with --code FOLDER --command 'python train.py' --inputs data=dataset:…"
    if card is None or card.code is None or card.code.ref is None:
        raise Invalid(f"nobody kept the program that made {version.ref}", hint, version.ref)
    if not card.command:
        raise Invalid(f"nobody said what was run to make {version.ref}", hint, version.ref)
    return card, card.code.ref


@contextmanager
def _workplace(folder: str) -> Iterator[Path]:
    """The folder asked for, or one that only its owner can read and that goes away."""
    if folder:
        place = Path(folder).expanduser().resolve()
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise Invalid(f"{folder!r:.200} is not empty", "name a new folder")
        place.mkdir(parents=True, exist_ok=True)
        yield place
        return
    place = Path(tempfile.mkdtemp(prefix="falaj-reproduce-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
