"""How much may be said of a version. Pure checks; what passes them fits a record and can be read back."""

import json
import re
from collections.abc import Mapping

from falaj.catalog.records import Facts
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.snapshot.records import Tree
from falaj.store.blobs import hex_of
from falaj.store.codec import to_plain

MOST_BATCHES = 4096
MOST_FILES = 10_000
"""Of a model, to be signed."""
MOST_COLUMNS = 5_000
MOST_TAGS = 1_000
MOST_INPUTS = 1_000
MOST_ENTRIES = 10_000
"""Metrics, parameters or packages of one card."""
MOST_BYTES = 4 << 20
"""All of it together, as JSON."""
LONG, SHORT, WORD = 5_000, 1_000, 250
MESSAGE = 4_000
_MOST_SIZE = 1 << 62
_ROLE = r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,126}"
_SHA256 = r"[0-9a-f]{64}"


def check_facts(facts: Facts) -> None:
    """Invalid unless it is of a size that a record may have, and JSON throughout."""
    check_text("the message", facts.message, MESSAGE)
    check_tags(facts.tags)
    if facts.table is not None:
        _count("columns", len(facts.table.columns), MOST_COLUMNS)
        for column in facts.table.columns:
            check_text("the name of a column", column.name, SHORT)
            for text in (column.type, column.low, column.high, column.category):
                check_text(f"what is said of column {column.name[:40]}", text, LONG)
    if facts.card is not None:
        card = facts.card
        for what, entries in (("metrics", card.metrics), ("params", card.params), ("packages", card.environment)):
            _count(what, len(entries), MOST_ENTRIES)
        for name in (*card.metrics, *card.params, *card.environment):
            check_text("a name in the card", name, WORD * 2)
    _count("files to sign", len(facts.files), MOST_FILES)
    if not all(re.fullmatch(_SHA256, digest) for digest in facts.files.values()):
        raise Invalid("a file has no SHA-256", "64 hex digits, small letters")
    _check_whole(facts)


def check_tags(tags: Mapping[str, str]) -> None:
    """Invalid unless these can be the tags of a thing."""
    _count("tags", len(tags), MOST_TAGS)
    for key, value in tags.items():
        if not key:
            raise Invalid("a tag has no name", "tags are name=value")
        check_text("the name of a tag", key, WORD)
        check_text(f"the tag {key[:40]}", value, LONG)


def check_text(what: str, text: str, most: int) -> None:
    """Invalid when it is longer than that."""
    if len(text) > most:
        raise Invalid(f"{what} has {len(text)} characters", f"at most {most}")


def check_tree(tree: Tree) -> None:
    """Invalid unless it can be a tree: a digest for a root, counts that are counts, each batch once."""
    hex_of(tree.root)
    if not (0 <= tree.num_files < _MOST_SIZE and 0 <= tree.size_bytes < _MOST_SIZE):
        raise Invalid("the tree counts wrongly", "publish again")
    if not 0 < len(tree.batches) <= MOST_BATCHES:
        raise Invalid(f"a tree in {len(tree.batches)} batches", f"1 to {MOST_BATCHES}")
    if len({hex_of(batch.bundle) for batch in tree.batches}) < len(tree.batches):
        raise Invalid("the tree names a batch twice", "publish again")


def check_inputs(inputs: Mapping[str, Ref]) -> None:
    """Invalid unless each has a role of its own, and there are not too many."""
    _count("inputs", len(inputs), MOST_INPUTS)
    for role in inputs:
        if not re.fullmatch(_ROLE, role):
            raise Invalid(f"{role[:80]!r} is no role of an input", "a word such as train, test or base")


def _count(what: str, many: int, most: int) -> None:
    if many > most:
        raise Invalid(f"{many} {what}", f"at most {most}")


def _check_whole(facts: Facts) -> None:
    try:
        # A number that is none would be written as nothing, and the record could not be read again.
        size = len(json.dumps(to_plain(facts), allow_nan=False, ensure_ascii=False).encode())
    except (ValueError, TypeError, UnicodeError, RecursionError) as error:
        raise Invalid(
            f"what is said of it is not JSON: {error}", "finite numbers, texts, lists and objects only"
        ) from error
    if size > MOST_BYTES:
        raise Invalid(f"what is said of it takes {size} bytes", f"at most {MOST_BYTES}")
