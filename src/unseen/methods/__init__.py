"""Methods by name, what can be added to them, and expressions such as `fedprox(mu=0.1)+ga`."""

from unseen.methods.compose import METHODS, MODIFIERS

__all__ = ["METHODS", "MODIFIERS"]
