"""What a server rule answers with, checked where it enters: one's own rule may break its contract.

The checks look at K numbers and at shapes, and change none.
"""

import math
from collections.abc import Mapping

from torch import Tensor

from unseen.core.rows import WithState
from unseen.core.types import Table
from unseen.errors import Diverged, UnseenError

#: How far from 1 the weights of a mean may sum; float32 is off by far less.
APART = 1e-3


def weights_of(
    rule: object, hook: str, answer: object, K: int, table: Table, mean: bool
) -> WithState:
    """Return a rule's weights [K] and its new state, if they are that.

    Args:
        rule: The rule.
        hook: Which of its methods answered.
        answer: What it returned.
        K: How many rows there are.
        table: The scalars that it saw.
        mean: Whether the weights must sum to 1.

    Raises:
        Diverged: If a weight is not a finite number though all scalars are.
    """
    hook = f"{type(rule).__name__}.{hook}"
    weights, state = pair(hook, answer, f"weights [{K}]")
    if weights.shape != (K,):
        raise UnseenError(
            f"{hook} must return one weight for each of the {K} clients of the table, [{K}]; found "
            f"the shape {list(weights.shape)}."
        )
    total = float(weights.sum())
    if not math.isfinite(total):
        if all(bool(values.isfinite().all()) for values in table.values()):
            raise Diverged(
                f"{hook} made weights that are not finite, {weights.tolist()[:8]}, of scalars that "
                "are.",
                remedy="Look for a division by 0, a logarithm of 0 or an exponential that is too "
                "large.",
            )
    elif mean and abs(total - 1) > APART:
        raise UnseenError(
            f"{hook} must return weights that sum to 1, since {type(rule).__name__}.averages is "
            f"True; these sum to {total:.6g}.",
            remedy="Divide them by their sum; or write `averages = False` in the class if the rule "
            "is not a mean.",
        )
    return weights, state


def vector_of(rule: object, answer: object, P: tuple[int, ...]) -> WithState:
    """Return an elementwise rule's vector [P] and its new state, if they are that."""
    hook = f"{type(rule).__name__}.reduce"
    vector, state = pair(hook, answer, f"vector {list(P)}")
    if tuple(vector.shape) != P:
        raise UnseenError(
            f"{hook} must return a vector of the length of the rows, {list(P)}; found the shape "
            f"{list(vector.shape)}."
        )
    return vector, state


def pair(hook: str, answer: object, what: str) -> WithState:
    """Return a tensor and a state, if an answer is the two."""
    if isinstance(answer, tuple) and len(answer) == 2:
        values, state = answer
        if isinstance(values, Tensor) and isinstance(state, Mapping):
            return values, state
    kinds = [type(part).__name__ for part in answer] if isinstance(answer, tuple) else None
    kind = f"({', '.join(kinds)})" if kinds is not None else type(answer).__name__
    raise UnseenError(
        f"{hook} must return two things, ({what}, state), a tensor and the state that it was "
        f"given or a new one; found {kind}."
    )
