"""How a setting is compared with the governor where phases take turns: both phases at once, or one after the other.

What slows a whole update down, a busy network or a hot room, slows both of its phases. While one phase is the
governor's and the other is not touched, the untouched one tells how much of a difference is that. So a phase on its
own is known with less noise, and while it is compared the other goes on saving.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eerl_controller.bayes.outcomes import Array, Flags
from eerl_controller.bayes.sample import GENERATION, REST, TRAINING, Three


@dataclass(frozen=True, slots=True)
class Comparison:
    """By setting: what is saved and lost in an update of the comparison, and the noise of what it shows.

    ``apart``: whether phases are compared one after the other. ``alone_s2`` is the noise of either phase, compared
    beside the other.
    """

    saving: Array
    lost_s: Array
    noise_s2: Array
    apart: Flags
    alone_s2: tuple[float, float]


def compare(saving: Array, lost_s: Array, noise_s: Three, common: float) -> Comparison:
    """The better way for each setting: the one whose evidence costs less saving.

    ``saving`` and ``lost_s`` are by idle clock, generation's and training's clock, the governor first; ``noise_s``
    is the standard deviation of a part's seconds, ``common`` the correlation of both phases' noise.
    """
    both = 2.0 * common * noise_s[GENERATION] * noise_s[TRAINING]
    together = noise_s[GENERATION] ** 2 + noise_s[TRAINING] ** 2 + both
    rest = noise_s[REST] ** 2
    # The other phase explains this share of the variance.
    generation, training = (noise_s[part] ** 2 * (1.0 - common**2) for part in (GENERATION, TRAINING))
    # Turns by noise: of two sums of which each is known the better the more turns it has, that is the best.
    first = generation**0.5 / max(generation**0.5 + training**0.5, 1e-12)
    apart_saving = first * saving[:, :1, :] + (1.0 - first) * saving[:, :, :1]
    apart_lost_s = first * lost_s[:, :1, :] + (1.0 - first) * lost_s[:, :, :1]
    apart_s2 = (generation**0.5 + training**0.5) ** 2
    apart = apart_s2 * (saving - apart_saving) < together * saving
    apart[:, 0, :] = apart[:, :, 0] = False
    noise_s2 = np.where(apart, apart_s2, together)
    noise_s2[:, 1:, 0], noise_s2[:, 0, 1:] = generation, training
    return Comparison(
        saving=np.where(apart, apart_saving, 0.0),
        lost_s=np.where(apart, apart_lost_s, 0.0),
        noise_s2=noise_s2 + rest,
        apart=apart,
        alone_s2=(generation, training),
    )
