"""How good outputs are: metrics by name, and the exchange in which clients measure."""

__all__ = ["bootstrap", "evaluation", "weighted_metrics"]
