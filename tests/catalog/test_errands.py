"""Publish, check out, read, compare and verify, as people do it: in a house in this process, and over HTTP."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from falaj.catalog import client_commands, git_facts, publish_sources
from falaj.core.errors import CorruptData, Denied, FalajError, Invalid, NotFound
from falaj.core.transfer_permits import PermitAuthority
from falaj.snapshot import publish_state
from falaj.store import transfers
from tests.people import enroll, enroll_tenant
from tests.replica import FALAJ, Replica
from tests.town import LABEL, Town, refusal

DATA = "dataset:fraud/tx"
AWKWARD = ("plain.txt", "with space", "نص.bin", "new\nline", "tab\there", "\x1b[2J", "a" * 255, "-rf", "%41;#&?")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FALAJ_CACHE", str(tmp_path / "cache"))
    # The files of these tests are younger than any clock's tick; nothing writes to them behind our back.
    monkeypatch.setattr(publish_state, "RACY_WINDOW_NS", 0)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    made = Town(tmp_path_factory.mktemp("town"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    with Replica(tmp_path_factory.mktemp("replica") / "house") as server:
        yield server


@pytest.fixture(params=["in process", "over HTTP"])
def here(request: pytest.FixtureRequest) -> Any:
    """A platform with somebody bound who may do what this file does."""
    if request.param == "in process":
        return request.getfixturevalue("town").as_("amal")
    server: Replica = request.getfixturevalue("replica")
    admin = server.as_()
    try:
        boss = enroll_tenant(admin, "bank", "fatima")
        server.amal = enroll(server.as_(boss), "amal", ("data-scientist",), jurisdiction="AE")  # type: ignore[attr-defined]
    except FalajError:
        assert hasattr(server, "amal")
    return server.as_(server.amal)  # type: ignore[attr-defined]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a bit of everything a tree can hold."""
    root = tmp_path / "data"
    (root / "deep" / "er").mkdir(parents=True)
    for name in AWKWARD:
        (root / name).write_bytes(name.encode() * 3)
    (root / "deep" / "er" / "big.bin").write_bytes(os.urandom(3_000_000))
    (root / "deep" / "empty").touch()
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("deep/er/big.bin")
    return root


def names(request: pytest.FixtureRequest) -> str:
    return "dataset:fraud/" + request.node.name.replace("[", "-").replace("]", "").replace(" ", "-")[:100]


def contents(folder: Path) -> dict[bytes, tuple[str, bytes, bool]]:
    found = {}
    root = os.fsencode(folder)
    for at, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != b".falaj"]
        for name in files:
            path = os.path.join(at, name)  # noqa: PTH118 - raw bytes
            short = os.path.relpath(path, root)
            if os.path.islink(path):  # noqa: PTH114
                found[short] = ("link", os.readlink(path), False)  # noqa: PTH115
            else:
                executable = bool(os.stat(path).st_mode & 0o100)  # noqa: PTH116
                found[short] = ("file", Path(os.fsdecode(path)).read_bytes(), executable)
    return found


