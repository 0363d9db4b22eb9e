"""q-FFL: fairness by a power of the clients' losses."""

from typing import Any

from unseen.core import Method
from unseen.methods.base import incompatible, local_training, reporting
from unseen.methods.combine import QFair
from unseen.methods.local.train import Train
from unseen.methods.new_rule import replace_rule
from unseen.methods.options import options_from
from unseen.ranges import Positive


@options_from(QFair, without=("prior",))
def add_qffl(method: Method, *, step: Positive | None = None, **options: Any) -> Method:
    """Descend Σ_i p_i F_i^(q+1) / (q+1), in which clients with large losses count more (q-FedAvg).

        x ← x + Σ_i p_i L_i^q u_i / Σ_i p_i h_i,   h_i = L_i^q + q L_i^(q−1) ‖u_i‖² / η

    L_i: the loss of the received model on client i's training split, with the released code's
    1e-10; u_i: its update; h_i bounds the curvature of one term where 1/η is the Lipschitz constant
    of the gradient. q=0 is FedAvg.

    Args:
        method: The method that is changed.
        step: η; none for the training's learning rate, as in the paper, where it suits FedAvg.
        **options: The other options of the page.

    Note:
        The squared length is that of a whole update, so a step is shorter than FedAvg's.

    Departs from:
        the paper in that all clients take part and are weighed by p_i, where it samples them by
        p_i and weighs all equally.
    """
    local = local_training(method)
    rate = local.training.optimiser.lr if isinstance(local, Train) else 1.0
    options = {**options, "step": step or rate}
    changed = replace_rule(method, "qffl", "li2020qffl", QFair, options)
    if not isinstance(local, Train):
        why = "takes one gradient, not steps whose length the learning rate tells."
        raise incompatible(method, "qffl", why)
    return reporting(changed)
