"""From which probability on to answer class 1: a stated rule on the sources' summed counts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from unseen.core.outputs import class_scores
from unseen.core.record_lines import Record
from unseen.errors import UnseenError

#: Bins of the logit of class 1: edges from −WIDEST to WIDEST, STEP apart, and what lies beyond.
WIDEST, STEP = 10.0, 0.05
EDGES = torch.linspace(-WIDEST, WIDEST, round(2 * WIDEST / STEP) + 1, dtype=torch.float64)
RULES = "a probability such as 0.3, youden, sensitivity>=0.9, specificity>=0.9, cost=10:1"


def class_counts(outputs: Tensor, y: Tensor) -> Tensor:
    """Return what a site sends: how many rows of class 0 and 1 lie in each bin [2, bins].

    Args:
        outputs: Calibrated outputs [N, 1 or 2].
        y: Their classes [N].
    """
    place = torch.bucketize(class_scores(outputs.double()), EDGES, right=True)
    code = y * (len(EDGES) + 1) + place
    return torch.bincount(code, minlength=2 * (len(EDGES) + 1)).view(2, -1)


@dataclass(frozen=True)
class Threshold:
    """A probability from which on class 1 is answered, and how that does on the sources.

    Attributes:
        value: The probability.
        rule: How it was chosen, as it was asked for.
        sensitivity, specificity: On the sources' rows; of a number that somebody gave between two
            edges, by a straight line between theirs. NaN beyond all edges, and where nothing is
            known of the sources.
    """

    value: float
    rule: str
    sensitivity: float = math.nan
    specificity: float = math.nan

    @property
    def logit(self) -> float:
        if self.value >= 1:
            return math.inf
        return math.log(self.value / (1 - self.value)) if self.value > 0 else -math.inf

    def applied(self, outputs: Tensor) -> Tensor:
        """Return outputs [N, C] in which the larger one is what is decided.

        Note:
            A row at the threshold itself is of class 1, as `class_counts` counts it: its output is
            the next number above.

        Example:
            >>> Threshold(0.2, "0.2").applied(torch.tensor([[1.0, 0.0]])).argmax(1).tolist()
            [1]
        """
        shifted = outputs.double().clone()
        shifted[:, -1] -= self.logit
        shifted[:, -1] = shifted[:, -1].nextafter(torch.tensor(math.inf).double())
        return shifted


@dataclass(frozen=True)
class Counts:
    """The sources' rows by class and bin of the logit.

    Attributes:
        rows: [2, bins], summed over sites.
    """

    rows: Tensor

    def to_json(self) -> list[list[int]]:
        """Return (bin, rows of class 0, rows of class 1) for each bin with any."""
        bins = self.rows.sum(0).nonzero().flatten().tolist()
        return [[b, int(self.rows[0, b]), int(self.rows[1, b])] for b in bins]

    @classmethod
    def of_json(cls, content: Sequence[Sequence[int]]) -> Self:
        rows = torch.zeros(2, len(EDGES) + 1, dtype=torch.int64)
        for b, none, one in content:
            rows[0, b], rows[1, b] = none, one
        return cls(rows)

    def rates(self) -> tuple[Tensor, Tensor]:
        """Return sensitivity and specificity [edges], with each edge as the threshold."""
        below = self.rows.double().cumsum(1)[:, :-1]
        n = self.rows.sum(1).double()[:, None]
        return 1 - below[1] / n[1], below[0] / n[0]


def at_place(rates: Tensor, place: float) -> float:
    """Return a rate between two edges, of which `place` counts the steps from the first."""
    if not 0 <= place <= len(rates) - 1:
        return math.nan
    below = min(int(place), len(rates) - 2)
    return float(rates[below] + (place - below) * (rates[below + 1] - rates[below]))


def threshold(rule: str, counts: Counts | None) -> Threshold:
    """Return the threshold of a rule.

    Args:
        rule: A probability; `youden`, the largest sensitivity + specificity; `sensitivity>=S`, the
            highest threshold with that sensitivity; `specificity>=S`, the lowest with that
            specificity; `cost=M:F`, the least cost where a miss costs M and a false alarm F, at the
            sources' shares of the classes.
        counts: The sources' rows; None where nothing is known of them.

    Example:
        >>> y, z = torch.tensor([0, 0, 0, 1]), torch.tensor([[-2.0], [-1.0], [0.4], [1.0]])
        >>> limit = threshold("sensitivity>=0.9", Counts(class_counts(z, y)))
        >>> round(limit.value, 3), limit.sensitivity, limit.specificity
        (0.731, 1.0, 1.0)
    """
    text = rule.replace(" ", "")
    sensitivity = specificity = torch.full_like(EDGES, math.nan)
    if counts is not None:
        sensitivity, specificity = counts.rates()
    number = _number(text)
    if number is not None:
        if not 0 < number < 1:
            raise _no_share("a threshold", "", text)
        place = (math.log(number / (1 - number)) + WIDEST) / STEP
        return Threshold(number, rule, at_place(sensitivity, place), at_place(specificity, place))
    name, sign, goal = text.partition(">=")
    level = _number(goal)
    costs = [_number(part) for part in text.removeprefix("cost=").split(":")]
    if (
        text != "youden"
        and not (name in ("sensitivity", "specificity") and level is not None)
        and (not text.startswith("cost=") or len(costs) != 2 or None in costs)
    ):
        raise UnseenError(f"unknown rule for a threshold {rule!r}.", remedy=f"Write {RULES}.")
    if level is not None and sign and not 0 <= level <= 1:
        raise _no_share(f"a {name}", f"{name}>=", goal)
    if counts is None:
        raise UnseenError(
            f"{rule!r} chooses a threshold on the training sites, of which this model's directory "
            "keeps no counts.",
            remedy="Name a probability, or train again on sites in the clear.",
        )
    if bool((counts.rows.sum(1) == 0).any()):
        raise UnseenError(f"{rule!r} needs both classes among the training sites' rows.")
    if sign:
        rate = sensitivity if name == "sensitivity" else specificity
        able = (rate >= (level or 0) - 1e-12).nonzero().flatten().tolist()
        if not able:
            raise UnseenError(f"no threshold has {rule} on the training sites.")
        edge = able[-1] if name == "sensitivity" else able[0]
    else:
        miss, alarm = (1.0, 1.0) if text == "youden" else (float(c or 0) for c in costs)
        shares = torch.ones(2).double() if text == "youden" else counts.rows.sum(1).double()
        loss = miss * shares[1] * (1 - sensitivity) + alarm * shares[0] * (1 - specificity)
        best = (loss <= loss.min() + 1e-12).nonzero().flatten().tolist()
        edge = best[len(best) // 2]  # between the two classes, where it lies on neither
    value = float(torch.sigmoid(EDGES[edge]))
    return Threshold(value, rule, float(sensitivity[edge]), float(specificity[edge]))


def _no_share(what: str, before: str, text: str) -> UnseenError:
    """Return the error for a number that is not a share, with the share that a percentage is."""
    value = _number(text) or 0.0
    remedy = f"Did you mean {before}{value / 100:g}?" if 1 < value < 100 else ""
    return UnseenError(f"{what} lies between 0 and 1; found {text}.", remedy=remedy)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def describe(limit: Threshold, name: str, evidence: Record) -> str:
    """Return a threshold in words, with what it does on the sources."""
    rule = limit.rule.replace(" ", "")
    at, by = (rule, "") if _number(rule) is not None else (f"{limit.value:.4g}", f", by {rule}")
    text = f"{name!r} is answered from the probability {at} on{by}"
    if math.isnan(limit.sensitivity):
        return text
    return (
        f"{text}; on {evidence['rows']} rows of {evidence['of']}: sensitivity "
        f"{limit.sensitivity:.3f}, specificity {limit.specificity:.3f}"
    )
