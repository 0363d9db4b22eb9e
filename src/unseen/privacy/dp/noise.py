"""What both kinds of noise refuse, and what both keep at the client."""

from __future__ import annotations

import math
from typing import Any

from unseen.core.exchange import Exchange
from unseen.core.parts import layers
from unseen.core.types import Memory
from unseen.errors import Incompatible, UnseenError, number
from unseen.privacy.stream import KEY, SECRET

#: What a client may report in addition to noised rows: it follows from the study and from the size
#: of its training split, which counts as public.
PUBLIC = frozenset({"examples", "steps", "accumulated"})
#: What the server itself adds to the table.
SERVERS = frozenset({"client", "progress", "rounds", "prior"})


def check_noise(where: str, clip: object, noise: object, delta: object) -> None:
    """Refuse a clip, noise or δ that mean nothing."""
    if clip != math.inf:
        number(f"privacy.{where}: dp(clip)", clip, 0, open_low=True)
    number(f"privacy.{where}: dp(noise)", noise, 0)
    number(f"privacy.{where}: dp(delta)", delta, 0, 1, open_low=True)
    if clip == math.inf and noise:
        raise UnseenError(
            f"privacy.{where}: noise is in units of clip, which must be finite unless noise is 0."
        )


def check_scalars(name: str, exchange: Exchange, allowed: frozenset[str]) -> None:
    """Refuse rules that read what a private client does not report."""
    for slot in exchange.slots.values():
        needs = slot.combine.all_needs() if slot.combine is not None else ()
        if lacking := sorted({*needs} - allowed - SERVERS):
            hint = "; take weights='uniform'" if "examples" in lacking else ""
            raise Incompatible(
                f"{name}",
                f"its weights depend on the clients' data through what they "
                f"report ({', '.join(lacking)}), on which there is no noise{hint}.",
            )


def mechanism(local: Any, kind: type[Any]) -> Any:
    """Return the `Guarded` or `NoisedRows` among a local's wrappers, or None."""
    return next((part for part in layers(local) if isinstance(part, kind)), None)


def kept(after: Memory, ready: Memory) -> Memory:
    """Return the memory with the secret, without the key of an exchange that is over."""
    return {**{n: v for n, v in after.items() if n != KEY}, SECRET: ready[SECRET]}
