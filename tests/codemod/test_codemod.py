"""Renames over a small tree: every kind of place follows, and what cannot be decided or would collide is refused."""

import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.codemod.apply import Plan, Planner, expand_scope_names, write_edits
from tests.codemod.index import Index, build_index
from tests.codemod.listing import list_objections
from tests.codemod.public_words import PublicWords

FILES = {
    "pyproject.toml": '[tool.mypy]\nstrict = true\n[project.entry-points."falaj.x"]\na = "falaj.store.bells:Bells"\n',
    "docs/store.md": "`hang` of falaj.store.bells.Bells, in `src/falaj/store/bells.py`.\n",
    "src/falaj/__init__.py": "",
    "src/falaj/store/__init__.py": '"""Store."""\n\nfrom falaj.store.bells import Bells\n\n__all__ = ["Bells"]\n',
    "src/falaj/store/ports.py": """
        from typing import Protocol

        class Rings(Protocol):
            def hang(self, callback: object, kinds: str = "") -> bool: ...
        """,
    "src/falaj/store/bells.py": '''
        from dataclasses import dataclass
        from typing import Any

        @dataclass
        class Seen:
            told: int
            known: str = "né"

        class Bells:
            def __init__(self) -> None:
                self._hung = [""]

            def hang(self, callback: object, kinds: str = "") -> bool:
                """Hang `kinds`."""
                for one in self._hung:
                    print(one)
                for one in "ab":
                    print(f"é {one!r} {kinds}")
                return bool(self._hung)

            def ring(self) -> list[int]:
                made = [one.told for one in (Seen(told=1),)]
                return made

        def verb() -> Any: ...
        ''',
    "src/falaj/store/service.py": """
        from typing import Any
        from falaj.store.bells import verb

        told = 1

        class Store:
            @verb()
            def show(self, ctx: Any, name: str) -> None:
                ctx.emit("store.show", told)
        """,
    "src/falaj/store/ledger.py": """
        from falaj.store import bells
        from falaj.store.bells import Bells, Seen
        from falaj.store.ports import Rings

        def use(rings: Rings, add: int) -> "Seen | None":
            rings.hang(None, kinds="a")
            return Seen(told=add, known="x")

        def main() -> None:
            print(f"é {len(str(bells.Seen(2).told))}", use(Bells(), add=bells.Seen(2).told), Bells().ring())
        """,
    "tests/__init__.py": "",
    "tests/conftest.py": """
        import pytest
        from falaj.store import Bells

        @pytest.fixture
        def house() -> Bells:
            return Bells()
        """,
    "tests/test_bells.py": '''
        from typing import Any
        import pytest
        from falaj.store.bells import Bells

        PROGRAM = """
        from falaj.store.bells import Bells
        Bells().ring()
        """

        @pytest.mark.parametrize(("wanted", "told"), [(1, 2)])
        def test_ring(house: Bells, wanted: int, told: int, monkeypatch: pytest.MonkeyPatch) -> None:
            monkeypatch.setattr(Bells, "ring", lambda self: [wanted])
            monkeypatch.setattr("falaj.store.bells.Bells.ring", None)
            assert house.ring() == [wanted]

        def test_unknown(anything: Any) -> None:
            anything.hang(None)
            anything.told()
        ''',
}


def write_tree(root: Path) -> None:
    for folder in ("src", "tests"):
        shutil.rmtree(root / folder, ignore_errors=True)
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(textwrap.dedent(text).lstrip("\n"))
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run(["git", "add", "-A", "src", "tests", "docs", "pyproject.toml"], cwd=root, check=True)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    root = tmp_path_factory.mktemp("tree")
    write_tree(root)
    return build_index(root)


@pytest.fixture
def restored(index: Index) -> Iterator[Index]:
    """The index, over files that are written anew afterwards."""
    yield index
    write_tree(index.root)


