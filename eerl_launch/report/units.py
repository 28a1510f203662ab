"""Numbers as people read them: three significant digits, a unit, "–" for what is not known."""

from __future__ import annotations

UNKNOWN = "–"
MINUS = "\N{MINUS SIGN}"


def plain(value: float | None, digits: int = 0) -> str:
    """A number with thousands separated by commas and a real minus sign."""
    return UNKNOWN if value is None else f"{value:,.{digits}f}".replace("-", MINUS)


def significant(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits, never in exponent form."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    magnitude = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    if magnitude == 0:
        places, size = 0, abs(value)
        while size < 1 and places < 12:
            size *= 10
            places += 1
        return plain(value, min(places + digits - 1, 12))
    return plain(value, max(0, digits - magnitude))


def energy_kwh(energy_j: float | None) -> str:
    """Joules in kWh, MWh or Wh."""
    if energy_j is None:
        return UNKNOWN
    value = energy_j / 3.6e6
    if abs(value) >= 1000:
        return f"{significant(value / 1000)} MWh"
    return f"{significant(value)} kWh" if abs(value) >= 0.1 else f"{significant(value * 1000)} Wh"


def energy_j(value: float | None) -> str:
    """Joules in J, kJ, MJ or GJ."""
    if value is None:
        return UNKNOWN
    for factor, unit in ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ")):
        if abs(value) >= factor:
            return f"{significant(value / factor)} {unit}"
    return f"{significant(value)} J"


def power(value: float | None) -> str:
    """Watts in W or kW."""
    if value is None:
        return UNKNOWN
    return f"{significant(value / 1000)} kW" if abs(value) >= 10_000 else f"{plain(value)} W"


def duration(seconds: float | None) -> str:
    """Seconds as 8.3 s, 4 min 10 s or 2 h 05 min."""
    if seconds is None:
        return UNKNOWN
    if abs(seconds) < 60:
        return f"{seconds:.1f} s".replace("-", MINUS)
    total = round(seconds)
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total // 3600:,} h {total % 3600 // 60:02d} min"


def percent(fraction: float | None, digits: int = 0) -> str:
    """A share as a percentage."""
    return UNKNOWN if fraction is None else f"{plain(100 * fraction, digits)} %"


def signed(value: float | None, digits: int = 1) -> str:
    """A number with its sign, so that a gain and a loss cannot be mixed up."""
    if value is None:
        return UNKNOWN
    rounded = round(value, digits) + 0.0  # no "minus zero"
    return ("+" if rounded > 0 else "") + plain(rounded, digits)


def signed_percent(value: float | None, digits: int = 1) -> str:
    """Percent with its sign."""
    return UNKNOWN if value is None else f"{signed(value, digits)} %"


def interval(low: float | None, high: float | None, digits: int = 1) -> str:
    """A 95 % interval in percent, as "10.9 to 12.4"."""
    if low is None or high is None:
        return "spread not known"
    return f"{plain(low, digits)} to {plain(high, digits)} %"


def clock(mhz: float | None) -> str:
    """A clock in MHz; the governor when none is set."""
    return "governor" if mhz is None else f"{plain(mhz)} MHz"


def count(number: float | None, one: str, many: str | None = None) -> str:
    """A number with its noun."""
    noun = one if number == 1 else (many or one + "s")
    return f"{plain(number)} {noun}"
