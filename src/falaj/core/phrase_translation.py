"""Translates texts that are composed of few phrases, by a table of phrases; what is not in the table stays as it is."""

import re
from collections.abc import Mapping


def translate_phrases(text: str, phrases: Mapping[str, str]) -> str:
    """Return the text with each phrase of the table replaced; a longer phrase wins over the shorter ones inside it."""
    ordered = sorted(phrases, key=lambda phrase: -len(phrase))
    marked = text
    for number, phrase in enumerate(ordered):
        start = r"(?<![\w-])" if phrase[0].isalnum() else ""
        marked = re.sub(f"{start}{re.escape(phrase)}(?![\\w-])", f"\0{number}\0", marked)
    return re.sub("\0(\\d+)\0", lambda mark: phrases[ordered[int(mark[1])]], marked)
