"""Studies: those of the papers' tables and figures, and those of unseen's own evidence."""

__all__: list[str] = []
