"""Projects that the real `dvc` made come in byte for byte, and what goes out it takes for its own."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import Conflict, FalajError, Invalid, NotFound
from falaj.exchange.dvc import open_dvc_source
from tests.servers import peers
from tests.servers.process import Missing
from tests.town import LABEL, Town, refusal

Dvc = Callable[..., str]


@pytest.fixture(scope="module")
def programs() -> Path:
    try:
        return peers.peer("dvc", *peers.DVC)
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def dvc(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Dvc:
    """`dvc(folder, "add", "data")` runs it there; `dvc(folder, "git", "init")` runs git."""
    home = tmp_path_factory.mktemp("home")
    env = {
        "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home), "DVC_NO_ANALYTICS": "1",
        "GIT_AUTHOR_NAME": "amal", "GIT_AUTHOR_EMAIL": "amal@bank.example", "GIT_COMMITTER_NAME": "amal",
        "GIT_COMMITTER_EMAIL": "amal@bank.example",
    }  # fmt: skip

    def run(folder: Path, *words: str) -> str:
        command = list(words) if words[0] == "git" else ["dvc", *words]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def made(dvc: Dvc, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a folder, a file, a pipeline's output and one in a working folder; committed."""
    project = tmp_path_factory.mktemp("project")
    dvc(project, "git", "init", "-q")
    dvc(project, "init", "-q")
    (project / "data/raw/deep").mkdir(parents=True)
    for number in range(20):
        (project / f"data/raw/deep/{number}.csv").write_text(f"a,b\n{number},\u0645\n")
    (project / "data/raw/empty").touch()
    (project / "model.bin").write_bytes(os.urandom(100_000))
    (project / "lines.txt").write_bytes(b"one\r\ntwo\r\n")
    dvc(project, "add", "-q", "data/raw", "model.bin", "lines.txt")
    (project / "steps").mkdir()
    stage = ("stage", "add", "-q", "-n", "count", "-d", "data/raw", "-o", "counts.txt", "ls data/raw/deep > counts.txt")
    dvc(project, *stage)
    inner = ("stage", "add", "-q", "-n", "inner", "-w", "steps", "-o", "inner.txt", "echo inner > inner.txt")
    dvc(project, *inner)
    dvc(project, "repro", "-q")
    dvc(project, "git", "add", "-A")
    dvc(project, "git", "commit", "-q", "-m", "data")
    return project


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(made, tmp_path / "project", symlinks=True))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FALAJ_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    town = Town(tmp_path / "town")
    yield town
    town.close()


