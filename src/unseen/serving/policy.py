"""How outputs become answers: the threshold, when to abstain, prediction sets and intervals."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unseen.core.metrics.evaluation import OF_DECISIONS
from unseen.core.outputs import predicted, probabilities
from unseen.errors import UnseenError
from unseen.serving.answer_options import AnswerOptions, PredictOptions
from unseen.serving.decisions import Decisions
from unseen.serving.directory import Trained
from unseen.serving.event_times import Times
from unseen.serving.novelty import Features
from unseen.serving.thresholds import Threshold, describe, threshold


@dataclass(frozen=True)
class Answer:
    """What is answered for one row.

    Attributes:
        label: The class or the number; None for an abstention.
        probabilities: Calibrated, by class; none for numbers.
        members: The classes in the prediction set, if one was asked for.
        interval: The ends of the prediction interval, if one was asked for.
        ood: The out-of-distribution score, 0 to 1, if the model has one.
        survival: The probabilities of no event by the times asked for, of a model of times.
    """

    label: str | float | None = None
    probabilities: tuple[float, ...] = ()
    members: tuple[str, ...] | None = None
    interval: tuple[float, float] | None = None
    ood: float | None = None
    survival: tuple[float, ...] = ()


@dataclass(frozen=True)
class Policy:
    """How a model's outputs become answers.

    Attributes:
        classes: The model's classes; None for numbers.
        limit: From which probability on class 1 of two is answered; None for the largest.
        least: The probability of the answer below which there is none; None for always.
        coverage: Of prediction sets and intervals; None for none.
        decisions: What the directory keeps of the sources.
        times: What a model of times until an event says; None for other models.
        at: The times at which survival is answered.
    """

    classes: tuple[str, ...] | None
    limit: Threshold | None = None
    least: float | None = None
    coverage: float | None = None
    decisions: Decisions = field(default_factory=Decisions)
    times: Times | None = None
    at: tuple[float, ...] = ()

    def decided(self, outputs: Tensor) -> Tensor:
        """Return outputs [N, C] in which the largest is what is decided."""
        return self.limit.applied(outputs) if self.limit is not None else outputs

    def for_metric(self, name: str, outputs: Tensor) -> Tensor:
        """Return the outputs that a metric is computed of: decisions move with the threshold."""
        return self.decided(outputs) if name in OF_DECISIONS else outputs

    def answered(self, outputs: Tensor) -> Tensor:
        """Return which rows [N] are answered, and not abstained from."""
        if self.least is None or self.classes is None:
            return torch.ones(len(outputs), dtype=torch.bool)
        p, guess = probabilities(outputs.double()), predicted(self.decided(outputs))
        return p.gather(1, guess[:, None]).squeeze(1) >= self.least

    def answers(self, outputs: Tensor, ood: Tensor | None = None) -> Iterator[Answer]:
        """Yield an answer for each row of outputs [N, C].

        Args:
            outputs: Calibrated outputs, or numbers in the label's units.
            ood: The rows' out-of-distribution scores [N].
        """
        N = len(outputs)
        scores = ood.tolist() if ood is not None else [None] * N
        if self.times is not None:
            survival = self.times.survival(outputs, self.at).tolist()
            risks = self.times.answer(outputs).tolist()
            for value, row, score in zip(risks, survival, scores, strict=True):
                yield Answer(value, ood=score, survival=tuple(row))
            return
        if self.classes is None:
            reach = self._reach()
            for value, score in zip(outputs.squeeze(-1).tolist(), scores, strict=True):
                ends = (value - reach, value + reach) if reach is not None else None
                yield Answer(value, interval=ends, ood=score)
            return
        p = probabilities(outputs.double())
        guess, sure = predicted(self.decided(outputs)).tolist(), self.answered(outputs).tolist()
        members: list[tuple[str, ...] | None] = [None] * N
        if self.coverage is not None and self.decisions.scores is not None:
            inside = self.decisions.scores.sets(p, self.coverage).tolist()
            members = [
                tuple(c for c, x in zip(self.classes, row, strict=True) if x) for row in inside
            ]
        rows = zip(guess, p.tolist(), sure, members, scores, strict=True)
        for k, share, certain, names, score in rows:
            yield Answer(self.classes[k] if certain else None, tuple(share), names, None, score)

    def _reach(self) -> float | None:
        if self.coverage is None or self.decisions.scores is None:
            return None
        return self.decisions.scores.quantile(self.coverage)

    def notes(self, raw: bool = True) -> list[str]:
        """Return what must be said with the answers."""
        about = self.decisions.about or {}
        lines = self.times.notes() if self.times is not None else []
        calibration = self.decisions.calibration
        if calibration is not None:
            how = f"temperature {1 / calibration.scale:.3g}"
            if calibration.kind == "platt":
                shift = ", ".join(f"{b:.3g}" for b in calibration.shift)
                how = f"Platt scaling, {calibration.scale:.3g} z + ({shift})"
            lines.append(
                f"probabilities are calibrated by {how}, fitted to {about['rows']} rows of "
                f"{about['of']}"
            )
        elif raw and self.classes is not None:
            lines.append("probabilities are the model's own: they were not calibrated")
        if self.limit is not None and self.classes is not None:
            lines.append(describe(self.limit, self.classes[1], about))
        if self.least is not None:
            lines.append(f"no answer where its probability is below {self.least:g}")
        if self.coverage is not None and self.decisions.scores is not None:
            what = "sets" if self.classes is not None else "intervals"
            # What the scores of K sites are cut at, since one of K + 1 sites may be any.
            cut = min(1.0, self.coverage * (about["sites"] + 1) / about["sites"])
            lines.append(
                f"{what} hold the truth of a new site's row in at least {100 * self.coverage:g}% "
                f"(of these {about['sites']} sites' in {100 * cut:.3g}%), if its site is like a "
                "draw from where they are from"
            )
            if self.decisions.scores.is_largest(self.coverage):
                lines.append(
                    f"at this coverage the worst row of all {about['sites']} sites alone decides "
                    f"how wide {what} are: ask for less, or train on more sites"
                )
        return lines


def policy_of(trained: Trained, options: AnswerOptions = AnswerOptions()) -> Policy:
    """Return how a model answers; refuse what it cannot do.

    Args:
        trained: The model.
        options: What is asked for; of a model of times survival at the ends of its intervals, where
            no times are named.
    """
    classes, decisions, of_times = trained.classes, trained.decisions, trained.times
    limit, abstain, coverage = options.threshold, options.abstain, options.coverage
    times = options.times if isinstance(options, PredictOptions) else ()
    asked = {"threshold": limit, "abstain": abstain, "coverage": coverage}
    if trained.masks and (words := [name for name, value in asked.items() if value is not None]):
        what = f"{', '.join(words)}: a model of masks answers with the likeliest class per pixel."
        raise UnseenError(what, remedy="Leave it out.")
    rule, at = None, of_times.check(times) if of_times is not None else ()
    if times and of_times is None:
        raise UnseenError("times is for a model of times until an event, which this is not.")
    if limit is not None:
        if classes is None or len(classes) != 2:
            kind = "predicts a number" if classes is None else f"has {len(classes)} classes"
            raise UnseenError(f"threshold is for two classes; this model {kind}.")
        rule = threshold(limit, decisions.counts)
    if abstain is not None:
        if classes is None:
            raise UnseenError("abstain is for classes; this model predicts a number.")
        if not 0 < abstain <= 1 or math.isnan(abstain):
            raise UnseenError(
                f"abstain takes a probability, above 0 and up to 1; found {abstain:g}."
            )
    if coverage is not None:
        if decisions.scores is None:
            raise UnseenError(
                "coverage needs predictions for sites that were left out of training, and "
                "this model's directory keeps none.",
                remedy="Train it again with --leave-out 5 (in Python: leave_out=5): validation "
                "splits would promise too much.",
            )
        decisions.scores.quantile(coverage)
    return Policy(classes, rule, abstain, coverage, decisions, of_times, at)


def scored(trained: Trained, x: Tensor, exported: bool) -> Tensor | None:
    """Return the out-of-distribution scores [N] of inputs; None where the model has none."""
    decisions = trained.decisions
    if not has_scores(trained, exported) or decisions.novelty is None:
        return None
    read = Features(trained.model.module, decisions.layer)
    with torch.no_grad():
        if decisions.layer:
            phi = read(trained.outputs, x)[1]
        elif trained.trunk is not None:
            phi = trained.trunk(x.to(trained.model.device)).flatten(1).cpu()
        else:
            phi = x.flatten(1)
    return decisions.novelty.score(phi)


def has_scores(trained: Trained, exported: bool) -> bool:
    """Return whether rows get an out-of-distribution score."""
    decisions = trained.decisions
    return decisions.novelty is not None and not (exported and decisions.layer)
