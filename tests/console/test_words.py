"""The message files: what code says exists in both languages, whole, and nothing is kept that nobody says."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import falaj.console
from falaj.catalog.name_operations import HOW_LAPSED, HOW_UNRATIFIED
from falaj.console.words import LANGUAGES, MESSAGES_FOLDER, Message, choose_plural_form, load_messages
from falaj.core.errors import FalajError

CODE = Path(falaj.console.__file__).parent
SOURCE = CODE.parent
FORMS = {"en": {"one", "other"}, "ar": {"zero", "one", "two", "few", "many", "other"}}
# Abbreviations and names that Arabic writes as they are.
NAMES = frozenset(
    [
        "A",
        "B",
        "CPU",
        "GPU",
        "GPUs",
        "HTTP",
        "ID",
        "JSON",
        "MB",
        "MLflow",
        "ONNX",
        "Python",
        "RAM",
        "SLSA",
        "URL",
        "gRPC",
        "n",
        "p50",
        "p95",
        "p99",
    ]
)
_KEY = re.compile(r"[a-z]+\.[A-Za-z0-9_.-]+")
_NAME = re.compile(r"\{([a-z_]+)\}")
_ARABIC = re.compile(r"[\u0600-\u06ff]")


class Said(NamedTuple):
    """What the code says: whole keys, groups of keys, and calls whose key cannot be known by reading."""

    keys: dict[str, str]
    groups: dict[str, str]
    unknown: list[str]
    texts: set[str]


@cache
def said() -> Said:
    """Every `t("room.key")` and `t.of("room.group", value)` of the console, with where it stands."""
    found = Said({}, {}, [], set())
    for file in sorted(CODE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.texts.add(node.value)
            if isinstance(node, ast.Call):
                _hear(found, node, f"{file.relative_to(CODE)}:{node.lineno}")
    return found


def _hear(found: Said, call: ast.Call, where: str) -> None:
    of = isinstance(call.func, ast.Attribute) and call.func.attr == "of" and _is_words(call.func.value)
    if not (of or _is_words(call.func)) or not call.args:
        return
    into = found.groups if of else found.keys
    for one in _branches(call.args[0]):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            into.setdefault(one.value, where)
        elif isinstance(one, (ast.JoinedStr, ast.BinOp)):
            found.unknown.append(where)


def _is_words(node: ast.expr) -> bool:
    """`t`, `view.t`, `self.t`: by the house's custom nothing else is called so."""
    return (isinstance(node, ast.Name) and node.id == "t") or (isinstance(node, ast.Attribute) and node.attr == "t")


def _branches(node: ast.expr) -> list[ast.expr]:
    return [*_branches(node.body), *_branches(node.orelse)] if isinstance(node, ast.IfExp) else [node]


def _forms(message: Message) -> dict[str, str]:
    return {"": message} if isinstance(message, str) else dict(message)


def test_every_room_has_both_languages() -> None:
    files = {
        lang: {file.name.partition(".")[0] for file in MESSAGES_FOLDER.glob(f"*.{lang}.json")} for lang in LANGUAGES
    }
    assert files["en"] == files["ar"]
    assert {file.name for file in MESSAGES_FOLDER.iterdir()} == {
        f"{room}.{lang}.json" for lang in LANGUAGES for room in files[lang]
    }


def test_keys_are_the_same_in_both_languages() -> None:
    assert sorted(set(load_messages("en")) ^ set(load_messages("ar"))) == []


def test_what_code_says_exists() -> None:
    known = load_messages("en")
    missing = {key: where for key, where in said().keys.items() if key not in known}
    assert missing == {}
    empty = {
        group: where for group, where in said().groups.items() if not any(k.startswith(f"{group}.") for k in known)
    }
    assert empty == {}


def test_keys_are_written_out_where_they_are_said() -> None:
    assert said().unknown == []


def test_nothing_is_kept_that_nobody_says() -> None:
    # A key may stand in a table of the code, too: any text of its shape counts as said.
    used = set(said().keys) | {text for text in said().texts if _KEY.fullmatch(text)}
    groups = tuple(f"{group}." for group in said().groups)
    assert sorted(key for key in load_messages("en") if key not in used and not key.startswith(groups)) == []


