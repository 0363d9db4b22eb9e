"""Errors and the checks that raise them: what was expected, what was found, what to do."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence


class UnseenError(ValueError):
    """An input that cannot work. The message is one paragraph: what is wrong, then the remedy.

    Attributes:
        what: What is wrong, as sentences.
        remedy: What to do about it, as sentences; empty where the message has no such part.
        expected, found: What was expected, and what stood in its place, where that is short.
    """

    def __init__(
        self, what: str = "", *, remedy: str = "", expected: str = "", found: str = ""
    ) -> None:
        super().__init__(" ".join(filter(None, (what, remedy))))
        self.what, self.remedy, self.expected, self.found = what, remedy, expected, found

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (type(self), str(self), dict(vars(self)))


def _rebuilt(kind: type[UnseenError], text: str, fields: dict[str, object]) -> UnseenError:
    """An error from another process."""
    error = kind.__new__(kind, text)
    error.args = (text,)
    error.__dict__ |= fields
    return error


class Incompatible(UnseenError):
    """Parts that do not go together: a modifier, a channel or noise, and a method.

    Attributes:
        name: The combination, such as `deepall+ga`.
        why: The reason.
    """

    def __init__(self, name: str, why: str, *, remedy: str = "") -> None:
        super().__init__(f"{name} cannot be: {why}", remedy=remedy)
        self.name, self.why = name, " ".join(filter(None, (why, remedy)))


class BadReply(UnseenError):
    """A client's reply that no rule may use: NaN, infinite or of the wrong shape."""


class Diverged(BadReply):
    """Numbers that are no longer finite: training has diverged."""


class Unreadable(UnseenError):
    """Files that cannot be used, one error for all.

    Attributes:
        faults: What is wrong with each.
        places: Their places among all files that were asked for.
        readable: Domain -> how many of its files can be used, where that is known.
    """

    def __init__(
        self, faults: Iterable[object], total: int, shown: int = 20, places: Iterable[int] = ()
    ) -> None:
        self.faults, self.places = tuple(map(str, faults)), frozenset(places)
        self.readable: Mapping[str, int] = {}
        listed, more = " ".join(self.faults[:shown]), len(self.faults) - shown
        rest = f" (and {more} more)" if more > 0 else ""
        text = f"{len(self.faults)} of {total} images cannot be used: {listed}{rest}"
        super().__init__(self.faults[0] if len(self.faults) == 1 else text)


class Departed(UnseenError):
    """Clients that stopped answering within an exchange, which begins again without them."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        super().__init__(f"{', '.join(self.names)} stopped answering within an exchange.")


#: Kinds of names that `unseen list` has, and its word for them.
LISTED = {
    "method": "methods", "modifier": "methods", "data set": "datasets", "model": "models",
    "study": "studies",
}  # fmt: skip
#: Up to how many names an error lists, and how many of more where `unseen list` has the rest.
MOST, FEW = 12, 5


def nearest(kind: str, name: str, known: Iterable[str]) -> UnseenError:
    """The error for an unknown name, with the nearest right one: of the names in which it is a word
    the first, else the most alike. Of many names only the nearest are listed.

    >>> print(nearest("method", "fedagv", ["fedavg", "ppdg"]))
    unknown method 'fedagv'; did you mean 'fedavg'? Known: fedavg, ppdg.
    """
    given = list(known)
    known = sorted(given)
    close = difflib.get_close_matches(name, known, n=len(known) or 1, cutoff=0.5)
    # Among equally close ones, the one that begins alike.
    alike = {k: difflib.SequenceMatcher(None, k, name).ratio() for k in close}
    nearby = max(close, key=lambda k: (alike[k], k[:1] == name[:1]), default="")
    best = next((k for k in given if name in k.split("-")), nearby)
    hint = f"; did you mean {best!r}?" if best else "."
    return UnseenError(f"unknown {kind} {name!r}{hint} {_names(kind, name, known, best)}.")


def _names(kind: str, name: str, known: Sequence[str], best: str) -> str:
    """All known names, or of many those most like the one that is not."""
    if len(known) <= MOST:
        return f"Known: {', '.join(known) or 'none'}"
    ratio = {k: difflib.SequenceMatcher(None, k, name).ratio() for k in known}
    ranked = sorted(known, key=lambda k: (k != best, -ratio[k], k))
    shown = ", ".join(ranked[: FEW if kind in LISTED else MOST])
    rest = f" (`unseen list {LISTED[kind]}` names all)" if kind in LISTED else ""
    return f"Nearest of {len(known)}: {shown}{rest}"


def choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Refuse a value that is not one of the allowed names."""
    if value not in allowed:
        close = difflib.get_close_matches(str(value), allowed, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        names = ", ".join(repr(a) for a in allowed)
        raise UnseenError(
            f"{name} must be one of {names}; found {value!r}{hint}.",
            expected=names,
            found=repr(value),
        )


def number(
    name: str,
    value: object,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    whole: bool = False,
    open_low: bool = False,
) -> None:
    """Refuse a value that is not a finite number in the interval from `low` to `high`.

    `open_low` leaves the lower end out; `whole` asks for an integer.
    """
    kind = "an integer" if whole else "a number"
    right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if right:
        x = float(value)  # type: ignore[arg-type]
        if math.isfinite(x) and low <= x <= high and not (open_low and x == low):
            return
    left = "(" if open_low or low == -math.inf else "["
    right_end = ")" if high == math.inf else "]"
    interval = f"{left}{low:g}, {high:g}{right_end}"
    expected = f"{kind} in {interval}"
    raise UnseenError(
        f"{name} must be {expected}; found {value!r}.", expected=expected, found=repr(value)
    )
