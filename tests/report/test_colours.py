"""Colours of the page: texts have contrast, and what colours tell apart stays apart for colour-blind readers."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from eerl_launch.report.html import TEMPLATES

CSS = (TEMPLATES / "report.css").read_text(encoding="utf-8")
#: Linear RGB as people without long-wave or middle-wave cones see it (Viénot, Brettel and Mollon 1999).
BLINDNESS = {
    "none": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
    "deuteranopia": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
}

Linear = tuple[float, float, float]


def schemes() -> dict[str, dict[str, Linear]]:
    """The named colours of light, dark and print, in linear RGB; dark and print inherit what they do not change."""
    found: dict[str, dict[str, Linear]] = {}
    for name, block in zip(
        ("light", "dark", "print"), re.findall(r":root \{(.*?)\}", CSS, re.DOTALL), strict=True
    ):
        own = {key: linear(colour) for key, colour in re.findall(r"--([a-z]+): (#[0-9a-f]{3,6})", block)}
        found[name] = {**found.get("light", {}), **own}
    return found


def linear(colour: str) -> Linear:
    """#rgb or #rrggbb as linear RGB (sRGB's curve)."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return red, green, blue


def lightness(colour: Linear) -> float:
    """Relative luminance as WCAG 2 defines it."""
    return 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2]


def contrast(left: Linear, right: Linear) -> float:
    """WCAG 2's contrast ratio."""
    low, high = sorted((lightness(left), lightness(right)))
    return (high + 0.05) / (low + 0.05)


def lab(colour: Linear) -> tuple[float, float, float]:
    """CIE Lab under D65."""
    red, green, blue = (max(part, 0.0) for part in colour)
    tristimulus = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883,
    )
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in tristimulus)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def seen(colour: Linear, blindness: str) -> Linear:
    """The colour as a reader with this kind of colour vision sees it."""
    red, green, blue = (sum(w * c for w, c in zip(row, colour, strict=True)) for row in BLINDNESS[blindness])
    return red, green, blue


def apart(left: Linear, right: Linear, blindness: str) -> float:
    """CIE 1976 difference; about 2 is just noticed."""
    sides = zip(lab(seen(left, blindness)), lab(seen(right, blindness)), strict=True)
    return sum((a - b) ** 2 for a, b in sides) ** 0.5


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_texts_have_contrast(scheme: str) -> None:
    """Every text colour on every ground it is on has at least 4.5 to 1, lines of plots at least 3 to 1."""
    colours = schemes()[scheme]
    grounds = [colours[name] for name in ("page", "card", "shade")]

    for name in ("ink", "soft", "good", "bad", "note"):
        assert min(contrast(colours[name], ground) for ground in grounds[:2]) >= 4.5, name
    for name in ("governor", "lowered", "generation", "training"):
        assert contrast(colours[name], colours["card"]) >= 3.0, name


def test_names_on_strips_have_contrast() -> None:
    """The name of each controller state can be read on its colour."""
    ink = linear(re.search(r"\.strip-name \{ fill: (#[0-9a-f]{6})", CSS)[1])

    for name in ("calibration", "search", "confirmation", "locked", "suspended", "several"):
        assert contrast(ink, schemes()["light"][name]) >= 4.5, name


@pytest.mark.parametrize("blindness", list(BLINDNESS))
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_that_lie_together_stay_apart(scheme: str, blindness: str) -> None:
    """Pairs in one plot, and states that follow each other, differ for everyone; shape and name tell them as well."""
    colours = schemes()[scheme]
    states = ("calibration", "search", "confirmation", "locked")
    pairs = [("generation", "training"), ("governor", "lowered"), *pairwise(states)]
    pairs += [("locked", "suspended"), ("search", "locked")]

    found = {pair: round(apart(colours[pair[0]], colours[pair[1]], blindness)) for pair in pairs}
    assert {pair: difference for pair, difference in found.items() if difference < 15} == {}
