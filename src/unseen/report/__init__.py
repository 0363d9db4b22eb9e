"""The report of a study: one page that opens from disk, its tables, and every figure as a file.

Figures are data first (`figures`), drawn second (`draw`): the drawing never decides what is shown.
Nothing here trains, and nothing needs the data set, save t-SNE and loss surfaces.
"""

__all__ = ["write"]
