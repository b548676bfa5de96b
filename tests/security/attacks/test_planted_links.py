"""Threat: a job leaves links in its output, or in place of it, so that the platform publishes files that only it may
read. Links are published as links or refused, and never followed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from falaj.core.errors import Invalid
from tests.jobs.lab import Lab
from tests.town import Town, refusal

PLANT = """
import os
out = os.environ["FALAJ_OUTPUT_RESULT"]
for name, target in TARGETS:
    os.symlink(target, f"{out}/{name}")
open(f"{out}/good.txt", "w").write("good")
"""
REPLACE = """
import os, shutil
out = os.environ["FALAJ_OUTPUT_RESULT"]
for path in (out, os.path.dirname(out), os.path.dirname(os.path.dirname(out))):
    try:
        shutil.rmtree(path)
        os.symlink(TARGET, path)
    except OSError as error:
        print(f"refused: {error.strerror}")
"""


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    prepared = Town(tmp_path_factory.mktemp("links") / "town")
    prepared.as_("admin").clusters.change("local", {"tenants": "bank"})
    with prepared.house.working():
        yield prepared
    prepared.close()


def test_link_in_an_output_is_never_followed(town: Town, tmp_path: Path) -> None:
    home = town.house.settings.home
    key = next(Path(home, "keys").rglob("*.key"))
    targets = [("key.pem", str(key)), ("ledger.db", f"{home}/ledger.db"), ("keys", str(key.parent)),
               ("context.json", "../../context.json")]  # fmt: skip
    lab = Lab(tmp_path, town.as_("amal"))
    job = lab.submit(
        PLANT.replace("TARGETS", repr(targets)), project="fraud", outputs={"result": "dataset:fraud/links"}
    )
    done = lab.done(job)
    assert done.state == "succeeded", (done.note, lab.lines(done))
    version = done.outputs["result"]
    for name, _ in targets:
        error = refusal(lambda name=name: lab.here.catalog.cat(version, name))  # type: ignore[misc]
        assert isinstance(error, Invalid)
        assert "is a link" in error.message
    assert b"".join(lab.here.catalog.cat(version, "good.txt")) == b"good"


def test_output_that_is_replaced_by_a_link_publishes_nothing(town: Town, tmp_path: Path) -> None:
    keys = str(Path(town.house.settings.home, "keys"))
    lab = Lab(tmp_path, town.as_("amal"))
    text = REPLACE.replace("TARGET", repr(keys))
    done = lab.done(lab.submit(text, name="swap", project="fraud", outputs={"result": "dataset:fraud/swapped"}))
    assert done.state == "failed"
    assert lab.here.catalog.list(name="swapped").versions == ()
