"""Options that the command line, the functions of Python and the HTTP server share."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AnswerOptions:
    """How outputs become answers.

    Attributes:
        threshold: From which probability on class 1 of two is answered: a number, or a rule on the
            training sites: youden, sensitivity>=0.9, specificity>=0.9, cost=10:1 (a miss costs
            ten false alarms).
        abstain: Answer nothing where the answer's probability is below this.
        coverage: Add prediction sets, or intervals of numbers, that hold the truth of a new site's
            row at least this often, such as 0.8.
    """

    threshold: str | None = None
    abstain: float | None = None
    coverage: float | None = None


@dataclass(frozen=True)
class PredictOptions(AnswerOptions):
    """How outputs become answers, and which inputs get one.

    Attributes:
        times: When to give survival, such as 90,365 (default: the ends of the model's intervals).
        accept_unseen: Predict rows with categories new to the model.
        strict: Predict nothing for inputs far from what training saw.
    """

    times: tuple[float, ...] = ()
    accept_unseen: bool = False
    strict: bool = False


@dataclass(frozen=True)
class TrainOptions:
    """What a model's directory keeps of its training sites beside the model.

    Attributes:
        ranges: Keep what training's inputs were like, for `predict` to flag others; left out: where
            privacy.channel is clear and no noise was asked for.
        calibrate: temperature, platt or none; left out: temperature with --leave-out, else none.
        leave_out: Train again without each of this many groups of training sites, so that
            calibration, thresholds and prediction sets are of sites that no model had seen.
    """

    ranges: bool | None = None
    calibrate: str | None = None
    leave_out: int | None = None
