"""Methods of finished studies with the site as the unit: `unseen compare`."""

__all__: list[str] = []
