"""What the server's and the sites' ends of a message agree on."""

from __future__ import annotations

from unseen.core.vector import Model
from unseen.errors import UnseenError

#: Changes whenever a message is made or read otherwise.
PROTOCOL = 4
STATISTICS = "statistics"
REFUSED, FAILED = "refused", "failed"


class Refused(UnseenError):
    """What the site will not do. The message is about the protocol, and goes to the server."""


def fingerprint(model: Model) -> str:
    """Digits that differ whenever two models' parameters or buffers lie otherwise."""
    return f"{model.layout.fingerprint}/{model.buffer_layout.fingerprint}"