def test_numbers_have_every_form_their_language_needs() -> None:
    wrong = {
        f"{lang}: {key}": sorted(message)
        for lang in LANGUAGES
        for key, message in load_messages(lang).items()
        if not isinstance(message, str) and set(message) != FORMS[lang]
    }
    assert wrong == {}
    other = [
        key
        for key in load_messages("en")
        if isinstance(load_messages("en")[key], str) != isinstance(load_messages("ar")[key], str)
    ]
    assert other == []


def test_what_is_filled_in_is_the_same_in_both_languages() -> None:
    wrong = {}
    for key, message in load_messages("en").items():
        names = {name for text in _forms(message).values() for name in _NAME.findall(text)}
        there = {name for text in _forms(load_messages("ar")[key]).values() for name in _NAME.findall(text)}
        if names != there:
            wrong[key] = (sorted(names), sorted(there))
    assert wrong == {}


def test_the_form_for_many_says_how_many() -> None:
    silent = [
        f"{lang}: {key}"
        for lang, most in (("en", "other"), ("ar", "many"))
        for key, message in load_messages(lang).items()
        if not isinstance(message, str) and "{n}" not in message[most]
    ]
    assert silent == []


def test_arabic_is_arabic_and_nothing_is_empty() -> None:
    for lang in LANGUAGES:
        assert [
            key for key, one in load_messages(lang).items() if not all(text.strip() for text in _forms(one).values())
        ] == []
    latin = [
        key
        for key, one in load_messages("ar").items()
        if not all(
            _ARABIC.search(text) or set(re.findall(r"[A-Za-z]\w*", text)) <= NAMES for text in _forms(one).values()
        )
    ]
    assert latin == []


def test_english_has_no_arabic_left_in_it() -> None:
    assert [
        key
        for key, one in load_messages("en").items()
        if not key.startswith("console.digits") and any(_ARABIC.search(text) for text in _forms(one).values())
    ] == []


def test_what_rooms_say_by_a_word_has_a_word_in_every_language() -> None:
    """Classes of errors, rules that say no, reasons to wait, kinds of findings and of incidents."""
    classes: list[type[FalajError]] = [FalajError]
    for one in classes:
        classes.extend(one.__subclasses__())
    own = {one.code for one in classes if one.__module__ == FalajError.__module__}
    source = {name: (SOURCE / name).read_text(encoding="utf-8") for name in (
        "govern/cedar/guardrails.cedar", "govern/authorizer.py", "govern/policy_engine.py", "schedule/why.py",
        "schedule/blocked_jobs.py", "jobs/service.py", "drift/records.py",
    )}  # fmt: skip
    rules = set(re.findall(r'@id\("([a-z-]+)"\)', source["govern/cedar/guardrails.cedar"]))
    for name in ("govern/authorizer.py", "govern/policy_engine.py"):
        rules |= set(re.findall(r'(?:\(False, |^[A-Z_]+ = )\("([a-z-]+)",\)', source[name], re.MULTILINE))
    reasons = set[str]()
    for name in ("schedule/why.py", "schedule/blocked_jobs.py", "jobs/service.py"):
        reasons |= set(re.findall(r'Reason\(\s*"([a-z-]+)"', source[name]))
    found = re.search(r'what: str\n    """([a-z, ()]+)\."""', source["drift/records.py"])
    assert found, "where findings say their kinds"
    kinds = {one.strip().partition(" ")[0] for one in found[1].split(",")}
    assert len(own) >= 11
    assert {"no-permit", "guard-tenant", "engine-failure"} <= rules
    assert {"capacity", "impossible"} <= reasons
    wanted = {
        *(f"console.error.{one}" for one in own), *(f"console.error_hint.{one}" for one in own),
        *(f"console.lacks.{one}" for one in rules), *(f"jobs.reason.{one}" for one in reasons),
        *(f"monitor.kind.{one}" for one in kinds),
    }  # fmt: skip
    for lang in LANGUAGES:
        assert sorted(wanted - set(load_messages(lang))) == []


@pytest.mark.parametrize(
    ("n", "form"),
    [(0, "zero"), (1, "one"), (2, "two"), (3, "few"), (10, "few"), (11, "many"), (99, "many"), (100, "other"),
     (102, "other"), (103, "few"), (111, "many"), (1.5, "other")],
)  # fmt: skip
def test_arabic_numbers_choose_their_form(n: float, form: str) -> None:
    assert choose_plural_form("ar", n) == form


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_came_of_an_emergency_has_words(language: str) -> None:
    for how in (HOW_UNRATIFIED, HOW_LAPSED, "emergency, ratified"):
        assert f"catalog.done_by.{how}" in load_messages(language), how
