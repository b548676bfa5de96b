"""Whose attempts are caged, by what the house and its clusters say, and what people are told of it."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest

import falaj
from falaj.backends.process_sandbox import probe_isolation
from falaj.core.errors import Invalid
from falaj.core.settings import BackupSettings, Settings
from falaj.fleet import sandbox
from tests.jobs.lab import Lab
from tests.town import Town, refusal

whole = pytest.mark.skipif(
    bool(probe_isolation(gettempdir()).missing), reason="this machine cannot enforce a whole cage"
)
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
    assert sandbox.merge_options(house, "process:?sandbox=off", {}) == {"hidden": "here"}
    assert sandbox.merge_options(house, "process:", {"sandbox": "required"})["sandbox"] == "required"
    strict = house | {"sandbox": "required"}
    assert sandbox.merge_options(strict, "process:?sandbox=off", {"sandbox": "off"})["sandbox"] == "required"


@pytest.mark.parametrize(
    ("address", "options"), [("process:", {"hidden": "/srv/more"}), ("process:?hidden=/srv/more", {})]
)
def test_what_a_cluster_hides_comes_beside_what_the_house_hides(address: str, options: dict[str, str]) -> None:
    found = sandbox.merge_options({"sandbox": "best", "hidden": "/srv/falaj,/keys"}, address, options)
    assert found["hidden"].split(",") == ["/srv/falaj", "/keys", "/srv/more"]


def test_everything_that_the_platform_keeps_is_hidden() -> None:
    settings = Settings(home="/srv/falaj", store="sqlite:/data/ledger.db", secrets="file:/keys", blobs="s3://far/away")
    told = sandbox.build_options(settings)
    assert told["hidden"].split(",") == [
        "/srv/falaj",
        "/data/ledger.db",
        "/keys",
        "/srv/falaj/online",
        "/data/ledger.db-wal",
    ]
    assert told["platform"] == "http://127.0.0.1:8470"
    by_tenant = Settings(
        home="/srv/falaj", online="lmdb:/srv/online/of-{tenant}/rows", backup=BackupSettings(to="dir:/backups")
    )
    assert "/backups" in sandbox.build_options(by_tenant)["hidden"].split(",")
    assert "/srv/online" in sandbox.build_options(by_tenant)["hidden"].split(",")


def test_folders_of_all_clusters_and_stores_of_zones_are_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: dict[str, Any] = {}
    with closing(Town(tmp_path / "town")) as town:
        root, desk = town.as_("admin"), town.house.desks["clusters"]
        root.clusters.change("local", {"checkpoints": "/shared/checkpoints"})
        root.clusters.add("second", f"process:{tmp_path}/second", more={"checkpoints": "/other/checkpoints"})
        root.zones.add("eu-north", "SE-AB", "SE", store="dir:/shared/eu?mount=/shared")
        monkeypatch.setattr(desk, "_opener", lambda address, options: opened.update(options))
        desk.executor(town.house.system(), root.clusters.show("local"))
    expected = {"/shared/checkpoints", "/other/checkpoints", "/shared/eu", f"{tmp_path}/second", f"{tmp_path}/town"}
    assert expected <= set(opened["hidden"].split(","))


def test_tenants_person_who_asks_a_cluster_first_is_answered(tmp_path: Path) -> None:
    """Logs of a job are read by its submitter, whether or not somebody of the system tenant asked for logs before."""
    with closing(Town(tmp_path / "town")) as town:
        desk, cluster = town.house.desks["clusters"], town.as_("admin").clusters.show("local")
        assert desk.spoken(town.house.context(town.actor("amal")), cluster).capacity()


@pytest.mark.parametrize(
    ("house", "address", "options", "single_user", "whose"),
    [
        ("best", "process:", {}, True, "owner"),
        ("best", "process:", {}, False, ""),
        ("required", "process:?sandbox=off", {"sandbox": "off"}, True, ""),
        ("best", "process:", {"sandbox": "required"}, True, ""),
        ("off", "process:", {}, False, "everybody"),
        ("best", "process:?sandbox=off", {}, False, "everybody"),
        ("off", "slurm:", {}, True, "submitter"),
        ("best", "slurm:", {"sandbox": "off"}, False, "submitter"),
        ("best", "slurm:?sandbox=calls", {}, False, ""),
        ("best", "slurm:?sandbox=calls", {"sandbox": "off"}, False, "submitter"),
        ("required", "ray:https://head:8265", {}, False, "cluster"),
        ("best", "ray:https://head:8265", {"shared": "tenants"}, False, "tenants"),
        ("best", "kubernetes:", {}, False, ""),
    ],
)
def test_whose_jobs_run_without_a_sandbox_is_known(
    house: str, address: str, options: dict[str, str], single_user: bool, whose: str
) -> None:
    assert sandbox.find_unsandboxed({"sandbox": house}, address, options, single_user) == whose


def test_required_refuses_clusters_without_a_sandbox(tmp_path: Path) -> None:
    """A cluster declared before the setting changed starts nothing: its executor is refused and the reason shown."""
    more = {"folder": str(tmp_path / "shared")}
    rays = "ray:http://127.0.0.1:1?insecure=loopback"
    with falaj.connect(str(tmp_path / "home")) as client:
        for name, address in (("hall", "slurm:"), ("rays", rays)):
            client.clusters.add(name, address, more=more if name == "hall" else {})
            assert client.clusters.show(name).unsandboxed
    (tmp_path / "home" / "falaj.toml").write_text('sandbox = "required"\n')
    with falaj.connect(str(tmp_path / "home")) as client:
        for name, address in (("hall", "slurm:"), ("rays", rays)):
            assert "without a sandbox" in client.clusters.check(name).problem
            options = more if name == "hall" else {}
            error = refusal(lambda address=address, options=options: client.clusters.add("new", address, more=options))
            assert isinstance(error, Invalid), error
            assert 'sandbox = "required"' in error.message
        assert client.clusters.change("rays", {"state": "closed"}).state == "closed"
        assert client.clusters.change("hall", {"sandbox": "calls"}).options["sandbox"] == "calls"
        assert client.clusters.show("hall").unsandboxed == ""
        assert "without a sandbox" not in client.clusters.check("hall").problem


def test_a_ray_cluster_takes_jobs_of_a_single_tenant(tmp_path: Path) -> None:
    rays = "ray:http://127.0.0.1:1?insecure=loopback"
    with falaj.connect(str(tmp_path / "home")) as client:
        for tenant in ("bank", "clinic"):
            client.people.add_tenant(tenant, "fatima")
        assert client.clusters.add("rays", rays).tenants == ("house",)
        for tenants in ("bank,clinic", "bank,house", "*"):
            for act in (
                lambda tenants=tenants: client.clusters.change("rays", {"tenants": tenants}),
                lambda tenants=tenants: client.clusters.add("new", rays, more={"tenants": tenants}),
            ):
                error = refusal(act)
                assert isinstance(error, Invalid), error
                assert "single tenant" in error.message
        assert client.clusters.change("rays", {"tenants": "bank"}).tenants == ("bank",)
        assert client.clusters.change("rays", {"tenants": ""}).tenants == ("house",)
        client.clusters.change("rays", {"tenants": "bank,clinic", "shared": "tenants"})
        assert client.clusters.show("rays").unsandboxed == "tenants"
        assert isinstance(refusal(lambda: client.clusters.change("rays", {"shared": ""})), Invalid)


def test_what_is_not_enforced_is_said() -> None:
    assert sandbox.describe_enforced({"user": "its own", "network": ""}) == "user: its own; NOT enforced: network"


@pytest.mark.parametrize("writable", ["/srv/falaj", "/srv/falaj/keys", "/srv/scratch,/srv/falaj/online"])
def test_folders_of_the_platform_are_never_shown_to_attempts(writable: str) -> None:
    platform = {"sandbox": "best", "hidden": "/srv/falaj"}
    with pytest.raises(Invalid, match="outside of the platform's own"):
        sandbox.merge_options(platform, "process:", {"writable": writable})
    assert (
        sandbox.merge_options(platform, "process:", {"writable": "/srv/falaj-scratch"})["writable"]
        == "/srv/falaj-scratch"
    )
