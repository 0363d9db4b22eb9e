"""The report of a study: one page that opens from disk, its tables, and every figure as a file.

Figures are data first (`figures`), drawn second (`plot`): the drawing never decides what is shown.
Nothing here trains or reads the data set.
"""

__all__ = ["write"]
