"""Models that are fitted from sums over sites exactly as on pooled data.

Each file has both ends: what a site sends (a local), and what the server makes of the sum (a step).
"""

from unseen.exact.boosted_views import BoostedForest
from unseen.exact.boosting import Begin, Counts, Grow
from unseen.exact.histograms import Histograms
from unseen.exact.newton import Derivatives, Newton, Shape
from unseen.exact.random_counts import LeftOfCuts
from unseen.exact.random_growth import Branch, Plant
from unseen.exact.random_views import Sizes
from unseen.exact.screening import AtRate, Least, Scores
from unseen.exact.stacking import Judge, Judged, LeftOut, Weigh, products, simplex

__all__ = [
    "AtRate", "Begin", "BoostedForest", "Branch", "Counts", "Derivatives", "Grow", "Histograms",
    "Judge", "Judged", "Least", "LeftOfCuts", "LeftOut", "Newton", "Plant", "Scores", "Shape",
    "Sizes", "Weigh", "products", "simplex",
]  # fmt: skip
