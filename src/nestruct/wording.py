"""Numbers and options as people read them; progress, tables and pages share these."""

import math
from typing import Any

_MOST_SAID = 1000  # characters: a stranger's file may have a name or a value of any length


def number(value: float | None, like: float | None = None) -> str:
    """A metric with the digits one compares, or with those of ``like``.

    Example:
        >>> number(0.8731), number(12.3051), number(1204.4), number(0.01234, like=12.3)
        ('0.873', '12.31', '1,204', '0.01')
    """
    if value is None or not math.isfinite(value):
        return "not finite"
    size = abs(value if like is None else like)
    if size >= 1e7:
        return f"{value:.3g}"
    if size >= 1000 or size == 0:
        return f"{value:,.0f}"
    if size < 0.01:
        return f"{value:.2g}"
    return f"{value:.{1 if size >= 100 else 2 if size >= 10 else 3}f}"


def count(value: float) -> str:
    """A large count in short.

    Example:
        >>> count(950), count(12_345), count(1_234_567)
        ('950', '12 k', '1.2 M')
    """
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= unit:
            return f"{value / unit:.{1 if value < 10 * unit else 0}f}".removesuffix(".0") + name
    return f"{value:.3g}"


def duration(seconds: float) -> str:
    """Wall-clock as one says it.

    Example:
        >>> duration(3.21), duration(140), duration(3900)
        ('3.2 s', '2 min 20 s', '1 h 05 min')
    """
    if seconds < 59.5:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def short_time(seconds: float) -> str:
    """As `duration`, of what may be over in less than a second.

    Example:
        >>> short_time(0.0023), short_time(0.123), short_time(3.21)
        ('2.3 ms', '123 ms', '3.2 s')
    """
    if seconds >= 1:
        return duration(seconds)
    return f"{1e3 * seconds:.{0 if seconds >= 0.01 else 1}f} ms"


def flatten(tables: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, each option by its full name; tuples as lists, as TOML has them.

    Example:
        >>> flatten({"seed": 1, "model": {"depth": 2}})
        {'seed': 1, 'model.depth': 2}
    """
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = list(value) if isinstance(value, tuple) else value
    return flat


def printable(text: str) -> str:
    """One line without control characters: what a stranger's file says may be among it."""
    plain = " ".join(text.split())
    if len(plain) > _MOST_SAID:
        plain = f"{plain[: _MOST_SAID // 2]} ... {plain[-_MOST_SAID // 2 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain)
