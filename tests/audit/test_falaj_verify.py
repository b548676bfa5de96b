"""The offline verifier: agrees with the writer, with RFC 6962 and with nobody who changed anything (A1, A4, A5)."""

import ast
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from falaj.audit import evidence_pack, signed_note
from falaj.audit.records import RegisteredWitness as Registered
from falaj.audit.witness import CheckpointWitness
from tests.audit import oracle
from tests.audit.house import VERIFIER, House, embedded, verify
from tests.audit.packs import Files, check, check_files, resigned, small_log, verifier, with_lines, with_notes, zipped


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    return small_log(embedded(tmp_path_factory.mktemp("house")))


@pytest.fixture(scope="module")
def files(house: House) -> Files:
    facts = house.ledger.tail(tenant="bank", zone="home", limit=5)
    return dict(house.pack(proven=facts[2:4]))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Three events under two checkpoints, so that every byte can be tried."""
    house = embedded(tmp_path_factory.mktemp("tiny"))
    for count in (1, 2):
        house.act(count)
        house.sealer.seal(house.ctx(), "bank", "home")
    return dict(house.pack())


@pytest.fixture(scope="module")
def signer(house: House) -> Ed25519PrivateKey:
    return house.signers.newest("bank", "home")[1]


def unpacked(files: Files, folder: Path) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def test_a_good_pack_is_good_in_every_form(house: House, files: Files, tmp_path: Path) -> None:
    (tmp_path / "pack.zip").write_bytes(zipped(files))
    unpacked(files, tmp_path / "folder")
    for path in (tmp_path / "pack.zip", tmp_path / "folder"):
        code, report = verify(path)
        assert (code, report["ok"], report["events"], report["checkpoints"]) == (0, True, 12, 4)
    key = signed_note.encode_base64(signed_note.get_public_bytes(house.signers.earlier("bank", "home", 1)))
    assert verify(tmp_path / "pack.zip", "--key", key)[0] == 0
    stranger = signed_note.encode_base64(signed_note.get_public_bytes(Ed25519PrivateKey.generate()))
    assert verify(tmp_path / "pack.zip", "--key", stranger)[0] == 1


def test_every_part_of_a_log_can_be_a_pack(house: House, tmp_path: Path) -> None:
    for first in range(4):
        for last in range(first + 1, 5):
            report = check_files(tmp_path, dict(house.pack(first, last)))
            assert report["ok"], report
            assert report["checkpoints"] == last - first


def test_the_same_range_gives_the_same_bytes(house: House) -> None:
    assert zipped(dict(house.pack())) == zipped(dict(house.pack()))


def test_other_tools_can_open_the_zip(files: Files, tmp_path: Path) -> None:
    (tmp_path / "pack.zip").write_bytes(zipped(files))
    with zipfile.ZipFile(tmp_path / "pack.zip") as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == files


def test_it_stands_alone(files: Files, tmp_path: Path) -> None:
    """No import but the standard library; runs from a copy in an interpreter without site-packages."""
    tree = ast.parse(VERIFIER.read_text())
    names = {a.name.partition(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {(n.module or "").partition(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert names - sys.stdlib_module_names == set()
    assert names.isdisjoint({"socket", "urllib", "http", "ssl", "subprocess", "ctypes", "pickle"})
    copy = str(shutil.copy(VERIFIER, tmp_path / "v.py"))
    (tmp_path / "pack.zip").write_bytes(zipped(files))
    probe = (
        f"import runpy,sys; sys.argv=['v','{tmp_path}/pack.zip']\ntry: runpy.run_path({copy!r}, run_name='__main__')\n"
    )
    probe += (
        "except SystemExit as e: assert e.code == 0\nassert not [m for m in sys.modules if m.split('.')[0] == 'falaj']"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", probe], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("OK: 12 events under 4 checkpoints")


def test_the_pack_carries_the_verifier(files: Files) -> None:
    assert files["falaj_verify.py"] == VERIFIER.read_bytes()


def test_a_terminal_sees_how_far_it_is(files: Files, tmp_path: Path) -> None:
    (tmp_path / "pack.zip").write_bytes(zipped(files))
    ours, theirs = os.openpty()
    command = [sys.executable, "-I", str(VERIFIER), str(tmp_path / "pack.zip")]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=theirs, check=True)
    os.close(theirs)
    assert b"[##############################] 1/1 segments" in os.read(ours, 4096)
    os.close(ours)


def test_what_is_no_pack_gives_exit_code_two(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello")
    assert verify(tmp_path / "x")[0] == 2
    assert verify(tmp_path / "missing")[0] == 2
    (tmp_path / "empty").mkdir()
    assert verify(tmp_path / "empty")[0] == 1


def flips(data: bytes, every_bit: bool) -> list[tuple[int, int]]:
    return [(i, bit) for i in range(len(data)) for bit in (range(8) if every_bit else [random.Random(i).randrange(8)])]


def assert_every_flip_is_found(files: Files, folder: Path, every_bit: bool) -> None:
    """The zip as a whole, headers, directory and all; the two large texts inside are only sampled."""
    data = bytearray(zipped(files))
    skipped = set()
    for name in ("falaj_verify.py", "README.txt"):
        start = bytes(data).index(files[name])
        skipped |= set(range(start, start + len(files[name]))) - {start, start + len(files[name]) // 2}
    path, missed = folder / "pack.zip", []
    for i, bit in flips(bytes(data), every_bit):
        if i in skipped:
            continue
        data[i] ^= 1 << bit
        path.write_bytes(data)
        if check(path)["ok"]:
            missed.append((i, bit))
        data[i] ^= 1 << bit
    assert missed == []


@pytest.mark.slow
def test_a_flipped_bit_in_any_byte_of_a_zip_is_found(tiny: Files, tmp_path: Path) -> None:
    assert_every_flip_is_found(tiny, tmp_path, every_bit=False)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_flipped_bit_of_a_zip_is_found(files: Files, tmp_path: Path) -> None:
    assert_every_flip_is_found(files, tmp_path, every_bit=True)


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 7])
def test_a_flipped_bit_in_any_byte_of_a_folder_is_found(tiny: Files, tmp_path: Path, step: int) -> None:
    files = tiny
    unpacked(files, tmp_path / "p")
    missed = []
    for name, data in files.items():
        path = tmp_path / "p" / name
        places = flips(data, False) if len(data) < 10_000 else [(0, 0), (len(data) // 2, 3), (len(data) - 1, 7)]
        for i, bit in places[::step]:
            path.write_bytes(data[:i] + bytes([data[i] ^ 1 << bit]) + data[i + 1 :])
            if check(tmp_path / "p")["ok"]:
                missed.append((name, i, bit))
        path.write_bytes(data)
    assert missed == []
    assert check(tmp_path / "p")["ok"]


def test_a_cut_anywhere_is_found(files: Files, tmp_path: Path) -> None:
    data, path = zipped(files), tmp_path / "pack.zip"
    for cut in {*range(0, len(data), 997), *range(len(data) - 1200, len(data))}:
        path.write_bytes(data[:cut])
        assert not check(path)["ok"], cut
    for extra in (b"x", b"\0", data[-22:]):
        path.write_bytes(data + extra)
        assert not check(path)["ok"]


def test_a_missing_or_added_file_is_found(files: Files, tmp_path: Path, signer: Ed25519PrivateKey) -> None:
    for name in files:
        rest = {n: d for n, d in files.items() if n != name}
        assert not check_files(tmp_path, rest)["ok"], name
        if name not in ("manifest.json", "manifest.sig", "README.txt", "falaj_verify.py"):
            assert not check_files(tmp_path, resigned(rest, signer))["ok"], name
    for name in ("events/000000099999.jsonl", "extra.txt"):
        assert not check_files(tmp_path, {**files, name: b""})["ok"]
        assert not check_files(tmp_path, resigned({**files, name: b""}, signer))["ok"]


def test_it_says_which_event_and_which_bit(files: Files, tmp_path: Path) -> None:
    name = "events/000000000000.jsonl"
    lines = files[name].split(b"\n")
    for line in (0, 4, 11):
        start = sum(len(one) + 1 for one in lines[:line])
        for offset, bit in ((0, 0), (40, 6), (len(lines[line]) - 1, 1)):
            data = bytearray(files[name])
            data[start + offset] ^= 1 << bit
            first = check_files(tmp_path, {**files, name: bytes(data)})["first"]
            assert (first["file"], first["line"], first["event"]) == (name, line + 1, line)
            assert first["bytes"][0] == start
            assert f"bit {bit} of byte {start + offset}" in first["what"]


def test_a_broken_line_end_is_placed(files: Files, tmp_path: Path) -> None:
    name = "events/000000000000.jsonl"
    end = files[name].index(b"\n")
    data = bytearray(files[name])
    data[end] ^= 4
    first = check_files(tmp_path, {**files, name: bytes(data)})["first"]
    assert first["event"] == 0
    assert f"bit 2 of byte {end}" in first["what"]


def test_a_torn_last_line_is_placed(files: Files, tmp_path: Path) -> None:
    name = "events/000000000000.jsonl"
    first = check_files(tmp_path, {**files, name: files[name][:-20]})["first"]
    assert (first["event"], first["line"]) == (11, 12)
    assert "1 too early" in first["what"]


def drop(lines: list[bytes]) -> None:
    del lines[4]


def swap(lines: list[bytes]) -> None:
    lines[4], lines[5] = lines[5], lines[4]


def insert(lines: list[bytes]) -> None:
    lines.insert(4, lines[4].replace(b"demo.make", b"demo.fake"))


def repeat(lines: list[bytes]) -> None:
    lines.insert(4, lines[3])


def rewrite(lines: list[bytes]) -> None:
    lines[4] = lines[4].replace(b'"actor":"alice"', b'"actor":"mallory"')


def truncate(lines: list[bytes]) -> None:
    del lines[-3:]


@pytest.mark.parametrize("change", [drop, swap, insert, repeat, rewrite, truncate])
@pytest.mark.parametrize("fix_leaves", [False, True])
@pytest.mark.parametrize("resign", [False, True])
def test_changed_events_are_found(
    files: Files, tmp_path: Path, signer: Ed25519PrivateKey, change: Any, fix_leaves: bool, resign: bool
) -> None:
    """Also when the forger fixes the recorded hashes and can sign a manifest: then the signed roots tell."""
    changed = with_lines(files, change, fix_leaves=fix_leaves)
    report = check_files(tmp_path, resigned(changed, signer) if resign else changed)
    assert not report["ok"]
    first = report["first"]
    if not fix_leaves:
        assert first["event"] == (9 if change is truncate else 4)
    elif "event" in first:
        assert first["event"] <= (9 if change is truncate else 4)


def change_notes(notes: list[str], what: str, signer: Ed25519PrivateKey) -> None:
    if what == "drop":
        del notes[1]
    elif what == "swap":
        notes[0], notes[1] = notes[1], notes[0]
    elif what == "rollback":
        del notes[-1]
    elif what == "repeat":
        notes.insert(1, notes[1])
    elif what == "old signature":
        notes[1] = signed_note.join_note(signed_note.split_note(notes[1])[0], *signed_note.split_note(notes[0])[1])
    else:
        fields = {
            "root": (2, signed_note.encode_base64(b"\1" * 32)),
            "size": (1, "11"),
            "time": (3, "time 99"),
            "origin": (0, "falaj/a/b/c"),
        }
        text, _ = signed_note.split_note(notes[-1])
        rows = text.split("\n")
        rows[fields[what][0]] = fields[what][1]
        text = "\n".join(rows)
        notes[-1] = signed_note.join_note(text, signed_note.sign_text(text, rows[0], signer))


CHANGES = ["drop", "swap", "rollback", "repeat", "old signature", "root", "size", "time", "origin"]


@pytest.mark.parametrize("what", CHANGES)
def test_changed_checkpoints_are_found(files: Files, tmp_path: Path, signer: Ed25519PrivateKey, what: str) -> None:
    """Signed anew with the log's own key where that can be: the chain, the roots and the times tell."""
    changed = with_notes(files, lambda notes: change_notes(notes, what, signer))
    assert not check_files(tmp_path, changed)["ok"]
    report = check_files(tmp_path, resigned(changed, signer))
    assert not report["ok"]
    assert "checkpoint" in report["first"] or report["first"]["file"] == "checkpoints.jsonl"


