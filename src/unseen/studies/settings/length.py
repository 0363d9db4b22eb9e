"""How long jobs train: a number of rounds, or until the sources' loss is flat."""

from collections.abc import Mapping
from typing import Any

from unseen.errors import UnseenError
from unseen.expression import parse, resolve


def with_length(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with `rounds = "until-flat(...)"` read as a limit and a patience."""
    rounds = settings.get("rounds")
    if not isinstance(rounds, str) or not rounds.startswith("until"):
        return {**settings}
    return {**settings, **length(rounds)}


def length(rounds: int | str) -> dict[str, int]:
    """Return the settings that a length stands for; a number says nothing of patience.

    Example:
        >>> length("until-flat(patience=5, limit=200)"), length(20)
        ({'rounds': 200, 'patience': 5}, {'rounds': 20})
    """
    if isinstance(rounds, int) or rounds.isdecimal():
        return {"rounds": int(rounds)}
    calls = parse(rounds)
    if len(calls) != 1:
        raise UnseenError(f"rounds is a number or until-flat(...); found {rounds!r}.")
    limits: Any = resolve("number of rounds", calls[0], {"until-flat": until_flat})
    return dict(limits)


def until_flat(*, patience: int = 5, limit: int = 200) -> dict[str, int]:
    """Train until the loss has not fallen for `patience` rounds, and for `limit` at most."""
    return {"rounds": limit, "patience": patience}


def in_words(rounds: int | str, patience: int | None = None) -> str:
    """Return a length as a sentence has it.

    Args:
        rounds: How many, or `until-flat(...)`.
        patience: For how many the loss must not have fallen, where `rounds` does not say it.

    Example:
        >>> in_words(1), in_words("until-flat(patience=5, limit=200)")
        ('1 round', 'at most 200 rounds, until flat for 5')
    """
    own = length(rounds)
    flat, count = own.get("patience", patience), own["rounds"]
    text = f"{count} round{'s' if count != 1 else ''}"
    return f"at most {text}, until flat for {flat}" if flat else text
