"""Write a server rule, and compare it with FedAvg.

python examples/own_method.py [FOLDER]
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

import unseen
from unseen.core import Method, Reference, RuleState, Table
from unseen.errors import number
from unseen.methods.base import federated
from unseen.methods.combine import Weighted

REFERENCE = Reference("Not published.", "")  # the line of lists, and the BibTeX entry


@dataclass(frozen=True)
class Powered(Weighted):
    """Weigh each client by a power of its number of examples: 1 is FedAvg, 0 weighs all alike."""

    power: float = 0.5

    def __post_init__(self) -> None:
        number("power", self.power, 0)

    def share(
        self, table: Table, state: RuleState, generator: torch.Generator | None
    ) -> tuple[torch.Tensor, RuleState]:
        """Return weights [K] that sum to 1. The table has one row for each client."""
        weights = table["examples"] ** self.power
        return weights / weights.sum(), state


def powered(training: unseen.Training, *, power: float = 0.5) -> Method:
    """FedAvg with flattened weights. Keyword parameters are options of the method."""
    return federated("powered", training, Powered(power), REFERENCE)


if __name__ == "__main__":  # jobs import this file for the method alone
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    sys.path.insert(0, str(Path(__file__).parent))  # a method's name is module:function
    methods = ["fedavg", "own_method:powered", "own_method:powered(power=0.0)"]
    study = unseen.Study(
        dataset="rotated-digits", methods=methods, targets=["0"], seeds=1, rounds=3
    )
    print(study.run(folder / "study").table())
