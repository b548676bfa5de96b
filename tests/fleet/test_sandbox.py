"""Whose attempts are caged, by what the house and its clusters say, and what people are told of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

import pytest

from falaj.backends.process_cage import powers
from falaj.core.errors import Invalid
from falaj.core.settings import Settings
from falaj.fleet import sandbox
from tests.jobs.lab import Lab
from tests.town import Town

whole = pytest.mark.skipif(bool(powers(gettempdir()).missing), reason="this machine cannot enforce a whole cage")
TELL = """
import json, os
def seen(path):
    try:
        return os.path.getsize(path)
    except OSError:
        return 0
open(os.environ["FALAJ_OUTPUT_MODEL"] + "/made", "w").write("by a stranger")
print(json.dumps([os.environ.get("FALAJ_SANDBOX", ""), os.getuid(), seen(LEDGER)]))
"""


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(tmp_path / "town")
    made.as_("admin").clusters.change("local", {"tenants": "bank,house"})
    with made.house.working():
        yield made
    made.close()


@whole
def test_a_tenants_job_runs_in_a_cage_and_what_it_made_is_published(town: Town, tmp_path: Path) -> None:
    lab = Lab(tmp_path, town.as_("amal"))
    text = TELL.replace("LEDGER", repr(f"{town.house.settings.home}/ledger.db"))
    job = lab.done(lab.submit(text, project="fraud", outputs={"model": "model:fraud/made"}))
    assert job.state == "succeeded", (job.note, lab.lines(job))
    how, uid, seen = json.loads(lab.lines(job)[-1])
    assert (how, seen) == ("namespaces", 0)
    assert uid != 0
    assert "network namespace" in town.as_("admin").clusters.check("local").sandbox


def test_what_the_house_requires_no_cluster_lowers() -> None:
    house = {"sandbox": "best", "hidden": "here"}
    assert sandbox.chosen(house, "process:?sandbox=off", {}) == {"hidden": "here"}
    assert sandbox.chosen(house, "process:", {"sandbox": "required"})["sandbox"] == "required"
    strict = house | {"sandbox": "required"}
    assert sandbox.chosen(strict, "process:?sandbox=off", {"sandbox": "off"})["sandbox"] == "required"


@pytest.mark.parametrize(
    ("address", "options"), [("process:", {"hidden": "/srv/more"}), ("process:?hidden=/srv/more", {})]
)
def test_what_a_cluster_hides_comes_beside_what_the_house_hides(address: str, options: dict[str, str]) -> None:
    found = sandbox.chosen({"sandbox": "best", "hidden": "/srv/falaj,/keys"}, address, options)
    assert found["hidden"].split(",") == ["/srv/falaj", "/keys", "/srv/more"]


def test_everything_that_the_platform_keeps_is_hidden() -> None:
    settings = Settings(home="/srv/falaj", store="sqlite:/data/ledger.db", secrets="file:/keys", blobs="s3://far/away")
    told = sandbox.options_of(settings)
    assert told["hidden"].split(",") == [
        "/srv/falaj",
        "/data/ledger.db",
        "/keys",
        "/srv/falaj/online",
        "/data/ledger.db-wal",
    ]
    assert told["platform"] == "http://127.0.0.1:8470"
    by_tenant = Settings(home="/srv/falaj", online="lmdb:/srv/online/of-{tenant}/rows")
    assert "/srv/online" in sandbox.options_of(by_tenant)["hidden"].split(",")


@pytest.mark.parametrize(
    ("house", "address", "options", "single_user", "whose"),
    [
        ("best", "process:", {}, True, "owner"),
        ("best", "process:", {}, False, ""),
        ("required", "process:?sandbox=off", {"sandbox": "off"}, True, ""),
        ("best", "process:", {"sandbox": "required"}, True, ""),
        ("off", "process:", {}, False, "everybody"),
        ("best", "process:?sandbox=off", {}, False, "everybody"),
        ("off", "slurm:", {}, True, ""),
    ],
)
def test_whose_jobs_run_without_a_sandbox_is_known(
    house: str, address: str, options: dict[str, str], single_user: bool, whose: str
) -> None:
    assert sandbox.unsandboxed({"sandbox": house}, address, options, single_user) == whose


def test_what_is_not_enforced_is_said() -> None:
    assert sandbox.in_words({"user": "its own", "network": ""}) == "user: its own; NOT enforced: network"


@pytest.mark.parametrize("writable", ["/srv/falaj", "/srv/falaj/keys", "/srv/scratch,/srv/falaj/online"])
def test_folders_of_the_platform_are_never_shown_to_attempts(writable: str) -> None:
    platform = {"sandbox": "best", "hidden": "/srv/falaj"}
    with pytest.raises(Invalid, match="outside of the platform's own"):
        sandbox.chosen(platform, "process:", {"writable": writable})
    assert sandbox.chosen(platform, "process:", {"writable": "/srv/falaj-scratch"})["writable"] == "/srv/falaj-scratch"
