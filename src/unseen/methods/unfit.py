"""Which methods and modifiers times until an event cannot have, and why."""

from unseen.core.survival import Cox
from unseen.errors import Incompatible
from unseen.expression import parse
from unseen.methods.recipe import Training

_CLASSES, _TREES = "needs classes", "fits classes or numbers by its own loss"
_LABELS = "needs a number or a class per example, for its residual"
_ALONE = "needs a loss of each example alone, and in Cox's each is compared with others"
#: Name -> why, whatever the loss of times.
NEVER = {
    **dict.fromkeys(("fedsr", "fedcsa", "csac", "fedccrl", "rsc", "sd"), _CLASSES),
    **dict.fromkeys(("glm", "boost", "forest", "trees", "bag", "portfolio", "stack"), _TREES),
    **dict.fromkeys(("anchor", "irm"), _LABELS),
    "copa": "averages the predictions of heads that are of classes or numbers",
}
#: Name -> why, where the loss is Cox's.
NOT_COX = {
    **dict.fromkeys(("fedilc-inter", "fedilc-intra-arith", "fedilc-intra-geo"), _ALONE),
    **dict.fromkeys(("fishr", "fedcurv", "fediir", "mixup"), _ALONE),
    "intercepts": "has intercepts of sites, which the log-risks of Cox's model do not have",
}


def unfit(expression: str, training: Training) -> str:
    """Return why times until an event cannot have one of an expression's parts, or "".

    Args:
        expression: The method with its modifiers.
        training: The recipe, whose loss is of times.
    """
    reasons = NEVER | (NOT_COX if isinstance(training.loss, Cox) else {})
    for call in parse(expression):
        if call.name in reasons:
            return reasons[call.name]
        if call.arguments.get("gap") == "accuracy":
            return f"needs classes, of which gap='accuracy' of {call.name} is"
    return ""


def check_times(expression: str, training: Training) -> None:
    """Refuse a method that times until an event cannot have."""
    if why := unfit(expression, training):
        raise Incompatible(expression, f"{expression} {why}; these labels are times.")
