"""Parts around parts: a local around a local, a gradient around a gradient; what each can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

P = TypeVar("P")


class Part:
    """What a part of a method says of itself; what says nothing can do nothing special.

    A class speaks for itself alone: what inherits from it must say again what it can do, see
    `able`.

    clips_per_example: it touches the client's examples through the innermost gradient alone, so
    that noise on each example's clipped gradient covers all of it. stackable: many models train
    with it as one batch. outermost: it puts the client's own part of the model in and takes it out
    again, so that what is added must come inside of it.
    """

    clips_per_example: ClassVar[bool] = False
    stackable: ClassVar[bool] = False
    outermost: ClassVar[bool] = False


class Wrapper(Part):
    """A frozen dataclass around another part of its kind, its field `inner`."""

    inner: Any

    def around(self, inner: Any) -> Any:
        """The same wrapper around another part."""
        return replace(self, inner=inner)  # type: ignore[type-var]


def able(part: object, what: str) -> bool:
    """Whether the part's own class, and not one that it inherits from, says that it can."""
    return bool(vars(type(part)).get(what, False))


def layers(part: Any) -> Iterator[Any]:
    """The part, what it wraps, what that wraps, ..."""
    yield part
    while isinstance(part, Wrapper):
        part = part.inner
        yield part


def innermost(part: Any) -> Any:
    """What is left when all wrappers are taken off."""
    *_, last = layers(part)
    return last


def rewrapped(part: P, change: Callable[[P], P]) -> P:
    """The part with its innermost one changed."""
    if isinstance(part, Wrapper):
        changed: P = part.around(rewrapped(part.inner, change))
        return changed
    return change(part)
