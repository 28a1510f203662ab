"""Colours of the maps, as palettes of 255 shades and one for what is not known.

The lightness of one palette only rises, that of the other only falls away from the middle, so that neither a
colour-blind reader nor a grey print loses the order.
"""

from __future__ import annotations

from collections.abc import Sequence

Colour = tuple[int, int, int]
Palette = list[Colour]

SHADES = 255
#: Index of the grey of a cell without a value.
UNKNOWN_SHADE = SHADES

_UNKNOWN: Colour = (128, 128, 128)
#: From little to much.
_POWER: Sequence[Colour] = ((24, 26, 78), (44, 94, 148), (72, 150, 160), (176, 202, 132), (252, 236, 150))
#: From less than the others over the same to more.
_DIFFERENCE: Sequence[Colour] = (
    (20, 60, 130),
    (108, 160, 214),
    (247, 247, 244),
    (236, 160, 84),
    (140, 60, 4),
)


def _between(stops: Sequence[Colour]) -> Palette:
    found = []
    for shade in range(SHADES):
        at = shade / (SHADES - 1) * (len(stops) - 1)
        left = min(int(at), len(stops) - 2)
        share = at - left
        red, green, blue = (
            round(a + (b - a) * share) for a, b in zip(stops[left], stops[left + 1], strict=True)
        )
        found.append((red, green, blue))
    return [*found, _UNKNOWN]


POWER = _between(_POWER)
DIFFERENCE = _between(_DIFFERENCE)
