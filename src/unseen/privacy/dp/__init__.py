"""Differential privacy by clipping and noise: of single examples (DP-SGD), or of whole clients.

Both are put on at the client, around the method that a study names, so that whoever receives a
reply, the server first, receives what is noised already. What a method sends besides its clipped
and noised rows is refused or left out.
"""

from typing import Any

from unseen.core.exchange import Method
from unseen.errors import UnseenError
from unseen.expression import parse, resolve
from unseen.privacy.dp.clients import Clients, Denoised, NoisedRows, with_client_noise
from unseen.privacy.dp.examples import (
    Examples,
    Guarded,
    Noised,
    Poisson,
    rate_of,
    steps_of,
    with_example_noise,
)
from unseen.privacy.dp.noise import mechanism

__all__ = [
    "Clients", "Denoised", "Examples", "Guarded", "Noised", "NoisedRows", "Poisson", "mechanism",
    "private", "rate_of", "read", "steps_of",
]  # fmt: skip


def read(examples: str, clients: str) -> tuple[Examples | None, Clients | None]:
    """Return the study's two settings, `dp(clip=1.0, noise=1.1, delta=1e-5)` or nothing."""
    noises: list[Any] = []
    for where, text, kind in (("examples", examples, Examples), ("clients", clients, Clients)):
        calls = parse(text) if text else [None]
        if len(calls) != 1:
            raise UnseenError(f"privacy.{where} takes one dp(...); found {text!r}.")
        call = calls[0]
        noises.append(call and resolve(f"noise of privacy.{where}:", call, {"dp": kind}))
    return noises[0], noises[1]


def private(
    method: Method,
    examples: Examples | None = None,
    clients: Clients | None = None,
    participation: float | int = 1.0,
    summed: bool = False,
) -> Method:
    """Return the method with its clients' noise.

    `summed` says whether the channel shows the server no more than sums of rows.
    """
    if examples is not None:
        method = with_example_noise(method, examples)
    if clients is not None:
        method = with_client_noise(method, clients, participation, summed)
    return method