def files_of(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != ".falaj"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def outputs_of(project: Path) -> dict[str, bytes]:
    kept = ("data/raw/", "model.bin", "lines.txt", "counts.txt", "steps/inner.txt")
    return {
        name: data
        for name, data in files_of(project).items()
        if name.startswith(kept) and not name.endswith((".dvc", ".gitignore"))
    }


def brought(project: Path, *only: str) -> dict[str, bytes]:
    with open_dvc_source(str(project), only) as source:
        return files_of(source.path)


def test_every_output_comes_in_with_its_commit_and_hashes(made: Path, dvc: Dvc, town: Town, tmp_path: Path) -> None:
    amal = town.as_("amal")
    done = amal.catalog.import_dvc("dataset:fraud/tx", str(made), label=LABEL, message="from dvc")
    amal.catalog.checkout(done.ref, str(tmp_path / "out"))
    assert files_of(tmp_path / "out") == outputs_of(made)
    version = amal.catalog.show(done.ref)
    assert version.tags["git.commit"] == dvc(made, "git", "rev-parse", "HEAD").strip()
    assert version.tags["dvc.data/raw"] == dvc_md5(made / "data/raw.dvc")
    assert version.tags["dvc.data/raw"].endswith(".dir")
    again = amal.catalog.import_dvc("dataset:fraud/tx", str(made), label=LABEL)
    assert again.ref == done.ref
    # The same by its word.
    assert amal.catalog.publish("dataset:fraud/tx", f"dvc:{made}", label=LABEL).ref == done.ref


def dvc_md5(file: Path) -> str:
    return next(line.split()[-1] for line in file.read_text().splitlines() if "md5:" in line)


def test_only_some_outputs(made: Path) -> None:
    assert set(brought(made, "steps")) == {"steps/inner.txt"}
    assert set(brought(made, "model.bin", "counts.txt")) == {"model.bin", "counts.txt"}
    assert "it has: " in refusal(lambda: brought(made, "nothing")).hint
    with pytest.raises(Invalid, match="leads out"):
        brought(made, "../project")


def test_bytes_come_from_the_cache_when_the_working_files_are_gone_or_changed(project: Path) -> None:
    whole = outputs_of(project)
    (project / "model.bin").write_bytes(b"changed since")
    shutil.rmtree(project / "data/raw")
    assert brought(project) == whole


def test_bytes_come_from_the_working_files_when_the_cache_has_none(project: Path, dvc: Dvc) -> None:
    whole = outputs_of(project)
    for held in (project / ".dvc/cache").rglob("*"):
        if held.is_file() and not held.name.endswith(".dir"):
            held.unlink()
    assert brought(project) == whole
    (project / "model.bin").write_bytes(b"changed since")
    error = refusal(lambda: brought(project))
    assert isinstance(error, NotFound)
    assert "model.bin" in error.message
    assert "dvc pull" in error.hint


def test_a_damaged_cache_is_not_believed(project: Path) -> None:
    md5 = dvc_md5(project / "model.bin.dvc")
    blob = project / ".dvc/cache/files/md5" / md5[:2] / md5[2:]
    blob.chmod(0o644)
    blob.write_bytes(b"x" * 100_000)
    whole = outputs_of(project)
    assert brought(project, "model.bin") == {"model.bin": whole["model.bin"]}
    (project / "model.bin").unlink()
    assert isinstance(refusal(lambda: brought(project, "model.bin")), NotFound)
    listed = next((project / ".dvc/cache").rglob("*.dir"))
    listed.chmod(0o644)
    listed.write_text("[]")
    assert "data/raw/" in refusal(lambda: brought(project, "data")).message


def test_bytes_come_from_a_local_remote_and_a_cache_elsewhere(project: Path, dvc: Dvc, tmp_path: Path) -> None:
    whole = outputs_of(project)
    dvc(project, "remote", "add", "-q", "-d", "here", str(tmp_path / "remote"))
    dvc(project, "push", "-q")
    shutil.rmtree(project / ".dvc/cache")
    shutil.rmtree(project / "data/raw")
    assert brought(project) == whole
    shutil.move(tmp_path / "remote", tmp_path / "moved")
    dvc(project, "config", "cache.dir", str(tmp_path / "moved"))
    assert brought(project) == whole


def test_the_layout_and_hashes_of_dvc_2(project: Path) -> None:
    """No `files/md5` in the cache, no `hash:` in the files, and texts hashed with their line ends made the same."""
    cache = project / ".dvc/cache"
    (project / "lines.txt").unlink()
    for held in (cache / "files/md5").iterdir():
        held.rename(cache / held.name)
    old = md5(b"one\ntwo\n", usedforsecurity=False).hexdigest()
    new = md5(b"one\r\ntwo\r\n", usedforsecurity=False).hexdigest()
    (cache / old[:2]).mkdir(exist_ok=True)
    (cache / new[:2] / new[2:]).rename(cache / old[:2] / old[2:])
    described = project / "lines.txt.dvc"
    described.write_text(described.read_text().replace(new, old).replace("  hash: md5\n", ""))
    assert brought(project, "lines.txt") == {"lines.txt": b"one\r\ntwo\r\n"}
    assert len(brought(project, "data")) == 21


def described(path: str, oid: str = "0" * 32, **more: Any) -> dict[str, Any]:
    return {"outs": [{"path": path, "md5": oid, "hash": "md5", **more}]}


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (described("../secret"), "leads out of the project"),
        (described("/etc/passwd"), "leads out of the project"),
        (described("x/../../secret"), "leads out of the project"),
        (described("."), "leads out of the project"),
        (described("a\0b"), "leads out"),
        (described("x" * 5000), "has 5,000 characters"),
        ({**described("x"), "wdir": "/etc"}, "leads out of the project"),
        ({**described("x"), "wdir": "../.."}, "leads out of the project"),
        ({**described("x"), "wdir": "${where}"}, "do not read"),
        (described("x", "../../../../etc/passwd"), "no MD5"),
        ({"outs": [{"path": "x"}]}, "no MD5"),
        ({"outs": [{"path": ["x"]}]}, "leads out"),
        ({"outs": "everything"}, "do not read"),
        ({"outs": ["everything"]}, "laid out"),
        (["not", "a", "mapping"], "laid out"),
    ],
)
def test_hostile_descriptions_are_refused(tmp_path: Path, told: Any, says: str) -> None:
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "secret").write_text("not theirs")
    (tmp_path / "x.dvc").write_text(json.dumps(told))
    with pytest.raises(FalajError, match=says):
        brought(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, "a: !!python/object/apply:os.system [touch hacked]", "a: [", "\x00"])
