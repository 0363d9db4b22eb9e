"""Where clients and jobs run: in this process, in batches, over processes, Ray or Flower."""

from unseen.engine.inprocess import InProcess

__all__ = ["InProcess"]
