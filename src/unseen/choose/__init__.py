"""Which recipe works at the next site: chosen by the sites that are there."""

from unseen.choose.answer import Choice, choose
from unseen.choose.expectation import Expectation, chance, expect
from unseen.choose.playing import Candidates, play
from unseen.choose.trials import Trials

__all__ = ["Candidates", "Choice", "Expectation", "Trials", "chance", "choose", "expect", "play"]
