"""The words of privacy documents by language, and what values and laws are called in Arabic."""

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

WORDS_FILE = Path(__file__).with_name("document_words.toml")


@cache
def _read_file() -> dict[str, dict[str, Any]]:
    return tomllib.loads(WORDS_FILE.read_text(encoding="utf-8"))


def load_words(language: str) -> Mapping[str, str]:
    """Return the sentences and headings of a language."""
    words: Mapping[str, str] = _read_file()[language]
    return words


def translate_value(value: str, language: str) -> str:
    """Return what a lawful basis, class or category is called in a language; as it is spelled if it has no name."""
    names: Mapping[str, str] = _read_file()["values"]
    return names.get(value, value) if language == "ar" else value


def translate_values(values: Iterable[str], language: str) -> str:
    """Return several values as one list of words."""
    return ("، " if language == "ar" else ", ").join(translate_value(value, language) for value in values)


def translate_law(regime: str, title: str, language: str) -> str:
    """Return a law's name in a language: the profile's title in English, its official name in Arabic where known."""
    names: Mapping[str, str] = _read_file()["laws"]
    return names.get(regime, regime) if language == "ar" else title


def name_authority(regime: str, language: str) -> str:
    """Return the authority that a law's breaches are notified to; nothing where none is recorded."""
    names: Mapping[str, Mapping[str, str]] = _read_file()["authorities"]
    return names.get(regime, {}).get(language, "")
