"""Masks that cancel: a server that follows the protocol learns the weighted sum and no row.

Once the weights are known each client i sends

    y_i = ⌊2^s w_i u_i⌉ + b_i + Σ_{j > i} r_ij − Σ_{j < i} r_ij   mod 2^64

where r_ij is a stream that only i and j can make (X25519 of keys that they make for this sum, HKDF,
ChaCha20), and b_i one that only i can make. The clients have shared the seeds of both among each
other before, so that t of them can make again, for each client, either the b_i of a vector that
came or the r_ij of a client that left: never both. So the sum of the vectors that came is opened,
whoever leaves after the seeds were shared, and no vector by itself is, whatever came late.

Source:
    Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning",
    §4 and 6, with the round that compares who is left.

Departs from:
    The paper: sites know each other's long-term keys from their kits, and vouch for what they
    publish with keys that each two share, instead of signatures.
"""

from unseen.privacy.masks.masked_site import Site
from unseen.privacy.masks.masked_sums import MaskedRows, Server
from unseen.privacy.masks.shares import exposed, fixed, make_keys, masked, stream

__all__ = [
    "MaskedRows", "Server", "Site", "exposed", "fixed", "make_keys", "masked", "stream",
]  # fmt: skip
