"""A model of times until an event: what its outputs and its labels mean."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core.survival import Intervals
from unseen.data.dataset import DataSet
from unseen.data.tables.events import flag_of
from unseen.errors import UnseenError
from unseen.serving.baseline_hazard import Baseline
from unseen.studies.execution.prepare import Prepared

#: The key in `model.json`.
KEY = "times"


@dataclass(frozen=True)
class Times:
    """What a model of times says.

    Attributes:
        time: What the time is called, in whose unit all times are.
        event: What the event is called.
        intervals: Those whose hazards the outputs are; None for Cox's model, whose one output is
            the log-risk.
        baseline: The hazard of log-risk 0 in Cox's model, where it was kept.
    """

    time: str
    event: str
    intervals: Intervals | None
    baseline: Baseline | None = None

    @classmethod
    def read(cls, spec: Mapping[str, Any]) -> Self | None:
        """Return what `model.json` says; None for a model of other labels."""
        content = spec.get(KEY)
        if content is None:
            return None
        cuts, base = content["cuts"], content.get("baseline")
        return cls(
            content["time"],
            content["event"],
            Intervals(tuple(cuts)) if cuts else None,
            Baseline(tuple(base["cuts"]), tuple(base["hazard"])) if base else None,
        )

    @property
    def curve(self) -> Intervals | Baseline | None:
        """What gives survival at times, if anything does."""
        return self.intervals or self.baseline

    @property
    def outputs(self) -> int:
        return 1 if self.intervals is None else len(self.intervals.cuts)

    @property
    def ends(self) -> tuple[float, ...]:
        return () if self.curve is None else self.curve.cuts

    def labels(self, y: Tensor) -> Tensor:
        """Return times and events [N, 2] as metrics read them."""
        return y if self.intervals is None else self.intervals.standardised(y)

    def answer(self, outputs: Tensor) -> Tensor:
        """Return what is predicted [N]: the log-risk, or P(event before the last end)."""
        if self.intervals is None:
            return outputs.squeeze(-1)
        return -torch.expm1(-F.softplus(outputs.double()).sum(1))

    def survival(self, outputs: Tensor, at: Sequence[float]) -> Tensor:
        """Return P(no event by then) [N, T]; of a model without a baseline [N, 0]."""
        if self.curve is None:
            return outputs.new_zeros(len(outputs), 0)
        return self.curve.survival(outputs, at)

    def check(self, at: Sequence[float]) -> tuple[float, ...]:
        """Return the times at which survival is asked for, the ends of intervals by default."""
        if at and self.curve is None:
            raise UnseenError(
                "times asks for survival at given times, and Cox's model has log-risks alone.",
                remedy="Leave it out, or train with training.loss = 'cox(cuts=[90, 365])' (in one "
                "process, without noise or masks) or 'hazards(intervals=10)'.",
            )
        for t in at:
            if not (math.isfinite(t) and 0 <= t <= self.ends[-1]):
                raise UnseenError(
                    f"times = {t:g}: the model knows {self.time} from 0 to {self.ends[-1]:.6g}."
                )
        return tuple(at) or self.ends

    def cell(self, time: str, event: str, number: Any) -> tuple[float, float] | None:
        """Return a row's label of two cells; None where they hold none."""
        t, e = number(time), flag_of(event)
        return (t, e) if t is not None and t >= 0 and e is not None else None

    def notes(self) -> list[str]:
        if self.intervals is None:
            lines = [
                f"prediction is the log-risk of {self.event!r}: who has more is expected to have "
                "it sooner; only differences count"
            ]
            if self.baseline is not None:
                lines.append(
                    f"S(t) is the probability that {self.event!r} has not happened by t, at the "
                    "baseline hazard of all training sites together; a site's own may differ"
                )
            return lines
        return [
            f"prediction is the probability of {self.event!r} before {self.time} = "
            f"{self.ends[-1]:.6g}; S(t) is the probability that it has not happened by t"
        ]


def described(data: DataSet, prepared: Prepared) -> dict[str, Any]:
    """Return what `model.json` says of times; nothing of other labels."""
    if data.times is None:
        return {}
    cuts = prepared.scale.cuts if isinstance(prepared.scale, Intervals) else ()
    return {KEY: {"time": data.times[0], "event": data.times[1], "cuts": list(cuts)}}
