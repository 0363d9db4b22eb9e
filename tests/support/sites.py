"""Small federations that every test can use."""

from __future__ import annotations

import torch

from unseen.core.client import Client, Split
from unseen.core.turn import keyed


def federation(count: int = 5, n: int = 40, classes: int = 3, seed: int = 0) -> dict[str, Client]:
    """Clients whose inputs [N, 6] are shifted differently and whose sizes differ."""
    clients = {}
    for k in range(count):
        generator = keyed(f"federation/{seed}/{k}")
        size = n + 7 * k
        y = torch.randint(classes, (size,), generator=generator)
        x = torch.randn(size, 6, generator=generator) + y[:, None] + 0.3 * k
        train, rest = Split(x[:-8], y[:-8]), Split(x[-8:], y[-8:])
        name = f"site-{chr(ord('a') + k)}"
        clients[name] = Client(name, train, rest, classes)
    return clients


def images(count: int = 3, n: int = 24, classes: int = 3, size: int = 8) -> dict[str, Client]:
    """Clients with one-channel images [N, 1, size, size]."""
    clients = {}
    for k in range(count):
        generator = keyed(f"images/{k}")
        y = torch.randint(classes, (n + k,), generator=generator)
        x = torch.rand(n + k, 1, size, size, generator=generator) + 0.2 * y[:, None, None, None]
        name = f"site-{chr(ord('a') + k)}"
        clients[name] = Client(name, Split(x[:-4], y[:-4]), Split(x[-4:], y[-4:]), classes)
    return clients
