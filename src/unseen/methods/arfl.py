"""ARFL: clients whose data the model fits badly are weighted down."""

from typing import Any

from unseen.core import Method
from unseen.methods.base import federated, reporting
from unseen.methods.combine import AutoWeighted
from unseen.methods.options import options_from
from unseen.methods.recipe import Training


@options_from(AutoWeighted)
def arfl(training: Training, **options: Any) -> Method:
    """Average by weights that solve min_α Σ_i α_i L_i(x) + (Λ/2) Σ_i α_i²/n_i over the simplex.

        α_i = n_i max(η − L_i(x), 0) / Λ,   Σ_i α_i = 1,   Λ = reg_weight · Σ_i n_i

    L_i(x): the loss of the received model on client i's training split, in evaluation mode; n_i:
    its examples.

    Note:
        `arfl+ga` cannot be, since both own the weights; as the prior of a rule, as in `arfl+ppdg`,
        they replace p_i.

        Against clients with corrupted data; a client that is merely hard is weighted down all the
        same. Only those who take part send their loss; the others count with their last one. For a
        sample whose weights are all 0 see `unseen.methods.combine.AutoWeighted`.

    Departs from:
        the released code in the first round, which there has weights by examples, and in that a
        client counts from when it is first seen, where there all clients are evaluated before the
        first round.
    """
    return reporting(federated("arfl", training, AutoWeighted(**options), "li2022arfl"))
