"""FPL: class prototypes, clustered at the server, that all clients draw their features to."""

from dataclasses import replace
from typing import Any

from unseen.core import Method, Model, Slot
from unseen.core.exchange import Blueprint
from unseen.methods.base import (
    asking,
    cited,
    incompatible,
    trained,
    with_exchange,
    with_gradient,
    with_local,
)
from unseen.methods.combine import Collect
from unseen.methods.gradient import prototypes
from unseen.methods.gradient.prototypes import PrototypeContrast, WithPrototypes
from unseen.methods.options import options_from, picked

SOURCE = "huang2023fpl"
SHARES = (
    "the mean features of each class at the trained model, to the server",
    "means of clusters of these, to every client",
)


@options_from(PrototypeContrast, WithPrototypes)
def add_fpl(method: Method, **options: Any) -> Method:
    """Draw features to prototypes of their class from all clients.

        min  mean_n [ℓ_n − log (Σ_{c ∈ C_y} e^{s(z, c)/τ} / Σ_{c ∈ C} e^{s(z, c)/τ}) + ‖z − u_y‖²/d]

    z: the d features that enter the head; C_y: the cluster prototypes of class y, C: of all; u_y:
    the mean of C_y. Each client sends the mean features of its classes, the server clusters those
    of each class (FINCH) and sends the clusters' means, so that a domain with many clients counts
    no more in u_y than one with few.

    Note:
        Prototypes are of those who took part in the last round; in round 0 there are none. The two
        terms take a pass of their own. Classes are clustered in the clear: no channel that hides
        single replies can carry this method.

    Departs from:
        the released code in that the means are of the trained model on the whole training split, in
        evaluation mode, and not of what passed while the last epoch changed it.
    """
    if cited(SOURCE) in method.references:
        raise incompatible(method, "fpl", "draws to prototypes already.", "Set its own pull.")
    contrast = picked(PrototypeContrast, options)
    changed = with_gradient(method, lambda g: PrototypeContrast(g, **contrast), SOURCE)
    changed = with_local(changed, lambda local: WithPrototypes(local, options["least"]))
    before, shares = changed.sized, (*changed.shares, *SHARES)

    def counted(whole: Method, model: Model, blueprint: Blueprint) -> Method:
        if before is not None:
            whole = before(whole, model, blueprint)
        return replace(with_clusters(whole, blueprint.classes or 2), sized=None)

    return asking(replace(with_clusters(changed, 0), sized=counted, shares=shares), "classes")


def with_clusters(method: Method, classes: int) -> Method:
    """Return the method whose server clusters the prototypes of so many classes."""
    exchange, name = trained(method), prototypes.PROTOTYPES
    apply = prototypes.Clusters(classes)
    slot = Slot(Collect(), apply=apply, sends="value", start=prototypes.first_row)
    return with_exchange(method, replace(exchange, slots={**exchange.slots, name: slot}))
