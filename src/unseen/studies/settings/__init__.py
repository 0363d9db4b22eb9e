"""What is asked for, as data: studies, hold-out plans, names, published figures."""

__all__ = ["holdout", "named", "published", "study"]
