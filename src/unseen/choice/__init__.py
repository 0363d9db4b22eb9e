"""Which recipe works at the next site: chosen by the sites that are there."""

from unseen.choice.answer import Choice, choose
from unseen.choice.expectation import Expectation, chance, expect
from unseen.choice.playing import Candidates, play
from unseen.choice.trials import Trials

__all__ = ["Candidates", "Choice", "Expectation", "Trials", "chance", "choose", "expect", "play"]
