"""Errors and the checks that raise them: what was expected, what was found, what to do."""

import copyreg
import difflib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any


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
        # Whatever the parameters of a kind's own __init__: it is not called again.
        return copyreg.__newobj__, (type(self), str(self)), vars(self)  # type: ignore[attr-defined]


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


class TooFewRows(UnseenError):
    """A sum to which too few rows contribute: whoever reads it would read them."""


class Diverged(BadReply):
    """Numbers that are no longer finite: training has diverged."""


class Unreadable(UnseenError):
    """Files that cannot be used, one error for all.

    Attributes:
        faults: What is wrong with each.
        places: Their places among all the files.
        readable: Domain -> how many of its files can be used, where that is known.
    """

    def __init__(
        self, faults: Iterable[object], total: int, most: int = 20, places: Iterable[int] = ()
    ) -> None:
        self.faults, self.places = tuple(map(str, faults)), frozenset(places)
        self.readable: Mapping[str, int] = {}
        listed, more = " ".join(self.faults[:most]), len(self.faults) - most
        rest = f" (and {more} more)" if more > 0 else ""
        text = f"{len(self.faults)} of {total} images cannot be used: {listed}{rest}"
        super().__init__(self.faults[0] if len(self.faults) == 1 else text)


class Departed(BadReply):
    """Clients that gave no answer that can be used; the exchange begins again without them.

    Attributes:
        names: The clients.
        faults: Client -> what is wrong with its answer; nothing where none came.
    """

    def __init__(self, names: Iterable[str], faults: Mapping[str, str] | None = None) -> None:
        self.names, self.faults = tuple(names), dict(faults or {})
        silent = [name for name in self.names if name not in self.faults]
        words = [f"{', '.join(silent)} stopped answering within an exchange."] if silent else []
        words += [f"{name}: {self.faults[name]}" for name in self.names if name in self.faults]
        super().__init__(" ".join(words))


def optional(module: str, what: str, extra: str, instead: str = "") -> Any:
    """Import a module of an extra; what is lacking raises the error that `absent` returns."""
    try:
        return import_module(module)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name:
            raise absent(error.name, what, extra, instead) from error
        fault = f"cannot be imported: {error}"
        raise absent(module, what, extra, instead, fault) from error


def absent(
    module: str, what: str, extra: str, instead: str = "", fault: str = "is not installed"
) -> UnseenError:
    """Return the error for a package of an extra that is not there.

    Example:
        >>> print(absent("fastapi", "unseen serve needs", "serve", "take unseen predict"))
        unseen serve needs fastapi, which is not installed. Run pip install "unseen[serve]", or
        take unseen predict.

    Args:
        module: The package, or a module in it.
        what: What needs it, and the verb.
        extra: The extra that installs it.
        instead: What works without it, if anything does.
        fault: What is the matter with it.
    """
    package = module.partition(".")[0]
    other = f", or {instead}" if instead else ""
    return UnseenError(
        f"{what} {package}, which {fault}.",
        remedy=f'Run pip install "unseen[{extra}]"{other}.',
        expected=package,
        found=fault,
    )


#: Kinds of names that `unseen list` has, and its word for them.
LISTED = {
    **dict.fromkeys(("method", "modifier"), "methods"),
    **{"data set": "datasets", "model": "models", "study": "studies"},
}
#: Up to how many names an error lists, and how many of more where `unseen list` has the rest.
MOST, FEW = 12, 5


@contextmanager
def noting(note: str) -> Iterator[None]:
    """Add a note to an error of the input."""
    try:
        yield
    except UnseenError as error:
        error.add_note(note)
        raise


def nearest(kind: str, name: str, candidates: Iterable[str]) -> UnseenError:
    """Return the error for an unknown name, with the nearest right one.

    That is the first of the names that contain it as a word, else the most similar. If there are
    many names, the message lists only the nearest.

    Example:
        >>> print(nearest("method", "fedagv", ["fedavg", "ppdg"]))
        unknown method 'fedagv'; did you mean 'fedavg'? Known: fedavg, ppdg.

    Args:
        kind: What the name is of; those of `LISTED` refer to `unseen list`.
        name: The unknown name.
        candidates: The right names, in an order of preference.
    """
    names = list(candidates)
    ratio = {k: difflib.SequenceMatcher(None, k, name).ratio() for k in sorted(names)}
    # Among equally close ones, the one that begins alike.
    close = [(ratio[k], k[:1] == name[:1], k) for k in ratio if ratio[k] >= 0.5]
    best = next((k for k in names if name in k.split("-")), max(close)[2] if close else "")
    hint = f"; did you mean {best!r}?" if best else "."
    listed, rest = f"Known: {', '.join(ratio) or 'none'}", ""
    if len(ratio) > MOST:
        ranked = sorted(ratio, key=lambda k: (k != best, -ratio[k], k))
        few = ranked[: FEW if kind in LISTED else MOST]
        listed = f"Nearest of {len(ratio)}: {', '.join(few)}"
        rest = f" (`unseen list {LISTED[kind]}` names all)" if kind in LISTED else ""
    return UnseenError(f"unknown {kind} {name!r}{hint} {listed}{rest}.")


def check_known(kind: str, candidates: Collection[str], *names: str) -> None:
    """Refuse names that are not among the known ones, with the nearest right one."""
    for name in names:
        if name not in candidates:
            raise nearest(kind, name, candidates)


def choice(name: str, value: object, allowed: Sequence[object]) -> None:
    """Refuse a value that is not one of the allowed names."""
    if value not in allowed:
        close = difflib.get_close_matches(str(value), map(str, allowed), n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        names = ", ".join(map(repr, allowed))
        what = f"{name} must be one of {names}; found {value!r}{hint}."
        raise UnseenError(what, expected=names, found=repr(value))


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

    Args:
        name: What the value is of, for the message.
        value: The value.
        low: The lower end of the interval.
        high: The upper end, which is inside.
        whole: Whether it must be an integer.
        open_low: Whether the lower end is outside.
    """
    if isinstance(value, int if whole else int | float) and not isinstance(value, bool):
        inside = low < value <= high if open_low else low <= value <= high
        if inside and math.isfinite(value):
            return
    left = "(" if open_low or low == -math.inf else "["
    right = ")" if high == math.inf else "]"
    expected = f"{'an integer' if whole else 'a number'} in {left}{low:g}, {high:g}{right}"
    what = f"{name} must be {expected}; found {value!r}."
    raise UnseenError(what, expected=expected, found=repr(value))


def unadapted(method: str) -> UnseenError:
    """Return the refusal of a network that a method should have changed before it trains."""
    return UnseenError(
        f"{method} adds layers to the network that it trains, and this network has none of them.",
        remedy="Use unseen.Study, unseen.train, or an estimator such as FederatedClassifier.",
    )
