"""Local training: the only loop over batches, and what wraps it."""

from unseen.methods.local.train import Train

__all__ = ["Train"]
