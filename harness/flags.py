"""torchtitan's options as a person writes them in ``train.flags``: ``--a.b=1``, ``--a.b 1``, ``--a.b``, ``--a.no-b``"""

from __future__ import annotations

from collections.abc import Sequence


def value(flags: Sequence[str], name: str) -> str | None:
    """The last value of option ``name`` (dots and underscores, without dashes in front); empty for a bare flag.

    None where the option is not given. Dashes within a name count as underscores, as in torchtitan's command line.
    """
    found = None
    for flag, after in zip(flags, [*flags[1:], "--"], strict=False):
        key, equals, text = flag.partition("=")
        if key.startswith("--") and key[2:].replace("-", "_") == name:
            found = text if equals else "" if after.startswith("--") else after
    return found


def is_on(flags: Sequence[str], name: str) -> bool:
    """Whether a switch is on: ``--a.b`` and ``--a.b=True`` are, ``--a.no-b`` and ``--a.b=False`` are not."""
    group, dot, last = name.rpartition(".")
    if value(flags, f"{group}{dot}no_{last}") is not None:
        return False
    given = value(flags, name)
    return given is not None and given.lower() not in ("false", "0", "no")