def test_what_is_published_comes_back(here: Any, folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    name = names(request)
    done = here.catalog.publish(name, str(folder), message="the first")
    assert (str(done.ref), done.num_files) == (f"{name}@v1", len(AWKWARD) + 4)
    assert done.size_bytes == sum(len(data) for kind, data, _ in contents(folder).values() if kind == "file")
    assert done.new_bytes >= 3_000_000
    out = here.catalog.checkout(name, str(tmp_path / "out"))
    assert contents(tmp_path / "out") == contents(folder)
    assert (str(out.ref), out.num_files, out.size_bytes) == (f"{name}@v1", done.num_files, done.size_bytes)
    shown = here.catalog.show(name)
    assert (shown.message, shown.num_files, shown.size_bytes) == ("the first", done.num_files, done.size_bytes)


def test_the_same_again_is_no_new_version_and_reads_nothing(
    here: Any, folder: Path, request: pytest.FixtureRequest
) -> None:
    name = names(request)
    here.catalog.publish(name, str(folder))
    again = here.catalog.publish(name, str(folder))
    assert str(again.ref) == f"{name}@v1"
    assert again.new_bytes == 0
    assert again.kept_files == again.num_files


def test_a_change_costs_what_changed(here: Any, folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    name = names(request)
    here.catalog.publish(name, str(folder))
    with (folder / "deep/er/big.bin").open("r+b") as file:
        file.seek(1_500_000)
        file.write(b"edited")
    (folder / "plain.txt").unlink()
    (folder / "new.txt").write_text("new")
    done = here.catalog.publish(name, str(folder))
    assert str(done.ref) == f"{name}@v2"
    assert 0 < done.new_bytes < 600_000
    here.catalog.checkout(f"{name}@v2", str(tmp_path / "out"))
    assert contents(tmp_path / "out") == contents(folder)
    diff = here.catalog.diff(f"{name}@v1", f"{name}@v2")
    assert (diff.added, diff.removed, diff.changed) == (1, 1, 1)
    assert {(change.how, change.path) for change in diff.files} == {
        ("added", "new.txt"), ("removed", "plain.txt"), ("changed", "deep/er/big.bin"),
    }  # fmt: skip
    # From one version to the other over the same folder: what is right is kept, what went is gone.
    back = here.catalog.checkout(f"{name}@v1", str(tmp_path / "out"))
    assert back.kept_files >= len(AWKWARD)
    assert not (tmp_path / "out" / "new.txt").exists()


def test_reads_of_one_file_and_of_a_part_of_it(here: Any, folder: Path, request: pytest.FixtureRequest) -> None:
    name = names(request)
    here.catalog.publish(name, str(folder))
    big = (folder / "deep/er/big.bin").read_bytes()
    assert here.catalog.cat(name, "deep/er/big.bin").read() == big
    for start, stop in ((0, 1), (1_000_000, 2_000_001), (2_999_999, None), (5, 5), (3_000_000, 9_000_000)):
        part = here.catalog.cat(name, "./deep/er/big.bin", start, stop)
        assert part.read() == big[start:stop]
        assert part.size == len(big[start:stop])
    assert here.catalog.cat(name, "new\nline").read() == b"new\nline" * 3
    assert isinstance(refusal(lambda: here.catalog.cat(name, "deep")), NotFound)
    assert isinstance(refusal(lambda: here.catalog.cat(name, "../plain.txt")), NotFound)
    assert "deep/er/big.bin" in refusal(lambda: here.catalog.cat(name, "link")).message
    assert isinstance(refusal(lambda: here.catalog.cat(name, "plain.txt", 5, 2)), Invalid)
    assert refusal(lambda: here.catalog.cat(name, "plain.txt", -5)).message == "a range from -5 to the end"
    listed = here.catalog.files(name, "deep/")
    assert [row.path for row in listed] == ["deep/empty", "deep/er/big.bin"]
    rows = {row.path: row for row in here.catalog.files(name)}
    assert rows["run.sh"].executable
    assert rows["link"].target == "deep/er/big.bin"
    assert "\x1b" not in rows["\x1b[2J"].name


def test_a_part_of_a_version(here: Any, folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    name = names(request)
    here.catalog.publish(name, str(folder))
    done = here.catalog.checkout(name, str(tmp_path / "out"), paths=("deep", "plain.txt"))
    assert set(contents(tmp_path / "out")) == {b"deep/empty", b"deep/er/big.bin", b"plain.txt"}
    assert done.num_files == 3
    assert isinstance(refusal(lambda: here.catalog.checkout(name, str(tmp_path / "no"), paths=("nowhere",))), NotFound)


def test_what_a_checkout_will_not_bring_back_is_said_at_once(here: Any, tmp_path: Path, request: Any) -> None:
    """A link that leads out, and empty folders."""
    source, name = tmp_path / "odd", names(request)
    (source / "empty").mkdir(parents=True)
    (source / "out").symlink_to("../elsewhere")
    (source / "kept.txt").write_text("kept")
    note = here.catalog.publish(name, str(source)).note
    assert "lead out of the folder, which no checkout writes: out" in note
    assert "empty folders, which are not kept: empty/" in note
    assert "--paths" in refusal(lambda: here.catalog.checkout(name, str(tmp_path / "whole"))).hint
    here.catalog.checkout(name, str(tmp_path / "part"), paths=("kept.txt",))
    assert (tmp_path / "part/kept.txt").read_text() == "kept"
    (tmp_path / "nothing").mkdir()
    assert here.catalog.publish(name, str(tmp_path / "nothing")).note == "there is no file in it"


def test_a_single_file(here: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    name = names(request)
    file = tmp_path / "alone.bin"
    file.write_bytes(os.urandom(200_000))
    (tmp_path / "beside.bin").write_bytes(b"not meant")
    done = here.catalog.publish(name, str(file))
    assert [row.path for row in here.catalog.files(done.ref)] == ["alone.bin"]
    assert here.catalog.cat(done.ref, "alone.bin").read() == file.read_bytes()
    again = here.catalog.publish(name, str(file))
    assert (again.ref, again.kept_files) == (done.ref, 1)


def test_verify_says_yes(here: Any, folder: Path, request: pytest.FixtureRequest) -> None:
    done = here.catalog.publish(names(request), str(folder))
    found = here.catalog.verify(done.ref)
    assert (found.ok, found.faults, found.num_files) == (True, (), done.num_files)


def test_labels_and_inputs_come_with_it(town: Town, folder: Path) -> None:
    amal = town.as_("amal")
    raw = amal.catalog.publish("dataset:fraud/raw", str(folder), label=LABEL)
    made = amal.catalog.publish("dataset:fraud/made", str(folder / "deep"), inputs={"raw": "dataset:fraud/raw"})
    shown = amal.catalog.show(made.ref)
    assert shown.inputs == {"raw": raw.ref}
    assert shown.label.covers(amal.catalog.show(raw.ref).label)


def _socket(at: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(at / "socket"))
    return at


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing there": (lambda at: at / "nowhere", "no"),
    "a socket": (_socket, "socket"),
    "a pipe": (lambda at: (os.mkfifo(at / "pipe"), at)[1], "pipe"),
    "a device": (lambda _: Path("/dev/null"), "null"),
}


def test_no_byte_is_sent_where_its_label_may_not_lie(
    here: Any, folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In process and over HTTP: by the label that is given, and by those of what it was made from."""
    over_http = request.node.callspec.params["here"] == "over HTTP"
    owner = request.getfixturevalue("replica").as_() if over_http else request.getfixturevalue("town").as_("admin")
    owner.zones.add("abroad", "IE-D", "IE", regimes=("EU-GDPR",), max_class=2, store=f"dir:{tmp_path}/abroad")
    name = names(request)
    source = here.catalog.publish(f"{name}-in", str(folder), label="AE-CBUAE").ref
    for said in ({"label": "AE-CBUAE"}, {"inputs": {"data": source}}):
        denied = refusal(lambda said=said: here.catalog.publish(name, str(folder), zone="abroad", **said))
        assert isinstance(denied, Denied)
        assert "AE-CBUAE" in denied.message
    assert not [each for each in (tmp_path / "abroad").rglob("*") if each.is_file()]
    assert here.catalog.publish(name, str(folder), zone="abroad").ref.version == "v1"


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_published_is_named(town: Town, case: str, tmp_path: Path) -> None:
    make, word = BAD[case]
    (tmp_path / "bad").mkdir()
    error = refusal(lambda: town.as_("amal").catalog.publish("dataset:fraud/bad", str(make(tmp_path / "bad"))))
    assert isinstance(error, Invalid)
    assert word in error.message
    assert error.hint
    assert isinstance(refusal(lambda: town.as_("amal").catalog.show("dataset:fraud/bad")), NotFound)


@pytest.mark.parametrize("source", ["", " ", "delta:", "dvc: "])
def test_nothing_is_not_the_folder_one_stands_in(
    town: Town, source: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    error = refusal(lambda: town.as_("amal").catalog.publish("dataset:fraud/unset", source))
    assert isinstance(error, Invalid)
    assert "name" in error.message
    assert isinstance(refusal(lambda: town.as_("amal").catalog.show("dataset:fraud/unset")), NotFound)


def test_an_unreadable_file_is_named(town: Town, tmp_path: Path) -> None:
    if os.getuid() == 0:
        pytest.skip("root may read everything")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "secret").touch(mode=0)
    error = refusal(lambda: town.as_("amal").catalog.publish("dataset:fraud/bad", str(tmp_path / "bad")))
    assert "secret" in error.message


def test_a_version_cannot_be_named(town: Town, folder: Path) -> None:
    error = refusal(lambda: town.as_("amal").catalog.publish("dataset:fraud/tx@v9", str(folder)))
    assert "leave it out" in error.hint
    error = refusal(lambda: town.as_("amal").catalog.publish(DATA, str(folder), metrics={"auc": 1.0}))
    assert "metrics" in error.message
    error = refusal(lambda: town.as_("amal").catalog.publish("blob:fraud/tx", str(folder)))
    assert isinstance(error, Invalid)


def test_who_may_not_read_does_not(town: Town, folder: Path, tmp_path: Path) -> None:
    town.as_("amal").catalog.publish("dataset:fraud/secret", str(folder), label=LABEL)
    for name in ("sara", "omar"):
        error = refusal(lambda name=name: town.as_(name).catalog.checkout("dataset:fraud/secret", str(tmp_path / "x")))
        assert isinstance(error, (Denied, NotFound))
        assert not (tmp_path / "x").exists()


def test_a_full_disk_leaves_nothing_half(town: Town, folder: Path, tmp_path: Path) -> None:
    """The system's own limit on a file's size stands for a disk with no room: the write fails in the middle."""
    name = "dataset:fraud/full"
    town.as_("amal").catalog.publish(name, str(folder))
    script = (
        "import resource, signal, sys; from falaj.cli import main;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000)); sys.exit(main())"
    )
    out = tmp_path / "out"
    words = ["catalog", "checkout", name, str(out), "--at", str(town.house.settings.home), "--paths", "deep"]
    done = subprocess.run(
        [FALAJ[0], "-c", script, *words],
        capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "FALAJ_TOKEN": town.tokens["amal"], "FALAJ_ZONE": "ae-dubai"},
    )  # fmt: skip
    assert done.returncode not in (0, 1), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not (out / "deep/er/big.bin").exists()
    town.as_("amal").catalog.checkout(name, str(out))
    assert contents(out) == contents(folder)


def test_two_people_publish_at_once(here: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    name, refs, errors = names(request), list[str](), list[FalajError]()
    gate = threading.Barrier(4)

    def publish(n: int) -> None:
        (tmp_path / f"of-{n}").mkdir()
        (tmp_path / f"of-{n}" / "file").write_bytes(b"%d" % n * 100)
        gate.wait()
        try:
            refs.append(str(here.catalog.publish(name, str(tmp_path / f"of-{n}")).ref))
        except FalajError as error:
            errors.append(error)

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(refs) == [f"{name}@v{n}" for n in range(1, 5)]
    found = {here.catalog.cat(ref, "file").read() for ref in refs}
    assert found == {b"%d" % n * 100 for n in range(4)}


def test_the_same_folder_by_two_at_once(here: Any, folder: Path, request: pytest.FixtureRequest) -> None:
    name, done = names(request), list[Any]()
    threads = [threading.Thread(target=lambda: done.append(here.catalog.publish(name, str(folder)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 3
    for each in done:
        assert here.catalog.verify(each.ref).ok
    assert here.catalog.publish(name, str(folder)).new_bytes == 0


def test_a_read_outlives_its_ticket(town: Town, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    amal = town.as_("amal")
    done = amal.catalog.publish("dataset:fraud/slow", str(folder))
    whole, turn = PermitAuthority.admit, iter(range(10**6))

    def admit(desk: PermitAuthority, text: str, op: str, holder: str, now: float) -> Any:
        late = transfers.READ_TICKET_S + 1 if op == "read" and next(turn) % 2 else 0
        return whole(desk, text, op, holder, now + late)

    monkeypatch.setattr(PermitAuthority, "admit", admit)
    amal.catalog.checkout(done.ref, str(tmp_path / "out"))
    assert contents(tmp_path / "out") == contents(folder)
    assert next(turn) > 2


def test_nothing_can_be_remembered_and_all_is_well(
    town: Town, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flat").touch()
    monkeypatch.setenv("FALAJ_CACHE", str(tmp_path / "flat"))
    amal = town.as_("amal")
    first = amal.catalog.publish("dataset:fraud/forgetful", str(folder))
    again = amal.catalog.publish("dataset:fraud/forgetful", str(folder))
    assert (again.ref, again.new_bytes) == (first.ref, 0)


def test_what_is_remembered_is_its_owners_alone(town: Town, folder: Path, own_cache: Path) -> None:
    town.as_("amal").catalog.publish("dataset:fraud/private", str(folder))
    assert list((own_cache / "publish").glob("*.db"))
    assert (own_cache / "publish").stat().st_mode & 0o077 == 0


def test_rotten_memory_is_no_reason_to_fail(town: Town, folder: Path, own_cache: Path) -> None:
    amal = town.as_("amal")
    first = amal.catalog.publish("dataset:fraud/rotten", str(folder))
    (memory,) = (own_cache / "publish").glob("*.db")
    memory.write_bytes(b"rotten" * 100)
    again = amal.catalog.publish("dataset:fraud/rotten", str(folder))
    assert again.ref == first.ref


def test_the_command_line(town: Town, folder: Path, tmp_path: Path) -> None:
    home = str(town.house.settings.home)
    env = {**os.environ, "FALAJ_TOKEN": town.tokens["amal"], "FALAJ_ZONE": "ae-dubai"}

    def falaj(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*FALAJ, "catalog", *words, "--at", home], capture_output=True, text=True, check=False, env=env, timeout=60
        )

    said = falaj("publish", "dataset:fraud/cli", str(folder), "--message", "by hand", "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["ref"] == "dataset:fraud/cli@v1"
    assert falaj("files", "dataset:fraud/cli", "--prefix", "deep/").stdout.startswith("name\tsize bytes")
    out = tmp_path / "part"
    assert falaj("cat", "dataset:fraud/cli", "plain.txt", "--stop", "5", "--out", str(out)).returncode == 0
    assert out.read_bytes() == b"plain"
    assert falaj("checkout", "dataset:fraud/cli", str(tmp_path / "out")).returncode == 0
    assert contents(tmp_path / "out") == contents(folder)
    same = falaj("diff", "dataset:fraud/cli@v1", "dataset:fraud/cli", "--json")
    assert json.loads(same.stdout)["files"] == []
    assert falaj("verify", "dataset:fraud/cli").returncode == 0
    for words in (("fraud/cli",), ("dataset:fraud/cli",), ("--name", "dataset:fraud/cli")):
        assert "dataset:fraud/cli@v1" in falaj("list", *words).stdout, words
    assert falaj("list", "dataset:fraud/cli", "more").returncode == 2
    wrong = falaj("publish", "dataset:fraud/cli", str(tmp_path / "nowhere"))
    assert (wrong.returncode, "Traceback" in wrong.stderr) == (Invalid.exit_code, False)
    for verb in ("publish", "checkout", "cat", "files", "diff", "verify"):
        told = falaj(verb, "--help")
        assert f"falaj catalog {verb}" in told.stdout.partition("examples:")[2]


def test_another_tools_form_comes_in_by_its_word(town: Town, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import contextmanager

    @contextmanager
    def opened(rest: str) -> Iterator[publish_sources.PublishSource]:
        yield publish_sources.PublishSource(folder / rest, "toy:7", tags={"toy": rest})

    monkeypatch.setitem(publish_sources._OPENERS_BY_SCHEME, "toy", opened)
    amal = town.as_("amal")
    done = amal.catalog.publish("dataset:fraud/toy", "toy:deep")
    assert done.num_files == 2
    assert amal.catalog.show(done.ref).tags == {"toy": "deep"}
    assert "toy:…" in refusal(lambda: amal.catalog.publish("dataset:fraud/toy", "tyo:deep")).hint


def test_git_is_asked_and_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, trap = tmp_path / "code", tmp_path / "trap"
    code.mkdir()

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words], cwd=code, check=True)

    git("init", "-q")
    (code / "train.py").write_text("print(1)\n")
    (code / ".gitignore").write_text("ignored\n")
    (code / ".gitattributes").write_text("*.py filter=trap diff=trap\n")
    git("add", ".")
    git("commit", "-qm", "one")
    git("remote", "add", "origin", "https://amal:token@git.example.org/fraud.git")  # pragma: allowlist secret
    for setting in ("filter.trap.clean", "filter.trap.process", "diff.trap.command", "diff.trap.textconv"):
        git("config", setting, f"touch {trap}; cat")
    git("config", "core.fsmonitor", f"touch {trap}; false")
    (code / "ignored").write_text("not code")
    clean = git_facts.read_code(code)
    assert len(clean.commit) == 40
    assert (clean.remote, clean.dirty) == ("https://git.example.org/fraud.git", "")
    (code / "train.py").write_text("print(2)\n")
    changed = git_facts.read_code(code).dirty
    (code / "more.py").write_text("print(3)\n")
    more = git_facts.read_code(code).dirty
    assert len({"", changed, more}) == 3
    assert git_facts.list_tracked_files(code) == [b".gitattributes", b".gitignore", b"more.py", b"train.py"]
    assert not trap.exists()
    assert git_facts.list_tracked_files(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert git_facts.read_code(code).commit == ""


def rows_of(name: str, *rows: str) -> str:
    return "\n".join([name, *rows]) + "\n"


def test_a_table_is_described_and_its_rows_are_compared(
    here: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    name, data = names(request), tmp_path / "table"
    data.mkdir()
    (data / "a.csv").write_text(rows_of("id,email,amount", "1,a@x,10", "2,b@x,20", "3,c@x,30"))
    (data / "b.csv").write_text(rows_of("id,email,amount", "4,d@x,40"))
    first = here.catalog.publish(name, str(data), columns={"email": "personal"})
    table = here.catalog.show(first.ref).table
    assert (table.rows, table.format, table.files) == (4, "csv", 2)
    assert {column.name: column.category for column in table.columns} == {"id": "", "email": "personal", "amount": ""}
    assert str(here.catalog.publish(name, str(data), columns={"email": "personal"}).ref) == f"{name}@v1"

    (data / "a.csv").write_text(rows_of("id,email,amount", "1,a@x,10", "2,b@x,25", "5,e@x,50"))
    (data / "b.csv").rename(data / "c.csv")
    second = here.catalog.publish(name, str(data))  # what was declared once holds for what comes after
    assert {c.name for c in here.catalog.show(second.ref).table.columns if c.category} == {"email"}
    diff = here.catalog.diff(first.ref, second.ref, rows=True, key=("id",))
    assert (diff.rows_before, diff.rows_after) == (4, 4)
    assert (diff.rows_added, diff.rows_removed, diff.rows_changed) == (1, 1, 1)
    assert diff.columns_changed == {"amount": 1}
    assert ("amount", "high", "40", "50") in {(c.column, c.what, c.before, c.after) for c in diff.columns}
    assert "a@x" not in repr(diff)
    assert "e@x" not in repr(diff)
    assert here.catalog.diff(first.ref, second.ref).rows_added is None
    same = here.catalog.diff(first.ref, first.ref, rows=True)
    assert (same.rows_added, same.files) == (0, ())
    for file in data.iterdir():
        file.write_text(rows_of("id,phone", "1,0501234567"))
    third = here.catalog.publish(name, str(data))
    assert "phone" in third.note
    changes = here.catalog.diff(second.ref, third.ref).columns
    assert {("email", "VARCHAR", ""), ("amount", "BIGINT", "")} <= {(c.column, c.before, c.after) for c in changes}


def test_what_is_personal_by_now_is_not_shown_from_before(town: Town, tmp_path: Path) -> None:
    amal, file = town.as_("amal"), tmp_path / "t.csv"
    file.write_text(rows_of("id,email", "1,a@x.org"))
    first = amal.catalog.publish("dataset:fraud/late", str(file))
    assert "email" in first.note
    second = amal.catalog.publish("dataset:fraud/late", str(file), columns={"email": "personal"})
    diff = amal.catalog.diff(first.ref, second.ref, rows=True)
    assert [(c.column, c.what, c.after) for c in diff.columns] == [("email", "category", "personal")]
    assert "a@x.org" not in repr(diff)


def test_what_was_declared_is_remembered_while_it_cannot_be_read(town: Town, tmp_path: Path) -> None:
    """Through a version that cannot be read, one that is no table, one in another zone and one without the column."""
    amal, data = town.as_("amal"), tmp_path / "t.csv"
    good = rows_of("id,email", "1,a@x.ae", "2,b@x.ae", "3,c@x.ae")

    def publish(text: str, **more: Any) -> tuple[Any, str]:
        data.write_text(text)
        done = amal.catalog.publish("dataset:fraud/kept", str(data), **more)
        table = amal.catalog.show(done.ref).table
        assert "x.ae" not in repr(table)
        return table, done.note

    publish(good, columns={"email": "personal"})
    table, note = publish(good + "4,d@x.ae,9\n")
    assert note == "published without a schema: in 't.csv' line 5 has 3 fields, and the first row 2"
    assert (table.rows, [(c.name, c.type, c.category) for c in table.columns]) == (None, [("email", "", "personal")])
    table, note = publish("", zone="eu-west")
    assert (table.rows, [(c.name, c.type) for c in table.columns]) == (0, [("email", "")])
    table, note = publish(good.replace("\n2", "\r\n2"))
    assert (table.rows, [(c.name, c.category, c.low) for c in table.columns]) == (
        3, [("id", "", "1"), ("email", "personal", "")],
    )  # fmt: skip
    table, note = publish(good.replace("email", "mail"))
    assert [(c.name, c.type, c.low) for c in table.columns] == [
        ("id", "BIGINT", ""), ("mail", "VARCHAR", ""), ("email", "", ""),
    ]  # fmt: skip
    assert "the column 'email' was declared personal and is not there" in note
    diff = amal.catalog.diff("dataset:fraud/kept@v4", "dataset:fraud/kept@v5", rows=True)
    assert "x.ae" not in repr(diff)
    publish(good.replace("email", "mail").replace("3,c", "3,e"))
    diff = amal.catalog.diff("dataset:fraud/kept@v5", "dataset:fraud/kept@v6", rows=True)
    assert (diff.rows_added, diff.rows_removed) == (1, 1)
    assert "x.ae" not in repr(diff)
    for columns in ({"email": "gone", "mail": ""}, {"mail": "gone"}):
        assert isinstance(refusal(lambda said=columns: publish(good.replace("email", "mail"), columns=said)), Invalid)
    table, note = publish(good.replace("email", "mail"), columns={"email": "gone", "mail": "personal"})
    assert [(c.name, c.category, c.low) for c in table.columns] == [("id", "", "1"), ("mail", "personal", "")]
    assert note == ""


def test_a_broken_table_is_published_without_a_schema(town: Town, tmp_path: Path) -> None:
    amal, data = town.as_("amal"), tmp_path / "table"
    data.mkdir()
    (data / "a.parquet").write_bytes(b"PAR1 and then nothing")
    done = amal.catalog.publish("dataset:fraud/broken", str(data))
    assert "without a schema" in done.note
    assert amal.catalog.show(done.ref).table is None
    error = refusal(lambda: amal.catalog.publish("dataset:fraud/broken", str(data), columns={"id": "personal"}))
    assert isinstance(error, Invalid)
    (data / "a.parquet").rename(data / "a.bin")
    error = refusal(lambda: amal.catalog.publish("dataset:fraud/broken", str(data), columns={"id": "personal"}))
    assert "no table" in error.message


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model that only holds numbers, with its card."""
    root = tmp_path / "model"
    root.mkdir()
    head = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (root / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(8))
    (root / "card.json").write_text(json.dumps({"metrics": {"auc": 0.9}, "params": {"depth": 6}, "command": "old"}))
    return root


def test_a_model_comes_with_all_that_made_it(here: Any, model: Path, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    subprocess.run(["git", "init", "-q", str(code)], check=True)
    (code / ".gitignore").write_text("secret\n")
    (code / "secret").write_text("not code")
    (code / "train.py").write_text("print(1)\n")
    data = here.catalog.publish("dataset:fraud/for-model", str(model))
    done = here.catalog.publish(
        "model:fraud/scorer", str(model), inputs={"data": data.ref}, metrics={"auc": 0.93, "f1": 1},
        code=str(code), command="python train.py --lr 0.1",
    )  # fmt: skip
    shown = here.catalog.show(done.ref)
    card = shown.card
    assert (card.format, card.code_bearing) == ("safetensors", False)
    assert (card.metrics, card.params) == ({"auc": 0.93, "f1": 1.0}, {"depth": "6"})
    assert card.command == ("python", "train.py", "--lr", "0.1")
    assert {"python", "platform", "msgspec"} <= set(card.environment)
    assert str(card.code.ref) == "code:fraud/scorer@v1"
    assert shown.inputs == {"data": data.ref, "code": card.code.ref}
    assert [row.path for row in here.catalog.files(card.code.ref)] == [".gitignore", "train.py"]
    assert shown.signed
    out = here.catalog.checkout(done.ref, str(tmp_path / "out"))
    assert out.signed
    assert here.catalog.verify(done.ref).signed


def test_a_model_that_is_not_what_was_signed_is_not_handed_out(
    town: Town, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mona = town.as_("mona")
    done = mona.catalog.publish("model:fraud/forged", str(model))
    true = client_commands.open_version

    def forged(platform: Any, name: Any) -> Any:
        """What a server that lies would say: the signature of another model."""
        opened, snapshot = true(platform, name)
        (model / "card.json").write_text("{}")
        other, _ = true(platform, platform.catalog.publish("model:fraud/other", str(model)).ref)
        return replace(opened, signature=other.signature, key=other.key), snapshot

    monkeypatch.setattr(client_commands, "open_version", forged)
    error = refusal(lambda: mona.catalog.checkout(done.ref, str(tmp_path / "out")))
    assert isinstance(error, CorruptData)
    assert not (tmp_path / "out").exists()
    assert not mona.catalog.verify(done.ref).ok


@pytest.mark.parametrize("card", ["[]", '{"metrics": {"auc": "high"}}', "{" * 5000, '{"command": "unclosed \\""}'])
def test_a_card_that_says_nonsense(town: Town, model: Path, card: str) -> None:
    (model / "card.json").write_text(card)
    error = refusal(lambda: town.as_("mona").catalog.publish("model:fraud/nonsense", str(model)))
    assert isinstance(error, Invalid)
