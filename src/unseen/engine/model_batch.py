"""One batch of models: the rows of one [M, P] matrix are M models that train together.

Each step takes one batch of every model's data, one pass over strided views of the matrix (in
closed form for perceptrons, else one `vmap`), and one optimiser step on all rows. Up to rounding
the results are those of training one by one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, vmap

from unseen.core import Model
from unseen.core.losses import CrossEntropy, Loss, SquaredError
from unseen.core.optimiser import Adam
from unseen.core.parts import layers
from unseen.core.vector import stack
from unseen.engine.batch_plan import Member, Plan, Pool, planned
from unseen.engine.perceptrons import Chain
from unseen.errors import UnseenError

PREFIX = "these models cannot be trained as one batch: "
#: Models of one batch on a CPU: with more of them, rows and moments leave the cache.
TOGETHER = 64


class Trained(NamedTuple):
    """What a member is afterwards: its vector [P] and the scalars that it reports."""

    row: Tensor
    scalars: Mapping[str, float]


@dataclass
class Trainer:
    """Trains models of any kinds; those of one kind as one batch.

    Attributes:
        graph: Whether to record a step once as a CUDA graph and replay it.
        pools: Kind of inputs and labels -> their training data.
    """

    graph: bool = False
    pools: dict[Any, Pool] = field(default_factory=dict)

    def __call__(self, members: Sequence[Member]) -> list[Trained]:
        """Return the members as they are after training, in their order."""
        alike: dict[Any, list[int]] = {}
        for i, member in enumerate(members):
            alike.setdefault(kind(member), []).append(i)
        trained: dict[int, Trained] = {}
        for places in alike.values():
            # Neighbours take about as many steps, so that few of them are padding.
            places.sort(key=lambda i: len(members[i].client.split("train")))
            on_cpu = members[places[0]].model.device.type == "cpu"
            for part in parts(places, TOGETHER if on_cpu else len(places)):
                own = [members[i] for i in part]
                trained |= zip(part, train(own, self.pool(own), self.graph), strict=True)
        return [trained[i] for i in range(len(members))]

    def pool(self, members: Sequence[Member]) -> Pool:
        """Return the data of all members, which are of one kind."""
        splits = [member.client.split("train") for member in members]
        x, y, device = splits[0].x, splits[0].y, members[0].model.device
        key = (tuple(x.shape[1:]), x.dtype, y.dtype, device)
        pool = self.pools.setdefault(key, Pool(device))
        pool.add(splits)
        return pool


def parts(places: Sequence[int], size: int) -> list[Sequence[int]]:
    """Return runs of places, of about equal length and of up to `size`."""
    count = -(-len(places) // size)
    cuts = [round(len(places) * i / count) for i in range(count + 1)]
    return [places[a:b] for a, b in pairwise(cuts)]


#: Model -> what tells networks apart; models of a job are asked for in every exchange.
NETWORKS: WeakKeyDictionary[Model, str] = WeakKeyDictionary()


def network(model: Model) -> str:
    """Return a text that differs whenever two networks do."""
    if model not in NETWORKS:
        NETWORKS[model] = f"{model.layout.fingerprint} {model.module}"
    return NETWORKS[model]


def kind(member: Member) -> tuple[Any, ...]:
    """Return what the members of one batch share."""
    recipe, split = member.local.training, member.client.split("train")
    return (
        network(member.model), member.model.device, member.model.precision,
        type(recipe.optimiser), recipe.loss, tuple(map(type, layers(member.local.gradient))),
        tuple(split.x.shape[1:]), split.x.dtype, split.y.dtype,
    )  # fmt: skip


def train(members: Sequence[Member], pool: Pool, graph: bool = False) -> list[Trained]:
    """Return the members as they are after training.

    Note:
        Nothing in a step waits for the device: batches, masks and rates are there before the first,
        and losses are read after the last.

    Args:
        members: Who trains what, M models of one kind.
        pool: Their data.
        graph: Whether to record a step once as a CUDA graph and replay it.
    """
    plan = planned(members, pool)
    models = Models(members, pool, plan)
    members[0].model.module.train()
    models.play(graph)
    counts = plan.sizes.sum(0).clamp(min=1)
    means, steps = (models.total / counts).tolist(), (plan.sizes > 0).sum(0).tolist()
    sizes = [len(member.client.split("train")) for member in members]
    numbers = zip(models.matrix, sizes, steps, means, strict=True)
    return [Trained(row, {"examples": n, "steps": s, "loss": v}) for row, n, s, v in numbers]


class Models:
    """M models on their way: rows, moments and losses, changed in place by every step.

    Note:
        A step reads its batch from tensors of its own, so that a recorded step can be replayed.
    """

    def __init__(self, members: Sequence[Member], pool: Pool, plan: Plan) -> None:
        self.model, self.pool, self.plan = members[0].model, pool, plan
        recipe = members[0].local.training
        self.loss, self.adam = recipe.loss, isinstance(recipe.optimiser, Adam)
        self.decays = bool(plan.columns["weight_decay"].any())
        self.pulls = bool(plan.columns["mu"].any())
        self.received = stack(len(members), self.model.vector)
        for row, member in zip(self.received, members, strict=True):
            row.copy_(member.inbox["model"])
        self.matrix = stack(len(members), self.model.vector)
        self.gradient = stack(len(members), self.model.vector)
        chain = Chain.of(self.model.module) if self.model.precision == "float32" else None
        self.pass_ = ByChain(self, chain) if chain is not None else ByAutograd(self)
        self.first = torch.zeros_like(self.matrix)
        self.second = torch.zeros_like(self.matrix if self.adam else self.matrix[:0])
        self.total, self.count = self.matrix.new_zeros(len(members)), self.matrix.new_zeros(())
        self.targets = pool.targets(self.loss, self.pass_.outputs)
        self.now = plan.at(0).clone()

    def play(self, graph: bool) -> None:
        step = self.recorded() if graph else self.step
        self.begin()
        for t in range(len(self.plan.index)):
            if graph:
                self.now.copy_(self.plan.at(t))
            else:
                self.now = self.plan.at(t)
            step()

    def begin(self) -> None:
        self.matrix.copy_(self.received)
        for moments in (self.first, self.second, self.total, self.count):
            moments.zero_()

    def step(self) -> None:
        now, columns, gradient = self.now, self.plan.columns, self.gradient
        x, target = self.pool.batch(now.index, self.targets)
        for (change, _), draws in zip(self.plan.changes, now.draws, strict=True):
            x, target = change.batched(x, target, *draws)
        losses = self.pass_(x, target, now.share)
        self.total.addcmul_(losses, now.size)
        self.count += 1
        if self.plan.constant is not None:
            gradient += self.plan.constant
        if self.pulls:
            gradient.addcmul_(columns["mu"], self.matrix - self.received)
        if self.decays:
            gradient.addcmul_(columns["weight_decay"], self.matrix)
        if not self.adam:
            self.first.mul_(columns["momentum"]).add_(gradient)
            self.matrix.addcmul_(now.rate, self.first, value=-1)
            return
        b1, b2 = columns["beta1"], columns["beta2"]
        self.first.lerp_(gradient, 1 - b1)
        self.second.mul_(b2).addcmul_(1 - b2, gradient.square_())
        root = (self.second.sqrt() / (1 - b2**self.count).sqrt()).add_(columns["eps"])
        self.matrix.addcmul_(now.rate / (1 - b1**self.count), self.first / root, value=-1)

    def recorded(self) -> Callable[[], None]:
        """Return the step as a CUDA graph, recorded after some steps that are then forgotten."""
        if self.matrix.device.type != "cuda":
            refuse(f"a graph is recorded on cuda, and the model is on {self.matrix.device}")
        self.begin()
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay  # type: ignore[no-any-return]


class ByAutograd:
    """Any network, by one `vmap` and automatic differentiation."""

    def __init__(self, models: Models) -> None:
        self.models, (outputs,) = models, width(models)
        self.outputs = outputs

    def __call__(self, x: Tensor, target: Tensor, share: Tensor) -> Tensor:
        """Leave every model's gradient; return the mean losses [M]."""
        models, model = self.models, self.models.model
        leaf = models.matrix.detach().requires_grad_()

        def outputs(parameters: dict[str, Tensor], inputs: Tensor) -> Any:
            return functional_call(model.module, parameters, (inputs,))

        with model.rounding():
            computed: Tensor = vmap(outputs, randomness="error")(model.layout.views(leaf), x)
        losses = (per_example(models.loss, computed.to(leaf.dtype), target) * share).sum(1)
        (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        models.gradient.copy_(gradient)
        return losses.detach()


class ByChain:
    """Perceptrons, in closed form."""

    def __init__(self, models: Models, chain: Chain) -> None:
        layout, self.chain, self.loss = models.model.layout, chain, models.loss
        self.views, self.gradients = layout.views(models.matrix), layout.views(models.gradient)
        self.outputs = self.views[chain.layers[-1].weight].shape[1]

    def __call__(self, x: Tensor, target: Tensor, share: Tensor) -> Tensor:
        """Leave every model's gradient; return the mean losses [M]."""
        values = self.chain.forward(self.views, x)
        each, residual = with_residual(self.loss, values[-1], target)
        self.chain.backward(self.views, values, residual * share.unsqueeze(-1), self.gradients)
        return (each * share).sum(1)


def width(models: Models) -> tuple[int]:
    """Return the number of a network's outputs, from one example."""
    model, x = models.model, models.pool.inputs(models.plan.index[:1, :1, :1])
    with torch.no_grad():
        return (model(x[0, 0]).shape[-1],)


def per_example(loss: Loss, outputs: Tensor, target: Tensor) -> Tensor:
    """Return the loss of every example [M, B] for outputs and targets [M, B, C]."""
    if isinstance(loss, SquaredError):
        return (outputs - target).square().squeeze(-1)
    if outputs.shape[-1] > 1:
        return -(outputs.log_softmax(-1) * target).sum(-1)
    each = F.binary_cross_entropy_with_logits(outputs, target, reduction="none")
    return each.squeeze(-1)


def with_residual(loss: Loss, outputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of every example [M, B], and its derivative by the outputs [M, B, C].

    Note:
        Written out, the softmax of a few classes is several times as fast as torch's on a CPU.
    """
    if isinstance(loss, CrossEntropy) and outputs.shape[-1] > 1:
        logits = outputs - outputs.amax(-1, keepdim=True)
        shares = logits.exp()
        total = shares.sum(-1, keepdim=True)
        each = total.log().squeeze(-1) - (logits * target).sum(-1)  # targets sum to 1
        return each, shares.div_(total).sub_(target)
    each = per_example(loss, outputs, target)
    if isinstance(loss, SquaredError):
        return each, 2 * (outputs - target)
    return each, outputs.sigmoid() - target


def refuse(reason: str) -> None:
    """Say why models cannot be trained as one batch."""
    remedy = "Train them one after the other (unseen.InProcess)."
    raise UnseenError(f"{PREFIX}{reason}.", remedy=remedy)