def test_a_key_that_nobody_introduced_is_found(files: Files, tmp_path: Path) -> None:
    """A stranger signs everything anew from the change of key on: the old key's signature cannot be made up."""
    stranger = Ed25519PrivateKey.generate()
    public = signed_note.encode_base64(signed_note.get_public_bytes(stranger))
    keys = json.loads(files["keys.json"])
    forged: list[str] = []

    def forge(notes: list[str]) -> None:
        for i in (2, 3):
            text, _ = signed_note.split_note(notes[i])
            text = re.sub(r"key .*\n", f"key {public}\n", text)
            if forged:
                text = re.sub(r"previous .*\n", f"previous {signed_note.digest_note(forged[-1])}\n", text)
            notes[i] = signed_note.join_note(text, signed_note.sign_text(text, text.split("\n")[0], stranger))
            forged.append(notes[i])

    changed = with_notes(files, forge)
    keys["keys"][1] |= {"public": public, "note": forged[0]}
    changed["keys.json"] = json.dumps(keys).encode()
    report = check_files(tmp_path, resigned(changed, stranger))
    assert not report["ok"]
    assert "old key" in report["first"]["what"]


def test_proofs_in_a_pack_are_checked(files: Files, tmp_path: Path, signer: Ed25519PrivateKey) -> None:
    good = json.loads(files["proofs.json"])
    assert good["consistency"]
    assert len(good["inclusion"]) == 2
    for kind in ("consistency", "inclusion"):
        for change in ("hash", "short", "long", "size"):
            proofs = json.loads(files["proofs.json"])
            one = proofs[kind][0]
            if change == "hash":
                one["hashes"][0] = "00" * 32
            elif change == "size":
                one["new" if kind == "consistency" else "size"] = 0
            else:
                one["hashes"] = one["hashes"][:-1] if change == "short" else [*one["hashes"], "00" * 32]
            changed = resigned({**files, "proofs.json": json.dumps(proofs).encode()}, signer)
            assert not check_files(tmp_path, changed)["ok"], (kind, change)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5000), min_size=1, max_size=400), min_size=1, max_size=6))
