"""Models that are fitted from sums over sites exactly as on pooled data.

Each file has both ends: what a site sends (a local), and what the server makes of the sum (a step).
"""

from unseen.methods.exact.boosted_views import BoostedForest
from unseen.methods.exact.boosting import Begin, Counts, Grow
from unseen.methods.exact.histograms import Histograms
from unseen.methods.exact.newton import Derivatives, Newton, Shape
from unseen.methods.exact.random_counts import LeftOfCuts
from unseen.methods.exact.random_growth import Branch, Plant
from unseen.methods.exact.random_views import Sizes
from unseen.methods.exact.screening import AtRate, Least, Scores
from unseen.methods.exact.stacking import Judge, Judged, LeftOut, Weigh, products, simplex

__all__ = [
    "AtRate", "Begin", "BoostedForest", "Branch", "Counts", "Derivatives", "Grow", "Histograms",
    "Judge", "Judged", "Least", "LeftOfCuts", "LeftOut", "Newton", "Plant", "Scores", "Shape",
    "Sizes", "Weigh", "products", "simplex",
]  # fmt: skip
