"""Parts around parts: a local around a local, a gradient around a gradient; what each can do."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from unseen.ranges import Checked

P = TypeVar("P")


class Part(Checked):
    """What a part of a method says of itself; what says nothing can do nothing special.

    A class speaks for itself alone: what inherits from it must say again what it can do (`able`).

    Attributes:
        clips_per_example: It touches the client's examples through the innermost gradient alone, so
            that noise on each example's clipped gradient covers all of it.
        stackable: Many models train with it as one batch.
        outermost: It puts the client's own part of the model in and takes it out again, so that
            what is added must come inside of it.
        at_sites: It is a server's step that sites can take for a server that reads nothing: it
            depends on the sums and on what the sealed state carries alone.
        adds_exactly: Its rows are float64 sums without rounding, which add up to the same bits in
            any order.
        sends_sums: Its rows are values of its own, never the model's vector, so that clients of one
            process may look at one copy of the model in turn.
    """

    clips_per_example: ClassVar[bool] = False
    stackable: ClassVar[bool] = False
    outermost: ClassVar[bool] = False
    at_sites: ClassVar[bool] = False
    sends_sums: ClassVar[bool] = False
    adds_exactly: ClassVar[bool] = False


class Wrapper(Part):
    """A frozen dataclass around another part of its kind, its field `inner`."""

    inner: Any

    def around(self, inner: Any) -> Any:
        return replace(self, inner=inner)  # type: ignore[type-var]


def able(part: object, what: str) -> bool:
    """Return whether the part's own class, not one that it inherits from, says that it can."""
    return bool(vars(type(part)).get(what, False))


def layers(part: Any) -> Iterator[Any]:
    """Yield the part, what it wraps, what that wraps, ..."""
    yield part
    if isinstance(part, Wrapper):
        yield from layers(part.inner)


def innermost(part: Any) -> Any:
    """Return what all wrappers are around."""
    *_, last = layers(part)
    return last


def rewrapped(part: P, change: Callable[[P], P]) -> P:
    """Return the part with its innermost one changed."""
    return part.around(rewrapped(part.inner, change)) if isinstance(part, Wrapper) else change(part)
