"""The check that every metric makes of its scores and labels first."""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from torch import Tensor

from unseen.errors import UnseenError

Value = TypeVar("Value")


def of_finite(metric: Callable[[Tensor, Tensor], Value]) -> Callable[[Tensor, Tensor], Value]:
    """Return the metric, which first refuses outputs or labels that are NaN or infinite.

    NaN has no place in an order, and sorting puts it anywhere: the area under a curve would follow
    the order of the rows. Of infinite logits neither a difference nor a mean is a number.
    """

    @wraps(metric)
    def checked(outputs: Tensor, y: Tensor) -> Value:
        for what, values in (("outputs", outputs), ("labels", y)):
            wrong = ~values.isfinite()
            if bool(wrong.any()):
                rows = int(wrong.flatten(1).any(1).sum()) if wrong.ndim > 1 else int(wrong.sum())
                raise UnseenError(
                    f"a metric needs finite {what}; found NaN or infinite values in {rows} of "
                    f"{len(values)} rows.",
                    remedy="Leave these rows out, or look at what the model made of them.",
                )
        return metric(outputs, y)

    return checked
