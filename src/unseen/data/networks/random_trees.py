"""A forest whose leaves hold shares of classes, as a module all of whose numbers travel."""

import torch
from torch import Tensor, nn

from unseen.data.networks.trees import leaves


class RandomTrees(nn.Module):
    """The mean of the trees' leaves over the flattened input.

        p(x) = (1/T) Σ_t v_t(leaf of x in tree t)

    How x finds its leaf `trees.leaves` says. The outputs are log p for classes, or p itself for
    numbers.

    Args:
        count: T, the number of trees.
        nodes: M, the places for nodes in each tree; the root is the first.
        depth: The most decisions on a path.
        outputs: C, the columns of the output.
        numbers: Whether the output is a number and not shares of classes.
        workspace: How many numbers training keeps beside the trees, as borders of bins.

    Attributes:
        workspace: What predictions do not read.
        feature, threshold, child: f, θ and c, each [T, M].
        value: v [T, M, C].
    """

    def __init__(
        self, count: int, nodes: int, depth: int, outputs: int, numbers: bool, workspace: int
    ) -> None:
        super().__init__()
        self.depth, self.numbers = depth, numbers
        self.workspace = nn.Parameter(torch.zeros(workspace))
        self.feature = nn.Parameter(torch.full((count, nodes), -1.0))
        self.threshold = nn.Parameter(torch.zeros(count, nodes))
        self.child = nn.Parameter(torch.zeros(count, nodes))
        self.value = nn.Parameter(torch.zeros(count, nodes, outputs))

    def forward(self, x: Tensor) -> Tensor:
        leaf = leaves(x.flatten(1), self.feature, self.threshold, self.child, self.depth)
        mean = self.value.flatten(0, 1)[leaf].mean(1)
        return mean if self.numbers else mean.clamp(min=1e-6).log()
