"""The words of a round and the whole server: what every method is made of."""

from unseen.core.apply import Add, Apply, Descend, MovingAverage, Put, Replace
from unseen.core.client import Client, Memories, Split
from unseen.core.exchange import (
    MASKS,
    ONE_LABEL,
    Exchange,
    Local,
    Method,
    Outcome,
    Reference,
    Reply,
    Slot,
    State,
)
from unseen.core.round import Backend, play, play_round, start
from unseen.core.rows import DenseRows, Draws, Rows, RuleState, WithState
from unseen.core.rule import Collect, Combine, Elementwise, Gram, Weighted
from unseen.core.turn import Turn
from unseen.core.types import Inbox, Memory, Table
from unseen.core.vector import Layout, Model

__all__ = [
    "MASKS", "ONE_LABEL", "Add", "Apply", "Backend", "Client", "Collect", "Combine", "DenseRows",
    "Descend", "Draws", "Elementwise", "Exchange", "Gram", "Inbox", "Layout",
    "Local", "Memories", "Memory", "Method", "Model", "MovingAverage", "Outcome", "Put",
    "Reference", "Replace", "Reply", "Rows", "RuleState", "Slot", "Split", "State", "Table",
    "Turn", "Weighted", "WithState", "play", "play_round", "start",
]  # fmt: skip
