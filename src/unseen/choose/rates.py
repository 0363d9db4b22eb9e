"""The learning rates that a search tries where nobody names any."""

from unseen.choose.playing import learning_rate
from unseen.expression import parse
from unseen.ranges import log


def around(optimiser: str) -> str:
    """Return an optimiser with a range of rates, a tenth to ten times its own.

    Example:
        >>> around("sgd(lr=0.05, momentum=0.9)")
        'sgd(lr=log(0.005, 0.5), momentum=0.9)'
    """
    rate, (call,) = learning_rate(optimiser), parse(optimiser)
    values = {key: repr(value) for key, value in call.arguments.items()}
    values["lr"] = str(log(float(f"{rate / 10:.4g}"), float(f"{rate * 10:.4g}")))
    return f"{call.name}({', '.join(f'{key}={value}' for key, value in values.items())})"