def test_hostile_yaml_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "x.dvc").write_text(text)
    with pytest.raises(Invalid, match="is not YAML"):
        brought(tmp_path)


def test_nobody_waits_for_a_pipe_that_is_named_like_a_description(tmp_path: Path) -> None:
    (tmp_path / ".dvc").mkdir()
    os.mkfifo(tmp_path / "x.dvc")
    with pytest.raises(Invalid, match="is no plain file"):
        brought(tmp_path)


def test_links_lead_nowhere(tmp_path: Path) -> None:
    """A link in the working tree is not followed, even to a file with the right bytes."""
    project, outside = tmp_path / "project", tmp_path / "outside"
    (project / ".dvc").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_bytes(b"known")
    oid = md5(b"known", usedforsecurity=False).hexdigest()
    (project / "a").symlink_to(outside / "secret")
    (project / "b").symlink_to(outside)
    for path in ("a", "b/secret"):
        (project / "x.dvc").write_text(json.dumps(described(path, oid)))
        assert isinstance(refusal(lambda: brought(project)), NotFound)


def test_a_manifest_that_climbs_out_is_refused(project: Path) -> None:
    rows = json.dumps([{"md5": "0" * 32, "relpath": "../../../evil"}]).encode()
    oid = md5(rows, usedforsecurity=False).hexdigest()
    held = project / ".dvc/cache/files/md5" / oid[:2] / f"{oid[2:]}.dir"
    held.parent.mkdir(exist_ok=True)
    held.write_bytes(rows)
    (project / "evil.dvc").write_text(json.dumps(described("evil", f"{oid}.dir")))
    with pytest.raises(Invalid, match="leads out"):
        brought(project, "evil")


def test_what_goes_out_is_clean_to_dvc(dvc: Dvc, town: Town, tmp_path: Path) -> None:
    source, project = tmp_path / "source", tmp_path / "project"
    (source / "b").mkdir(parents=True)
    for name in ("z.txt", "b/a b.txt", "b/\u0645\u0627\u0621.txt", "empty"):
        (source / name).write_text(name if name != "empty" else "")
    amal = town.as_("amal")
    ref = amal.catalog.publish("dataset:fraud/tx", str(source), label=LABEL).ref
    project.mkdir()
    assert "dvc init" in refusal(lambda: amal.catalog.export_dvc(ref, str(project / "data/tx"))).hint
    dvc(project, "git", "init", "-q")
    dvc(project, "init", "-q")
    done = amal.catalog.export_dvc(ref, str(project / "data/tx"))
    assert (done.num_files, files_of(project / "data/tx")) == (4, files_of(source))
    assert "up to date" in dvc(project, "status")
    assert dvc(project, "git", "status", "--porcelain", "-uall", "data").split() == [
        "??",
        "data/.gitignore",
        "??",
        "data/tx.dvc",
    ]
    shutil.rmtree(project / "data/tx")
    dvc(project, "checkout", "-q")
    assert files_of(project / "data/tx") == files_of(source)
    # And in again: the same tree.
    back = amal.catalog.import_dvc("dataset:fraud/back", str(project), label=LABEL)
    assert back.num_files == 4
    (project / "data/tx/z.txt").write_text("changed")
    assert "modified" in dvc(project, "status")


