"""A server rule as a Flower strategy: FedAvg's messages, with another aggregation."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from unseen.core import Collect, Combine, Elementwise, Gram, Layout, RuleState, Weighted
from unseen.core.turn import keyed
from unseen.errors import UnseenError
from unseen.methods.base import mean_of

LOG = logging.getLogger("flwr")
#: Ends of the names of arrays that are statistics, not parameters.
STATISTICS = ("running_mean", "running_var")


class Ruled(FedAvg):  # type: ignore[misc]
    """Flower's FedAvg with a rule of `unseen.methods.combine` instead of its mean."""

    def __init__(self, rule: Combine, clients: int | None, seed: int, **options: Any) -> None:
        if isinstance(rule, Collect) or not isinstance(rule, Weighted | Gram | Elementwise):
            raise UnseenError(f"expected a Weighted, Gram or Elementwise rule; found {rule!r}.")
        super().__init__(**options)
        self.rule, self.mean, self.clients, self.seed = rule, mean_of(rule), clients, seed
        self.roster: dict[int, int] = {}
        self.states: dict[str, RuleState] = {}
        self.outgoing: ArrayRecord | None = None
        self.rounds = 0

    def start(self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, *args: Any,
              **more: Any) -> Any:  # fmt: skip
        self.rounds = num_rounds  # which rules are told
        return super().start(grid, initial_arrays, num_rounds, *args, **more)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Any:
        self.outgoing = arrays  # for the differences to it
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the updates by the rule, and the metrics as Flower does."""
        valid, _ = self._check_and_log_replies(replies, is_train=True)
        assert self.outgoing is not None
        old = _tensors(self.outgoing)
        valid = [message for message in valid if _fits(message, old)]
        if not valid:
            return None, None
        valid.sort(key=lambda message: int(message.metadata.src_node_id))
        table = self._table(server_round, valid)
        new = [_tensors(_arrays(message)) for message in valid]
        combined = dict(old)
        for name, rule in (("parameters", self.rule), ("statistics", self.mean)):
            layout = Layout.of({k: old[k] for k in old if _group(k, old[k]) == name})
            if not layout.size:
                continue
            base = layout.pack(old)
            rows = torch.stack([layout.pack(tensors) - base for tensors in new])
            state = self._state(name, rule, layout)
            draws = keyed(f"{self.seed}/rule/{name}/{server_round}")
            vector, self.states[name], _ = rule(rows, table, state, draws)
            combined |= layout.views(base + vector)
        combined |= {k: v for k, v in new[0].items() if not _group(k, v)}
        arrays = ArrayRecord({k: Array(v.contiguous().numpy()) for k, v in combined.items()})
        contents = [message.content for message in valid]
        return arrays, self.train_metrics_aggr_fn(contents, self.weighted_by_key)

    def _state(self, name: str, rule: Combine, layout: Layout) -> RuleState:
        """What the rule remembers; one that remembers each client must have room for all."""
        clients = self.clients or 0
        if len(self.roster) > clients and _by_client(rule, layout):
            others = f"{type(rule).__name__}, which remembers each, was begun for {clients}"
            remedy = "Say how many there will be, strategy(rule, clients=...)."
            raise UnseenError(f"{len(self.roster)} clients took part; {others}.", remedy=remedy)
        return self.states.get(name) or rule.init(clients, layout.size, layout)

    def _table(self, server_round: int, valid: Sequence[Message]) -> dict[str, Tensor]:
        """The scalars of those present, in the order of the roster."""
        nodes = [int(message.metadata.src_node_id) for message in valid]
        index = [self.roster.setdefault(node, len(self.roster)) for node in nodes]
        self.clients = self.clients or len(self.roster)
        past, rounds = float(server_round - 1), float(self.rounds or server_round)
        count, metrics = len(valid), [next(iter(m.content.metric_records.values())) for m in valid]
        columns: dict[str, list[Any]] = {"client": index, "rounds": [rounds] * count}
        columns["progress"] = [past / rounds] * count
        for name in metrics[0]:
            key = "examples" if name == self.weighted_by_key else str(name)
            columns[key] = [numbers[name] for numbers in metrics]
        return {k: torch.tensor(v, dtype=torch.float64) for k, v in columns.items()}


def _by_client(rule: Combine, layout: Layout) -> bool:
    """Whether what a rule remembers grows with the number of clients."""

    def shapes(state: Mapping[str, Any]) -> list[Any]:
        return [shapes(v) if isinstance(v, Mapping) else getattr(v, "shape", None)
                for v in state.values()]  # fmt: skip

    two, three = (shapes(rule.init(count, layout.size, layout)) for count in (2, 3))
    return two != three


def _arrays(message: Message) -> ArrayRecord:
    return next(iter(message.content.array_records.values()))


def _tensors(record: ArrayRecord) -> dict[str, Tensor]:
    return {str(name): torch.from_numpy(array.numpy().copy()) for name, array in record.items()}


def _group(name: str, tensor: Tensor) -> str:
    """What an array is; integers are neither, and are taken from the first client."""
    if not tensor.is_floating_point():
        return ""
    return "statistics" if name.endswith(STATISTICS) else "parameters"


def _fits(message: Message, old: dict[str, Tensor]) -> bool:
    """Whether a reply may be used; one that may not is named and left out."""
    tensors, fault = _tensors(_arrays(message)), ""
    if {k: v.shape for k, v in tensors.items()} != {k: v.shape for k, v in old.items()}:
        fault = "arrays of other names or shapes than were sent"
    elif any(not bool(v.isfinite().all()) for v in tensors.values()):
        fault = "NaN or infinite values"
    if fault:
        LOG.warning("node %s is left out: it sent %s", message.metadata.src_node_id, fault)
    return not fault
