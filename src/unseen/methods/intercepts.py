"""Site-specific intercepts: stratified biases, and a chosen one for the new site."""

from unseen.core import Method
from unseen.errors import Incompatible
from unseen.local.intercepts import OwnIntercepts
from unseen.local.scaffold import CONTROL
from unseen.local.train import Train
from unseen.methods.base import cited, citing, incompatible, local_training, trained, with_local


def add_intercepts(method: Method, *, head: str | None = None) -> Method:
    """Give every site its own bias in the last layer; a new site has the mean of them.

        f_k(x) = W h(x) + b_k,   b = Σ_k p_k b_k

    Where an outcome is more frequent at one site than at another for reasons that the inputs do
    not tell, shared weights need not explain it. Each site keeps its b_k and sends it as part of
    its model, so that the server's bias is the mean, by the weights of the method's rule.

    Args:
        method: The method that is changed.
        head: the last layer's name, by default the last linear one.
    """
    if cited("debray2013framework") in method.references:
        raise incompatible(method, "intercepts", "has its own already.")
    if "model" not in trained(method).slots or method.rounds is not None:
        why = "does not train a network of its own."
        raise incompatible(method, "intercepts", why, "Put the modifier on its members.")
    if not isinstance(local_training(method), Train):
        raise Incompatible(
            f"{method.name}+intercepts",
            f"a site of {method.name} does not train the model, so no bias of its own would move.",
            remedy="Put the modifier on a method whose sites train, as in fedavg+intercepts.",
        )
    if CONTROL in trained(method).slots:
        raise Incompatible(
            f"{method.name}+intercepts",
            f"the corrections of {method.name} make all sites follow one gradient, and so their "
            "biases too.",
        )
    return citing(
        with_local(method, lambda local: OwnIntercepts(local, head)), "debray2013framework"
    )
