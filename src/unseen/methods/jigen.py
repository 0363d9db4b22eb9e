"""JiGen: clients that also learn to tell the order of an image's shuffled tiles."""

from functools import partial
from typing import Any

from unseen.core import Method
from unseen.data.networks.two_heads import with_order
from unseen.methods import base
from unseen.methods.base import cited, incompatible, with_gradient
from unseen.methods.gradient.puzzle import Jigsaw
from unseen.methods.options import options_from

SOURCE = "carlucci2019jigen"


@options_from(Jigsaw)
def add_jigen(method: Method, **options: Any) -> Method:
    """Solve puzzles of a client's own images beside the task.

        min  mean_n ℓ(h_c(f(x_n)), y_n) + α mean_n CE(h_p(f(z_n)), p_n)

    z_n: image n with its tiles in order p_n, one of P + 1 of which the first is as it was; h_c and
    h_p: two heads on the same features f. The second term needs no label, and nothing leaves a
    client for it but the second head, which is averaged with the model. alpha=0 is FedAvg.

    Note:
        Predictions are the first head's, of whole images. `deepall+jigen` is the method on pooled
        data, as the paper and CSAC's table have it. The puzzles take a pass of their own, which
        moves BatchNorm's statistics too, as shuffled images do in the released code.

    Departs from:
        the released code, which passes each image once, whole or as a puzzle, and classifies the
        puzzles too unless told not to; here, as Eq. 1 is printed, every image is classified as it
        is, so that the loss's own rate is FedAvg's. There the order as it is may be drawn among the
        others, tiles turn grey with probability 0.1, and permutations lie in a file; images are
        cropped to sizes that 3 divides, where here a rest at the right and at the bottom stays. The
        second head begins at 0, not at random.
    """
    if cited(SOURCE) in method.references:
        raise incompatible(method, "jigen", "solves puzzles already.", "Set its own alpha.")
    changed = with_gradient(method, partial(Jigsaw, **options), SOURCE)
    second = partial(with_order, outputs=options["permutations"] + 1)
    return base.asking(base.changed_further(changed, second), "images")
