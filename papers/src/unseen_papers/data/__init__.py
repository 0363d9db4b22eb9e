"""Benchmarks of the papers and of unseen's own evidence."""

from unseen_papers.data import (
    camelyon,
    cifar,
    digit_makers,
    eicu,
    fmow,
    mnist,
    poverty,
    site_tables,
    skin,
)

__all__ = ["INFOS"]

INFOS = (
    mnist.INFO, mnist.COLOURED_INFO, cifar.INFO, camelyon.INFO, poverty.INFO, fmow.INFO, skin.INFO,
    eicu.INFO, *site_tables.INFOS, digit_makers.INFO,
)  # fmt: skip
