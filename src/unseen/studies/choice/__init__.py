"""Which recipe works at the next site: chosen by the sites that are there."""

from unseen.studies.choice.answer import Choice, choose
from unseen.studies.choice.expectation import Expectation, chance, expect
from unseen.studies.choice.playing import Candidates, play
from unseen.studies.choice.trials import Trials

__all__ = ["Candidates", "Choice", "Expectation", "Trials", "chance", "choose", "expect", "play"]