def test_an_id_twice_is_found_in_whatever_order(segments: list[list[int]]) -> None:
    """A writer that records one event twice and signs it: everything fits but the id. Against a plain set."""
    checked = verifier.PackCheck(VERIFIER, verifier.parse_arguments([str(VERIFIER)]))
    seen: set[int] = set()
    for n, segment in enumerate(segments):
        names = sorted(f"{one:08d}".encode() + b'"' for one in segment)
        place = (str(VERIFIER), 0, 0, -1)
        task = verifier.SegmentTask(n, n + 1, "events/0", (place, place), (), [], ())
        found = verifier.SegmentResult((True, True), len(names), ids=b"\n".join(names))
        found.twice = next((a for a, b in itertools.pairwise(names) if a == b), b"")
        before = len(checked.problems)
        checked.note_ids(task, found)
        assert (len(checked.problems) > before) == (len(set(segment)) < len(segment) or not seen.isdisjoint(segment))
        seen |= set(segment)


@pytest.mark.parametrize("bound", [0, 1, 255, 256, 257, 300, 2047, 2048, 2049, 4999, 5000, 9999])
def test_the_edges_of_segments_are_cut_right(bound: int) -> None:
    names = [f"{n:08d}".encode() for n in range(5000)]
    ids, at = b"\n".join(names), f"{bound:08d}".encode()
    assert verifier.list_ids_from(ids, at) == {name for name in names if name >= at}
    assert verifier.list_ids_up_to(ids, at) == {name for name in names if name <= at}