def test_a_newer_version_goes_where_the_older_went(dvc: Dvc, town: Town, tmp_path: Path) -> None:
    source, project = tmp_path / "source", tmp_path / "project"
    source.mkdir()
    (source / "a").write_text("1")
    (source / "gone").write_text("1")
    amal, data = town.as_("amal"), project / "data"
    first = amal.catalog.publish("dataset:fraud/tx", str(source), label=LABEL).ref
    (source / "a").write_text("22")
    (source / "gone").unlink()
    second = amal.catalog.publish("dataset:fraud/tx", str(source)).ref
    project.mkdir()
    dvc(project, "init", "-q", "--no-scm")
    amal.catalog.export_dvc(first, str(data))
    assert amal.catalog.export_dvc(second, str(data)).num_files == 1
    assert files_of(data) == files_of(source)
    assert "up to date" in dvc(project, "status")
    shutil.rmtree(data)
    dvc(project, "checkout", "-q")
    assert files_of(data) == files_of(source)
    # A clone has the description and not the files yet; and the older version is still in the cache.
    shutil.rmtree(data)
    amal.catalog.export_dvc(first, str(data))
    assert sorted(files_of(data)) == ["a", "gone"]
    assert "up to date" in dvc(project, "status")
    # What others wrote stays: beside ours, over it, and an output of their own.
    (data / "mine").write_text("of somebody")
    assert "mine" in refusal(lambda: amal.catalog.export_dvc(second, str(data))).message
    (data / "mine").unlink()
    (data / "a").chmod(0o644)
    (data / "a").write_text("changed")
    assert isinstance(refusal(lambda: amal.catalog.export_dvc(second, str(data))), Conflict)
    assert (data / "a").read_text() == "changed"
    (project / "own").mkdir()
    (project / "own/x").write_text("x")
    assert isinstance(refusal(lambda: amal.catalog.export_dvc(second, str(project / "own"))), Conflict)
    dvc(project, "add", "-q", "own")
    assert "no export of ours" in refusal(lambda: amal.catalog.export_dvc(second, str(project / "own"))).message
    assert (project / "own/x").read_text() == "x"
    assert not list((project / ".dvc/tmp").glob("falaj-*"))


def test_no_link_goes_out(dvc: Dvc, town: Town, tmp_path: Path) -> None:
    source, project = tmp_path / "source", tmp_path / "project"
    source.mkdir()
    (source / "a").write_text("a")
    (source / "b").symlink_to("a")
    project.mkdir()
    dvc(project, "init", "-q", "--no-scm")
    amal = town.as_("amal")
    ref = amal.catalog.publish("dataset:fraud/links", str(source), label=LABEL).ref
    assert "symbolic link" in refusal(lambda: amal.catalog.export_dvc(ref, str(project / "links"))).message
    assert not (project / "links").exists()


def test_no_name_goes_out_that_breaks_dvc(dvc: Dvc, town: Town, tmp_path: Path) -> None:
    source, project = tmp_path / "source", tmp_path / "project"
    source.mkdir()
    (source / "all right ü\n").write_text("a")
    Path(os.fsdecode(os.fsencode(source) + b"/bad\xff")).write_text("b")
    project.mkdir()
    dvc(project, "init", "-q", "--no-scm")
    amal = town.as_("amal")
    ref = amal.catalog.publish("dataset:fraud/odd", str(source), label=LABEL).ref
    said = refusal(lambda: amal.catalog.export_dvc(ref, str(project / "odd"))).message
    assert r"'bad\\xff' is no UTF-8" in said
    assert not list(project.glob("odd*")), "half of an output is in the project"


def test_a_page_that_would_fill_the_memory_is_read(tmp_path: Path) -> None:
    """Mappings merged into each other again and again: 2^40 entries, if anybody made them."""
    levels = [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 41)]
    page = "\n".join(["a0: &a0 {x: 1}", *levels, "outs: []"])
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "x.dvc").write_text(page)
    assert "it has: none" in refusal(lambda: brought(tmp_path)).hint