def apply(index: Index, mapping: dict[str, object]) -> tuple[Plan, dict[str, str]]:
    planner = Planner(index, mapping)
    plan = planner.make()
    assert plan.problems == []
    list(write_edits(index.root, plan.edits))
    planner.moves.move_files()
    return plan, {
        str(p.relative_to(index.root)): p.read_text()
        for p in index.root.rglob("*.*")
        if p.suffix in (".py", ".md", ".toml")
    }


def problems(index: Index, mapping: dict[str, object]) -> str:
    return "\n".join(Planner(index, mapping).make().problems)


def test_method_is_renamed_in_protocol_implementer_and_calls(restored: Index) -> None:
    plan, texts = apply(restored, {"falaj.store.ports.Rings.hang": "add"})
    assert "def add(" in texts["src/falaj/store/ports.py"]
    assert "def add(" in texts["src/falaj/store/bells.py"]
    assert 'rings.add(None, kinds="a")' in texts["src/falaj/store/ledger.py"]
    assert texts["docs/store.md"].startswith("`add` of")
    assert plan.guessed == ["tests/test_bells.py:17:14"]  # no other definition is called so
    assert "anything.add(None)" in texts["tests/test_bells.py"]


def test_argument_is_renamed_in_overrides_keywords_and_docstring(restored: Index) -> None:
    _, texts = apply(restored, {"falaj.store.bells.Bells.hang.<arg>kinds": "record_kinds"})
    assert 'rings.hang(None, record_kinds="a")' in texts["src/falaj/store/ledger.py"]
    assert "record_kinds: str" in texts["src/falaj/store/ports.py"]
    assert '"""Hang `record_kinds`."""' in texts["src/falaj/store/bells.py"]
    assert "{record_kinds}" in texts["src/falaj/store/bells.py"]


def test_loops_that_share_a_variable_are_renamed_one_by_one(restored: Index) -> None:
    names = {"<local>one": "kinds_heard", "<local>one#2": "letter"}
    _, texts = apply(restored, {f"falaj.store.bells.Bells.hang.{local}": new for local, new in names.items()})
    assert "for kinds_heard in self._hung:\n            print(kinds_heard)" in texts["src/falaj/store/bells.py"]
    assert 'for letter in "ab":\n            print(f"é {letter!r} {kinds}")' in texts["src/falaj/store/bells.py"]


def test_scope_and_name_stand_for_every_variable_of_that_name(index: Index) -> None:
    names = {"falaj.store.bells.Bells.hang.one": "callback_name", "falaj.store.bells.Bells.hang.kinds": "record_kinds"}
    scope = "falaj.store.bells.Bells.hang"
    expanded = expand_scope_names(names, index.definitions)
    assert expanded == {
        f"{scope}.<local>one": "callback_name",
        f"{scope}.<local>one#2": "callback_name",
        f"{scope}.<arg>kinds": "record_kinds",
    }
    assert expand_scope_names({"falaj.nowhere.f.x": "y"}, index.definitions) == {"falaj.nowhere.f.x": "y"}


def test_field_is_renamed_in_constructors_and_reads(restored: Index) -> None:
    planner = Planner(restored, {"falaj.store.bells.Seen.told": "count", "ambiguous": {"*:told": ""}})
    assert planner.make().ambiguous == {}
    _, texts = apply(restored, {"falaj.store.bells.Seen.told": "count", "ambiguous": {"*:told": ""}})
    assert "Seen(count=add, known=" in texts["src/falaj/store/ledger.py"]
    assert "bells.Seen(2).count" in texts["src/falaj/store/ledger.py"]
    assert "[one.count for one in (Seen(count=1),)]" in texts["src/falaj/store/bells.py"]
    assert "anything.told()" in texts["tests/test_bells.py"]


def test_unknown_receiver_is_ambiguous_while_another_definition_keeps_the_name(index: Index) -> None:
    plan = Planner(index, {"falaj.store.bells.Seen.told": "count"}).make()
    assert plan.ambiguous == {"tests/test_bells.py:18:14": "told → count?"}