def test_an_id_twice_is_placed(tmp_path: Path) -> None:
    house = embedded(tmp_path)
    house.act(4)
    rows = house.ledger.store.events("", tenant="bank", zone="home")
    again = rows[1]._replace(pos="")
    txn = Forgetful(house.ledger.store).begin(again)
    txn.commit()
    house.sealer.seal(house.ctx(), "bank", "home")
    report = check_files(tmp_path, dict(house.pack()))
    assert not report["ok"]
    assert (report["first"]["event"], "second time" in report["first"]["what"]) == (4, True)


class Forgetful:
    """A store that can be made to write an event it has already."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def begin(self, row: Any) -> Any:
        txn = self._store.begin(write=True)
        txn.append([row])
        return txn


def test_rollback_is_found_with_a_known_checkpoint(house: House, tmp_path: Path) -> None:
    """An older pack is a good pack; only who remembers the newer checkpoint can tell."""
    newest = json.loads(dict(house.pack())["checkpoints.jsonl"].splitlines()[-1])
    (tmp_path / "known.txt").write_text(newest)
    older = dict(house.pack(0, 2))
    assert check_files(tmp_path, older)["ok"]
    report = check_files(tmp_path, older, "--known", str(tmp_path / "known.txt"))
    assert not report["ok"]
    assert "rolled back" in report["first"]["what"]
    assert check_files(tmp_path, dict(house.pack()), "--known", str(tmp_path / "known.txt"))["ok"]


def test_a_split_view_is_found_with_one_honest_witness(tmp_path: Path) -> None:
    """A5: one operator, one key, two histories of the same size, shown to two people."""
    shown = {}
    for view in ("left", "right"):
        (tmp_path / view).mkdir()
        house = embedded(tmp_path / view)
        house.act(5, story=view)
        house.sealer.seal(house.ctx(), "bank", "home")
        shown[view] = house
    witness = CheckpointWitness("regulator", tmp_path / "witness")
    key = signed_note.encode_base64(signed_note.get_public_bytes(house.signers.newest("bank", "home")[1]))
    left, right = (json.loads(dict(shown[v].pack())["checkpoints.jsonl"].splitlines()[0]) for v in ("left", "right"))
    cosigned = witness.cosign(left, [], key, 1_760_000_100.0)
    with pytest.raises(Exception, match="split view"):
        witness.cosign(right, [], key, 1_760_000_101.0)
    (tmp_path / "seen.txt").write_text(cosigned)
    assert check_files(tmp_path, dict(shown["left"].pack()), "--known", str(tmp_path / "seen.txt"))["ok"]
    report = check_files(tmp_path, dict(shown["right"].pack()), "--known", str(tmp_path / "seen.txt"))
    assert "split view" in report["first"]["what"]
    # and a pack without the witness's line does not pass where one is demanded
    assert not check_files(tmp_path, dict(shown["right"].pack()), "--witness", f"regulator:{witness.public}")["ok"]


def test_cosignatures_are_checked(house: House, files: Files, tmp_path: Path, signer: Ed25519PrivateKey) -> None:
    witness = CheckpointWitness("regulator", tmp_path / "w")
    key = signed_note.encode_base64(signed_note.get_public_bytes(house.signers.earlier("bank", "home", 1)))

    def add(notes: list[str]) -> None:
        notes[1] = witness.cosign(notes[1], [], key, 1_760_000_100.0)

    known = json.dumps({"witnesses": [{"name": "regulator", "key": witness.public}]}).encode()
    good = resigned(with_notes({**files, "witnesses.json": known}, add), signer)
    report = check_files(tmp_path, good, "--witness", f"regulator:{witness.public}")
    assert report["ok"], report
    assert report["witnessed"] == {"regulator": 7}
    assert not check_files(tmp_path, resigned(with_notes(files, add), signer))["ok"], "a signature by a stranger"
    other = json.dumps({"witnesses": [{"name": "regulator", "key": key}]}).encode()
    assert not check_files(tmp_path, resigned(with_notes({**files, "witnesses.json": other}, add), signer))["ok"]
    assert Registered("regulator", witness.public, "home").name == witness.name


def test_a_single_proof_can_be_checked(house: House, tmp_path: Path) -> None:
    from falaj.audit.proofs import PROOF_FORMAT, prove_event

    fact = house.ledger.tail(tenant="bank", zone="home", limit=7)[6]
    log = house.log(house.ctx())
    proof = prove_event(log, fact)
    body = {name: getattr(proof, name) for name in ("format", "event", "index", "size", "leaf", "hashes", "note")}
    path = tmp_path / "proof.json"
    path.write_text(json.dumps(body))
    key = signed_note.encode_base64(house.signers.newest("bank", "home")[1].public_key().public_bytes_raw())
    assert verify(path)[0] == 2, "no trusted key, so nothing shows which log it is"
    code, report = verify(path, "--key", key)
    assert (code, report["kind"]) == (0, "proof")
    (tmp_path / "seen.txt").write_text(proof.note)
    assert verify(path, "--known", str(tmp_path / "seen.txt"))[0] == 0, "the checkpoint was seen before"
    assert body["format"] == PROOF_FORMAT
    forged = {**body, "event": body["event"].replace("alice", "malin")}
    for change in (forged, {**body, "index": 5}, {**body, "hashes": []}, {**body, "size": 0}, {**body, "leaf": "00"}):
        path.write_text(json.dumps(change))
        assert verify(path)[0] == 1
    path.write_text(json.dumps({"format": PROOF_FORMAT}))
    assert verify(path)[0] == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 130), st.data())
def test_its_tree_agrees_with_the_definition(size: int, data: st.DataObject) -> None:
    """A4: subtree building, inclusion and consistency against the recursive definition, from any start."""
    leaves = [hashlib.sha256(str(i).encode()).digest() for i in range(size)]
    start = data.draw(st.integers(0, size))
    stack: list[tuple[int, bytes]] = []
    for height, value in verifier.cover_range(verifier.build_levels(0, leaves[:start]), 0, start):
        verifier.push_subtree(stack, height, value)
    levels = verifier.build_levels(start, leaves[start:])
    for stop in range(start, size + 1):
        grown = list(stack)
        for height, value in verifier.cover_range(levels, start, stop):
            verifier.push_subtree(grown, height, value)
        assert verifier.compute_root(grown) == oracle.root(leaves[:stop])
    index, old = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, size))
    path, proof = oracle.path(index, leaves), oracle.consistency(old, leaves)
    root = oracle.root(leaves)
    assert verifier.root_from_inclusion(leaves[index], index, size, path) == root
    assert verifier.roots_from_growth(old, size, oracle.root(leaves[:old]), proof) == (oracle.root(leaves[:old]), root)
    for wrong in (path[:-1], [*path, root]):
        assert verifier.root_from_inclusion(leaves[index], index, size, wrong) != root or wrong == path
    for bad in (0, -1, 2**63):
        assert verifier.root_from_inclusion(leaves[0], 0, bad, path) is None
        assert verifier.roots_from_growth(1, bad, root, proof) is None


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_random_damage_is_found(
    files: Files, signer: Ed25519PrivateKey, tmp_path: Path, data: st.DataObject
) -> None:
    """Any change of any bytes of any file: as it is, and of events with the manifest made to fit."""
    name = data.draw(st.sampled_from(sorted(set(files) - {"falaj_verify.py", "README.txt"})))
    old = files[name]
    start = data.draw(st.integers(0, len(old)))
    stop = data.draw(st.integers(start, min(len(old), start + 400)))
    new = old[:start] + data.draw(st.binary(max_size=40)) + old[stop:]
    if new == old:
        return
    assert not check_files(tmp_path, {**files, name: new})["ok"]
    if name.startswith("events/"):
        assert not check_files(tmp_path, resigned({**files, name: new}, signer))["ok"]


def test_a_large_zip_is_read(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond four gigabytes the end of a zip has another form; both sides write and read it."""
    end = evidence_pack._build_zip_end(70_000, 5_000_000, 6_000_000_000)
    assert end == verifier.build_zip_end(70_000, 5_000_000, 6_000_000_000)
    assert len(end) == 22 + 76


