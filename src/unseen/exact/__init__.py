"""Models that are fitted from sums over sites exactly as on pooled data.

Each file has both ends: what a site sends (a local), and what the server makes of the sum (a step).
"""

from unseen.exact.boosting import Begin, Counts, Grow
from unseen.exact.forest import Forest
from unseen.exact.histograms import Histograms
from unseen.exact.newton import Derivatives, Newton, Shape
from unseen.exact.screening import AtRate, Least, Scores
from unseen.exact.stacking import Judge, Judged, LeftOut, Weigh, products, simplex

__all__ = [
    "AtRate", "Begin", "Counts", "Derivatives", "Forest", "Grow", "Histograms", "Judge", "Judged",
    "Least", "LeftOut", "Newton", "Scores", "Shape", "Weigh", "products", "simplex",
]  # fmt: skip
