"""How much may be said of a version. Pure checks; what passes them fits a record and can be read back."""

import json
import re
from collections.abc import Mapping

from falaj.catalog.records import PublishFacts
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.snapshot.records import PublishedTree
from falaj.store.blob_store import parse_digest
from falaj.store.codec import to_plain

MAX_BATCHES = 4096
MAX_SIGNED_FILES = 10_000
"""Of a model, to be signed."""
MAX_COLUMNS = 5_000
MAX_TAGS = 1_000
MAX_INPUTS = 1_000
MAX_CARD_ENTRIES = 10_000
"""Metrics, parameters or packages of one card."""
MAX_FACTS_BYTES = 4 << 20
"""All of it together, as JSON."""
MAX_LONG_TEXT, MAX_SHORT_TEXT, MAX_WORD = 5_000, 1_000, 250
MAX_MESSAGE = 4_000
_MAX_TREE_SIZE = 1 << 62
_ROLE_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,126}"
_SHA256_PATTERN = r"[0-9a-f]{64}"


def require_valid_facts(facts: PublishFacts) -> None:
    """Invalid unless it is of a size that a record may have, and JSON throughout."""
    require_short_text("the message", facts.message, MAX_MESSAGE)
    require_valid_tags(facts.tags)
    if facts.table is not None:
        _require_max_count("columns", len(facts.table.columns), MAX_COLUMNS)
        for column in facts.table.columns:
            require_short_text("the name of a column", column.name, MAX_SHORT_TEXT)
            for text in (column.type, column.low, column.high, column.category):
                require_short_text(f"what is said of column {column.name[:40]}", text, MAX_LONG_TEXT)
    if facts.card is not None:
        card = facts.card
        for entries_label, entries in (
            ("metrics", card.metrics),
            ("params", card.params),
            ("packages", card.environment),
        ):
            _require_max_count(entries_label, len(entries), MAX_CARD_ENTRIES)
        for name in (*card.metrics, *card.params, *card.environment):
            require_short_text("a name in the card", name, MAX_WORD * 2)
    _require_max_count("files to sign", len(facts.files), MAX_SIGNED_FILES)
    if not all(re.fullmatch(_SHA256_PATTERN, digest) for digest in facts.files.values()):
        raise Invalid("a file has no SHA-256", "64 hex digits, small letters")
    _require_total_size(facts)


def require_valid_tags(tags: Mapping[str, str]) -> None:
    """Invalid unless these can be the tags of a thing."""
    _require_max_count("tags", len(tags), MAX_TAGS)
    for key, value in tags.items():
        if not key:
            raise Invalid("a tag has no name", "tags are name=value")
        require_short_text("the name of a tag", key, MAX_WORD)
        require_short_text(f"the tag {key[:40]}", value, MAX_LONG_TEXT)


def require_short_text(text_label: str, text: str, max_chars: int) -> None:
    """Invalid when it is longer than that."""
    if len(text) > max_chars:
        raise Invalid(f"{text_label} has {len(text)} characters", f"at most {max_chars}")


def require_valid_tree(tree: PublishedTree) -> None:
    """Invalid unless it can be a tree: a digest for a root, counts that are counts, each batch once."""
    parse_digest(tree.root)
    if not (0 <= tree.num_files < _MAX_TREE_SIZE and 0 <= tree.size_bytes < _MAX_TREE_SIZE):
        raise Invalid("the tree counts wrongly", "publish again")
    if not 0 < len(tree.batches) <= MAX_BATCHES:
        raise Invalid(f"a tree in {len(tree.batches)} batches", f"1 to {MAX_BATCHES}")
    if len({parse_digest(batch.bundle) for batch in tree.batches}) < len(tree.batches):
        raise Invalid("the tree names a batch twice", "publish again")


def require_valid_inputs(inputs: Mapping[str, Ref]) -> None:
    """Invalid unless each has a role of its own, and there are not too many."""
    _require_max_count("inputs", len(inputs), MAX_INPUTS)
    for role in inputs:
        if not re.fullmatch(_ROLE_PATTERN, role):
            raise Invalid(f"{role[:80]!r} is no role of an input", "a word such as train, test or base")


def _require_max_count(items_label: str, item_count: int, max_count: int) -> None:
    if item_count > max_count:
        raise Invalid(f"{item_count} {items_label}", f"at most {max_count}")


def _require_total_size(facts: PublishFacts) -> None:
    try:
        # A number that is none would be written as nothing, and the record could not be read again.
        size = len(json.dumps(to_plain(facts), allow_nan=False, ensure_ascii=False).encode())
    except (ValueError, TypeError, UnicodeError, RecursionError) as error:
        raise Invalid(
            f"what is said of it is not JSON: {error}", "finite numbers, texts, lists and objects only"
        ) from error
    if size > MAX_FACTS_BYTES:
        raise Invalid(f"what is said of it takes {size} bytes", f"at most {MAX_FACTS_BYTES}")
