"""Folders of the hub's form: plain ones, caches with blobs, and what hostile ones try."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from falaj.core.errors import FalajError, Invalid, NotFound
from falaj.exchange.hub import open_hub_source, read_hub_folder
from tests.town import LABEL, Town, refusal

COMMIT = "5f3c" * 10
CARD = """---
license: apache-2.0
datasets:
- bank/tx
- glue
language: [ar, en]
tags: &t [fraud]
model-index: *t
---
# Scorer
"""
CONFIG = {"architectures": ["BertForSequenceClassification"], "model_type": "bert", "hidden_size": 8}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FALAJ_CACHE", str(tmp_path / "cache"))


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return len(header).to_bytes(8, "little") + header + b"\0" * 8


def model(folder: Path, **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    (folder / "model.safetensors").write_bytes(safetensors())
    (folder / "README.md").write_text(CARD)
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer/vocab.txt").write_text("a\nb\n")
    return folder


def cached(tmp_path: Path) -> Path:
    """The same as the hub's client leaves it in its cache."""
    repository = tmp_path / "models--bank--scorer"
    plain = model(tmp_path / "plain")
    snapshot = repository / "snapshots" / COMMIT
    (repository / "refs").mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "refs/main").write_text(COMMIT)
    for number, path in enumerate(sorted(path for path in plain.rglob("*") if path.is_file())):
        blob = repository / f"blobs/{number:040x}"
        blob.write_bytes(path.read_bytes())
        link = snapshot / path.relative_to(plain)
        link.parent.mkdir(parents=True, exist_ok=True)
        depth = len(link.relative_to(repository).parts) - 1
        link.symlink_to(Path(*[".."] * depth, "blobs", blob.name))
    return repository


def files_of(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != ".falaj"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_a_plain_folder_is_taken_where_it_lies(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    with open_hub_source(str(folder)) as source:
        assert source.path == folder
        assert dict(source.tags) == {
            "hub.architecture": "BertForSequenceClassification",
            "hub.model_type": "bert",
            "hub.license": "apache-2.0",
            "hub.datasets": "bank/tx, glue",
            "hub.language": "ar, en",
        }


def test_a_cache_is_resolved_into_plain_files(tmp_path: Path) -> None:
    repository = cached(tmp_path)
    for name in (repository, f"{repository}@main", f"{repository}@{COMMIT}", repository / "snapshots" / COMMIT):
        with open_hub_source(str(name)) as source:
            assert files_of(source.path) == files_of(tmp_path / "plain")
            assert not any(path.is_symlink() for path in source.path.rglob("*"))
            assert (source.tags["hub.commit"], source.tags["hub.repository"]) == (COMMIT, "bank/scorer")
        assert not source.path.exists()
    assert COMMIT in refusal(lambda: open_hub_source(f"{repository}@{'0' * 40}").__enter__()).hint
    assert isinstance(refusal(lambda: open_hub_source(f"{repository}@../../x").__enter__()), NotFound)


def test_what_downloading_leaves_behind_is_left_out(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    (folder / ".cache/huggingface").mkdir(parents=True)
    (folder / ".cache/huggingface/x.lock").touch()
    (folder / ".git").mkdir()
    (folder / ".git/config").touch()
    with open_hub_source(str(folder)) as source:
        assert set(files_of(source.path)) == {"config.json", "model.safetensors", "README.md", "tokenizer/vocab.txt"}


def test_a_link_out_of_a_cache_is_refused(tmp_path: Path) -> None:
    repository = cached(tmp_path)
    (tmp_path / "secret").write_text("not theirs")
    snapshot = repository / "snapshots" / COMMIT
    for target in ("/etc/passwd", str(tmp_path / "secret"), "../../refs/main", "../..", "nowhere", "../../blobs"):
        (snapshot / "evil").unlink(missing_ok=True)
        (snapshot / "evil").symlink_to(target)
        with pytest.raises(Invalid, match="leads out"):
            open_hub_source(str(repository)).__enter__()
    (snapshot / "evil").unlink()
    blob = repository / "blobs/evil"
    blob.symlink_to(tmp_path / "secret")
    (snapshot / "evil").symlink_to("../../blobs/evil")
    with pytest.raises(Invalid, match="leads out"):
        open_hub_source(str(repository)).__enter__()


def test_a_folder_that_is_none_of_the_hubs_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    (folder / "README.md").write_text("# Some notes\n")
    told = refusal(lambda: open_hub_source(str(folder)).__enter__())
    assert (isinstance(told, Invalid), "leave hub: out" in told.hint) == (True, True), told
    (folder / "README.md").write_text(CARD)  # a dataset has a card and files of any kind
    with open_hub_source(str(folder)) as source:
        assert source.tags["hub.license"] == "apache-2.0"


def test_a_link_in_a_plain_folder_is_refused(tmp_path: Path) -> None:
    folder = model(tmp_path / "m")
    (folder / "more").symlink_to("/etc/passwd")
    with pytest.raises(Invalid, match="leads out"):
        open_hub_source(str(folder)).__enter__()


def test_remote_code_is_named_and_never_run(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", auto_map={"AutoModel": "evil.Model"})
    (folder / "evil.py").write_text("open('/tmp/falaj-hub-ran', 'w')\n")
    assert "never run" in read_hub_folder(folder, tmp_path)[1]["hub.remote_code"]
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer_config.json").write_text('{"auto_map": {}}')
    assert "never run" in read_hub_folder(folder, tmp_path)[1]["hub.remote_code"]
    assert not Path("/tmp/falaj-hub-ran").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", "[" * 100_000),
        ("config.json", "[]"),
        ("config.json", "{"),
        ("README.md", "---\na: !!python/object/apply:os.system [id]\n---\n"),
        ("README.md", "---\n" + "[" * 50_000 + "\n---\n"),
        ("README.md", "---\n- a list\n---\n"),
    ],
)
def test_hostile_descriptions_are_refused(tmp_path: Path, name: str, text: str) -> None:
    folder = model(tmp_path / "m")
    (folder / name).write_text(text)
    with pytest.raises(FalajError, match=name):
        read_hub_folder(folder, tmp_path)


@pytest.mark.parametrize("text", ["# No card\n", "---\nno end\n", "---\nlicense: {a: b}\n---\n", "", "---\n\n---\n"])
def test_a_card_may_say_nothing(tmp_path: Path, text: str) -> None:
    folder = model(tmp_path / "m")
    (folder / "README.md").write_text(text)
    assert "hub.license" not in read_hub_folder(folder, tmp_path)[1]


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    town = Town(tmp_path / "town")
    yield town
    town.close()


def test_a_cache_is_published_by_its_word(town: Town, tmp_path: Path) -> None:
    mona = town.as_("mona")
    done = mona.catalog.publish("model:fraud/bert", f"hub:{cached(tmp_path)}", label=LABEL)
    version = mona.catalog.show(done.ref)
    assert (version.card.format, version.card.code_bearing) == ("safetensors", False)
    assert version.tags["hub.license"] == "apache-2.0"
    mona.catalog.checkout(done.ref, str(tmp_path / "out"))
    assert files_of(tmp_path / "out") == files_of(tmp_path / "plain")
    code = model(tmp_path / "code", auto_map={"AutoModel": "evil.Model"})
    done = mona.catalog.publish("model:fraud/code", f"hub:{code}", label=LABEL)
    assert mona.catalog.show(done.ref).card.code_bearing
