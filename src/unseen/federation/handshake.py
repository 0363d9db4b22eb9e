"""What a site that asks before it joins and the server's guard agree on."""

from __future__ import annotations

from unseen.version import __version__

#: Where a site asks before it joins; a body is counted and thrown away.
PROBE = "/unseen/probe"
#: Headers of a signed request, as Flower's own.
KEY, SIGNATURE, STAMP = "flwr-public-key", "flwr-signature", "flwr-timestamp"


def versions() -> dict[str, str]:
    """Versions that both sides must agree on."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        flower = version("flwr")
    except PackageNotFoundError:
        flower = "absent"
    return {"unseen": __version__, "flower": flower}
