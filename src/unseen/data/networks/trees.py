"""Decision trees as a module, all of whose numbers travel."""

import torch
from torch import Tensor, nn


def leaves(x: Tensor, feature: Tensor, threshold: Tensor, child: Tensor, depth: int) -> Tensor:
    """Return the leaf in which each row ends in each tree, as its place among all nodes [N, T].

    At node i of a tree, x goes to node c_i if x[f_i] ≤ θ_i, else to c_i + 1; f_i = −1 is a leaf.

    Args:
        x: Rows [N, F].
        feature: f [T, M], in whole numbers.
        threshold: θ [T, M].
        child: c [T, M], in whole numbers.
        depth: The most decisions on a path.
    """
    count, nodes = feature.shape
    roots = torch.arange(count, device=x.device) * nodes
    features, children = feature.flatten().round().long(), child.flatten().round().long()
    thresholds = threshold.flatten()
    node = torch.zeros_like(x[:, :1], dtype=torch.long).expand(-1, count)
    for _ in range(depth):
        f = features[roots + node]
        right = x.gather(1, f.clamp(min=0)) > thresholds[roots + node]
        node = torch.where(f >= 0, children[roots + node] + right.long(), node)
    return roots + node


class Trees(nn.Module):
    """A sum of regression trees over the flattened input.

        f_g(x) = b_g + Σ_{t mod G = g} v_t(leaf of x in tree t)

    How x finds its leaf `leaves` says. With one score for two classes the outputs are (0, f).

    Args:
        count: T, the number of trees.
        nodes: M, the places for nodes in each tree; the root is the first.
        depth: The most decisions on a path.
        scores: G, the functions f_g.
        outputs: C, the columns of the output.
        edges: How many numbers training keeps with the trees: the borders of its bins.
        shares: Whether f are probabilities, as a forest's means are; the outputs are their logs.

    Attributes:
        baseline: b [G].
        edges: Borders of bins, which predictions do not read.
        feature, threshold, child, value: f, θ, c and v, each [T, M].
    """

    def __init__(
        self,
        count: int,
        nodes: int,
        depth: int,
        scores: int,
        outputs: int,
        edges: int = 0,
        shares: bool = False,
    ) -> None:
        super().__init__()
        self.depth, self.scores, self.outputs, self.shares = depth, scores, outputs, shares
        self.baseline = nn.Parameter(torch.zeros(scores))
        self.edges = nn.Parameter(torch.zeros(edges))
        self.feature = nn.Parameter(torch.full((count, nodes), -1.0))
        self.threshold = nn.Parameter(torch.zeros(count, nodes))
        self.child = nn.Parameter(torch.zeros(count, nodes))
        self.value = nn.Parameter(torch.zeros(count, nodes))

    def forward(self, x: Tensor) -> Tensor:
        leaf = leaves(x.flatten(1), self.feature, self.threshold, self.child, self.depth)
        values = self.value.flatten()[leaf].unflatten(1, (-1, self.scores)).sum(1)
        sums: Tensor = self.baseline + values
        if self.shares:
            return sums.clamp(min=1e-6).log()
        if self.scores < self.outputs:
            return torch.cat([torch.zeros_like(sums), sums], dim=1)
        return sums
