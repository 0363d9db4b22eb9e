"""A site's memory on its own disk: Flower keeps no process from one message to the next."""

import hashlib
import io
import re
from pathlib import Path

import torch

from unseen.core.atomic import write_atomically
from unseen.core.client import Memories

MEMORY, KEPT = "memory.pt", "kept"


def load(folder: Path) -> Memories:
    """Return all memories in a folder; none where there is no file, or a damaged one."""
    path = folder / MEMORY
    stored = path.read_bytes() if path.exists() else b""
    digest, payload = stored[:32], stored[32:]
    if not payload or hashlib.sha256(payload).digest() != digest:
        return Memories()
    content = torch.load(io.BytesIO(payload), weights_only=True)
    return Memories({name: [(tuple(at), m) for at, m in own] for name, own in content.items()})


def save(folder: Path, memories: Memories) -> None:
    """Write all memories in one step: a site that is killed has the old ones or the new ones."""
    content = {
        client: [
            (list(at), {n: v.detach().cpu().clone() for n, v in memory.items()})
            for at, memory in entries
        ]
        for client, entries in memories.by_client.items()
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    payload = buffer.getvalue()
    write_atomically(folder / MEMORY, hashlib.sha256(payload).digest() + payload)


def slug(text: str) -> str:
    """Return a folder's name: what is readable of the text, and a digest that keeps texts apart.

    Example:
        >>> slug("ppdg(lam=0.2)/switzerland/0")
        'ppdg_lam_0.2_switzerland_0-22fbe1a6'
    """
    readable = re.sub(r"[^A-Za-z0-9.-]+", "_", text).strip("_.")[:60]
    return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