def test_operations_and_their_parameters_are_public(index: Index) -> None:
    assert "an operation" in problems(index, {"falaj.store.service.Store.show": "describe"})
    assert "a parameter" in problems(index, {"falaj.store.service.Store.show.<arg>name": "path"})
    assert "operation store.service.Store.show(name)" in PublicWords(index).dump()
    assert "event store.show" in PublicWords(index).dump()


def test_class_is_renamed_in_imports_annotations_texts_and_programs(restored: Index) -> None:
    _, texts = apply(restored, {"falaj.store.bells.Bells": "Listeners", "falaj.store.bells.Seen": "Count"})
    assert '__all__ = ["Listeners"]' in texts["src/falaj/store/__init__.py"]
    assert '"Count | None"' in texts["src/falaj/store/ledger.py"]
    assert 'a = "falaj.store.bells:Listeners"' in texts["pyproject.toml"]
    assert "import Listeners\nListeners().ring()" in texts["tests/test_bells.py"]


def test_fixture_is_renamed_with_the_arguments_that_ask_for_it(restored: Index) -> None:
    _, texts = apply(restored, {"tests.conftest.house": "server", "tests.test_bells.test_ring.<arg>wanted": "expected"})
    assert "def server()" in texts["tests/conftest.py"]
    assert "def test_ring(server: Bells, expected: int" in texts["tests/test_bells.py"]
    assert "server.ring() == [expected]" in texts["tests/test_bells.py"]
    assert '(("expected", "told")' in texts["tests/test_bells.py"]


def test_patched_names_are_renamed_in_texts(restored: Index) -> None:
    _, texts = apply(restored, {"falaj.store.bells.Bells.ring": "notify"})
    assert "Bells().notify())" in texts["src/falaj/store/ledger.py"]
    assert 'setattr(Bells, "notify"' in texts["tests/test_bells.py"]
    assert '"falaj.store.bells.Bells.notify"' in texts["tests/test_bells.py"]


def test_module_moves_with_its_imports_paths_and_dotted_names(restored: Index) -> None:
    moves = {"module:falaj.store.bells": "falaj.core.commit_listeners", "falaj.store.bells.Bells": "CommitListeners"}
    _, texts = apply(restored, moves)
    assert "from falaj.core import commit_listeners\n" in texts["src/falaj/store/ledger.py"]
    assert "from falaj.core.commit_listeners import CommitListeners, Seen" in texts["src/falaj/store/ledger.py"]
    assert "commit_listeners.Seen(2)" in texts["src/falaj/store/ledger.py"]
    assert 'a = "falaj.core.commit_listeners:CommitListeners"' in texts["pyproject.toml"]
    assert "`src/falaj/core/commit_listeners.py`" in texts["docs/store.md"]
    assert "class CommitListeners" in texts["src/falaj/core/commit_listeners.py"]


@pytest.mark.parametrize(
    ("symbol", "new", "reason"),
    [
        ("falaj.store.ledger.use.<arg>add", "rings", "as rings would be called"),
        ("falaj.store.bells.Bells.ring", "hang", "already has hang"),
        ("falaj.store.bells.Bells.ring.<local>made", "Seen", "would be captured"),
        ("falaj.store.ledger.use", "class", "is not an identifier"),
        ("falaj.store.ledger.uses", "x", "did you mean falaj.store.ledger.use?"),
        ("falaj.store.bells.Bells.__init__", "x", "by Python"),
    ],
)
def test_collisions_and_mistakes_are_refused(index: Index, symbol: str, new: str, reason: str) -> None:
    assert reason in problems(index, {symbol: new})


def test_objections_name_banned_and_one_word_definitions(index: Index) -> None:
    entries = {entry["symbol"]: entry for entry in list_objections(index, "falaj.store.bells")}
    assert entries["falaj.store.bells.Bells.ring"]["objection"] == "one word"
    assert entries["falaj.store.bells.Seen.told"]["objection"] == "banned"
    assert "falaj.store.bells.Bells.hang.<local>one#2" in entries
