"""What a study's `privacy.channel` and `privacy.server` make of a job, and what they refuse."""

from __future__ import annotations

from typing import Any

from unseen.backend.inprocess import InProcess
from unseen.errors import UnseenError
from unseen.exchange import Method
from unseen.privacy import channel
from unseen.study.records import Record
from unseen.study.spec import Study


def checked(method: Method, study: Study) -> Method:
    """The method, if the study's channel and server can serve it."""
    kind = channel.read(study.privacy.channel, study.privacy.server)
    if isinstance(kind, channel.Clear):
        return method
    channel.check(kind, study.privacy.server, method)
    looks = ["record = gram"] if "gram" in study.record else []
    looks += ["locals"] if "locals" in study.save else []
    looks += ["cross_evaluation"] if study.cross_evaluation else []
    if looks:
        raise UnseenError(
            f"{', '.join(looks)} looks at updates in the clear, which nobody sees on the channel "
            f"{study.privacy.channel!r}. Leave it out, or take the channel 'clear'."
        )
    if study.privacy.server == "blind" and study.save:
        raise UnseenError(
            f"save = {list(study.save)} writes the server's model, and with privacy.server = "
            "'blind' it has none. The sites hold it."
        )
    return method


def behind(study: Study, method: Method, backend: Any) -> tuple[Any, Method]:
    """The backend behind the study's channel, and the method as the server plays it."""
    kind = channel.read(study.privacy.channel, study.privacy.server)
    if isinstance(backend, InProcess) and not isinstance(kind, channel.Clear):
        names = sorted(backend.clients)
        backend = channel.wrap(kind, study.privacy.server, method, backend, names)
    played = getattr(backend, "method", None)  # a backend of real sites has a channel of its own
    if played is None and not isinstance(kind, channel.Clear):
        raise UnseenError(
            f"{type(backend).__name__} does not carry privacy.channel = "
            f"{study.privacy.channel!r}: updates would travel in the clear. Run the study in "
            "process, or leave the channel out."
        )
    return backend, method if played is None else played(method)


def undecided(backend: Any) -> list[Record]:
    """Pairs whose inner product could not be told from 0, since the last call."""
    tell = getattr(backend, "undecided", None)
    return [] if tell is None else [dict(item._asdict()) for item in tell()]


def protocol(study: Study) -> list[str]:
    """What stands under a table about the channel."""
    kind = channel.read(study.privacy.channel, study.privacy.server)
    if isinstance(kind, channel.Clear):
        return []
    line = f"updates travel by {study.privacy.channel}"
    if study.privacy.server == "blind":
        line += "; the server never holds the model after round 0"
    return [f"{line}; figures equal those in the clear up to rounding, not bit for bit"]
