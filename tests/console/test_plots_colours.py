"""Colours of plots: seen on both themes, and told apart by people who see fewer colours."""

import re
from itertools import combinations

import pytest

from falaj.console.assets import STATIC_FOLDER

# How each kind of colour blindness turns linear red, green and blue (Machado, Oliveira and Fernandes 2009, severity 1).
BLIND = {
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
}
Colour = tuple[float, float, float]


def variables(theme: str) -> dict[str, str]:
    """Every colour of a theme."""
    found: dict[str, str] = {}
    for name in ("tokens.css", "plots.css"):
        text = (STATIC_FOLDER / name).read_text()
        blocks = re.findall(r"^:root([^{]*)\{([^}]*)\}", text, re.MULTILINE)
        for selector, body in blocks:
            if selector.strip() in ("", f'[data-theme="{theme}"]'):
                found |= dict(re.findall(r"(--[\w-]+):\s*(#[0-9a-f]{6})", body))
    return found


def linear(colour: str) -> Colour:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return red, green, blue


def lightness(colour: Colour) -> float:
    return 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((lightness(linear(a)), lightness(linear(b))), reverse=True)
    return (high + 0.05) / (low + 0.05)


def lab(colour: Colour) -> Colour:
    """OKLab, in which distances are about as people see them."""
    r, g, b = colour
    cones = (
        0.4122 * r + 0.5363 * g + 0.0514 * b,
        0.2119 * r + 0.6807 * g + 0.1074 * b,
        0.0883 * r + 0.2817 * g + 0.63 * b,
    )
    x, y, z = (max(0.0, c) ** (1 / 3) for c in cones)
    return (
        0.2105 * x + 0.7936 * y - 0.0041 * z,
        1.978 * x - 2.4286 * y + 0.4506 * z,
        0.0259 * x + 0.7828 * y - 0.8087 * z,
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_series_stand_out_from_what_is_behind(theme: str) -> None:
    known = variables(theme)
    for n in range(8):
        for behind in ("--sheet", "--paper", "--faint"):
            assert contrast(known[f"--s{n}"], known[behind]) >= 3, (n, behind)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", BLIND)
def test_series_differ_for_everybody(theme: str, kind: str) -> None:
    known = variables(theme)
    seen = []
    for n in range(8):
        colour = linear(known[f"--s{n}"])
        turned = [sum(k * c for k, c in zip(row, colour, strict=True)) for row in BLIND[kind]]
        seen.append(lab((turned[0], turned[1], turned[2])))
    for (a, one), (b, other) in combinations(enumerate(seen), 2):
        distance = sum((p - q) ** 2 for p, q in zip(one, other, strict=True)) ** 0.5
        assert distance >= 0.075, f"s{a} and s{b} are {distance:.3f} apart"


def test_the_dark_colours_are_written_the_same_twice() -> None:
    text = (STATIC_FOLDER / "plots.css").read_text()
    chosen = re.search(r'data-theme="dark"\] \{([^}]*)\}', text)
    asked = re.search(r"prefers-color-scheme: dark\)[^{]*\{[^{]*\{([^}]*)\}", text)
    assert chosen is not None
    assert asked is not None
    assert chosen[1].split() == asked[1].split()