def test_a_log_over_several_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 16 events instead of 16,384, a pack that begins inside one, several processes."""
    monkeypatch.setattr(evidence_pack, "SEGMENT_EVENTS", 16)
    house = embedded(tmp_path)
    for count in (5, 30, 1, 60, 4):
        house.act(count)
        house.sealer.seal(house.ctx(), "bank", "home")
    source = VERIFIER.read_text().replace("SEGMENT_EVENTS = 16384", "SEGMENT_EVENTS = 16")
    (tmp_path / "v.py").write_text(source)
    for first in range(5):
        (tmp_path / "pack.zip").write_bytes(zipped(dict(house.pack(first))))
        command = [sys.executable, "-I", tmp_path / "v.py", tmp_path / "pack.zip", "--json", "--jobs", "2"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["to"] == 100


def test_every_sentence_of_the_report_has_an_arabic_one() -> None:
    """The texts of problems and notes, read from the source; a sentence with values stands with {} in their place."""
    tree = ast.parse(VERIFIER.read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [
        call.args[0] for call in calls if ast.unparse(call.func) in {"DamageError", "self.add", "CannotCheckError"}
    ]
    named += [
        pair for node in ast.walk(tree) if isinstance(node, ast.Dict) for key, pair in _entries(node) if key == "what"
    ]
    spoken = {_pattern(node) for node in named} - {""}
    assert len(spoken) > 40
    assert sorted(spoken - set(verifier.ARABIC)) == []
    sample = verifier.describe_problem({"what": "3 events too many", "file": "events/0.jsonl", "bytes": [1, 2]}, "ar")
    assert sample == "الملف events/0.jsonl، البايتات 1-2: أحداث زائدة عددها 3"


def _entries(node: ast.Dict) -> list[tuple[object, ast.expr]]:
    return [
        (key.value, pair) for key, pair in zip(node.keys, node.values, strict=True) if isinstance(key, ast.Constant)
    ]


def _pattern(node: ast.expr) -> str:
    """A text with {} for each value; nothing for what is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return ""
