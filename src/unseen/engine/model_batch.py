"""One batch of models: the rows of one [M, P] matrix are M models that train together.

Each step takes one batch of every model's data, one pass over strided views of the matrix (in
closed form for perceptrons, else one `vmap`), and one optimiser step on all rows. Up to rounding
the results are those of training one by one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from unseen.core import Model
from unseen.core.optimiser import Adam
from unseen.core.parts import layers
from unseen.core.vector import stack
from unseen.engine.batch_layers import sharing
from unseen.engine.batch_losses import per_example, with_residual
from unseen.engine.batch_plan import (
    Answer,
    BatchPlan,
    Examinee,
    Member,
    Now,
    Pool,
    Trainee,
    planned,
)
from unseen.engine.perceptrons import Chain
from unseen.engine.whole_splits import ROWS, answers, loss_of, together
from unseen.errors import UnseenError

PREFIX = "these models cannot be trained as one batch: "
#: Models of one batch on a CPU: with more of them, rows and moments leave the cache.
TOGETHER = 64


@dataclass
class Trainer:
    """Trains or differentiates models of any kinds; those of one kind as one batch.

    Attributes:
        graph: Whether to record a step once as a CUDA graph and replay it.
        pools: Kind of inputs and labels -> their training data.
    """

    graph: bool = False
    pools: dict[Any, Pool] = field(default_factory=dict)

    def __call__(self, members: Sequence[Member]) -> list[Answer]:
        """Return what the members reply, in their order."""
        alike: dict[Any, list[int]] = {}
        for i, member in enumerate(members):
            alike.setdefault(kind(member), []).append(i)
        by_place: dict[int, Answer] = {}
        for places in alike.values():
            # Neighbours take about as many steps or rows, so that few of them are padding.
            places.sort(key=lambda i: len(members[i].client.split("train")))
            for part in parts(places, members):
                by_place |= zip(part, self.batch([members[i] for i in part]), strict=True)
        return [by_place[i] for i in range(len(members))]

    def batch(self, members: Sequence[Member]) -> list[Answer]:
        """Return what members of one kind reply, as one batch."""
        pool = self.pool(members)
        trainees = [member for member in members if isinstance(member, Trainee)]
        if trainees:
            return train(trainees, pool, self.graph)
        return answers([member for member in members if isinstance(member, Examinee)], pool)

    def pool(self, members: Sequence[Member]) -> Pool:
        """Return the data of all members, which are of one kind."""
        splits = [member.client.split("train") for member in members]
        x, y, device = splits[0].x, splits[0].y, members[0].model.device
        key = (tuple(x.shape[1:]), x.dtype, y.dtype, device)
        pool = self.pools.setdefault(key, Pool(device))
        pool.add(splits)
        return pool


def parts(places: Sequence[int], members: Sequence[Member]) -> list[Sequence[int]]:
    """Return the places of members of one kind, shortest split first, in parts for one batch."""
    first = members[places[0]]
    on_cpu = first.model.device.type == "cpu"
    lengths = [len(members[i].client.split("train")) for i in places]
    if isinstance(first, Trainee):
        return runs(places, TOGETHER) if on_cpu else alike(places, lengths)
    cuts = together(lengths, ROWS if on_cpu else 64 * ROWS)
    return [places[cut.start : cut.stop] for cut in cuts]


def runs(places: Sequence[int], size: int) -> list[Sequence[int]]:
    """Return runs of places, of about equal length and of up to `size`."""
    count = -(-len(places) // size)
    cuts = [round(len(places) * i / count) for i in range(count + 1)]
    return [places[a:b] for a, b in pairwise(cuts)]


def alike(places: Sequence[int], lengths: Sequence[int]) -> list[Sequence[int]]:
    """Return runs of places in which no split is more than twice as long as the shortest.

    A model that has taken its steps rests until the others have theirs, and costs what they do.
    """
    begins = [0]
    for i, length in enumerate(lengths):
        if length > 2 * max(lengths[begins[-1]], 1):
            begins.append(i)
    return [places[a:b] for a, b in pairwise([*begins, len(places)])]


#: Model -> what tells networks apart; models of a job are asked for in every exchange.
NETWORKS: WeakKeyDictionary[Model, tuple[Any, ...]] = WeakKeyDictionary()
#: What every module has.
OF_MODULES = frozenset(vars(nn.Module()))


def network(model: Model) -> tuple[Any, ...]:
    """Return what differs whenever two networks do in more than what a batch stacks."""
    if model not in NETWORKS:
        own = {name: settings(layer) for name, layer in model.module.named_modules()}
        NETWORKS[model] = model.layout.fingerprint, str(model.module), str(own)
    return NETWORKS[model]


def settings(layer: nn.Module) -> dict[str, Any]:
    """Return a layer's own attributes and buffers of integers, as what `repr` tells apart."""
    integers = {
        name: buffer.tolist()
        for name, buffer in layer.named_buffers(recurse=False)
        if not buffer.is_floating_point()
    }
    return integers | {n: plain(v) for n, v in vars(layer).items() if n not in OF_MODULES}


def plain(value: Any) -> Any:
    """Return a number, a text, or a sequence of these; of any other object who it is."""
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value if value is None or isinstance(value, int | float | str) else id(value)


def kind(member: Member) -> tuple[Any, ...]:
    """Return what the members of one batch share."""
    split = member.client.split("train")
    return (
        network(member.model), member.model.device, member.model.precision, *work(member),
        tuple(split.x.shape[1:]), split.x.dtype, split.y.dtype,
    )  # fmt: skip


def work(member: Member) -> tuple[Any, ...]:
    """Return what members share of what they do."""
    if isinstance(member, Trainee):
        recipe, around = member.local.training, layers(member.local.gradient)
        return type(recipe.optimiser), recipe.loss, recipe.augment, tuple(map(type, around))
    assert isinstance(member, Examinee)
    return type(member.local), loss_of(member.local), member.penalty is None


def train(members: Sequence[Trainee], pool: Pool, graph: bool = False) -> list[Answer]:
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
    numbers = zip(models.matrix, models.buffers, sizes, steps, means, strict=True)
    return [
        Answer({"model": row, "buffers": own}, {"examples": n, "steps": s, "loss": v})
        for row, own, n, s, v in numbers
    ]


class Models:
    """M models on their way: rows, statistics, moments and losses, changed in place by every step.

    Note:
        A step reads its batch from tensors of its own, so that a recorded step can be replayed.
    """

    def __init__(self, members: Sequence[Trainee], pool: Pool, plan: BatchPlan) -> None:
        self.model, self.pool, self.plan = members[0].model, pool, plan
        recipe = members[0].local.training
        self.loss, self.adam = recipe.loss, isinstance(recipe.optimiser, Adam)
        self.decays = bool(plan.columns["weight_decay"].any())
        self.pulls = bool(plan.columns["mu"].any())
        self.received = stack(len(members), self.model.vector)
        for row, member in zip(self.received, members, strict=True):
            row.copy_(member.inbox["model"])
        self.first_buffers = torch.stack([statistics(member) for member in members])
        self.buffers = self.first_buffers.clone()
        self.matrix = stack(len(members), self.model.vector)
        self.gradient = stack(len(members), self.model.vector)
        chain = Chain.of(self.model.module) if self.model.precision == "float32" else None
        self.pass_ = ByChain(self, chain) if chain is not None else ByAutograd(self)
        self.first = torch.zeros_like(self.matrix)
        self.second = torch.zeros_like(self.matrix if self.adam else self.matrix[:0])
        self.total, self.count = self.matrix.new_zeros(len(members)), self.matrix.new_zeros(())
        self.targets = pool.targets(self.loss, plan.outputs)
        self.t = 0
        if len(plan.index):
            self.now = plan.at(0).clone()

    def play(self, graph: bool) -> None:
        if graph and self.plan.images is not None:
            refuse("a graph cannot hold augmentation, whose draws come from the CPU")
        step = self.recorded() if graph else self.step
        self.begin()
        for t in range(len(self.plan.index)):
            if graph:
                self.now.copy_(self.plan.at(t))
            else:
                self.now = self.plan.at(t)
            self.t = t
            step()

    def begin(self) -> None:
        self.matrix.copy_(self.received)
        self.buffers.copy_(self.first_buffers)
        for moments in (self.first, self.second, self.total, self.count):
            moments.zero_()

    def step(self) -> None:
        now, columns, gradient = self.now, self.plan.columns, self.gradient
        x, target = self.pool.batch(now.index, self.targets)
        if self.plan.images is not None:
            x = self.plan.images.at(self.t, x)
        for (change, _), draws in zip(self.plan.changes, now.draws, strict=True):
            x, target = change.batched(x, target, *draws)
        losses = self.pass_(x, target, now)
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
        self.models = models

    def __call__(self, x: Tensor, target: Tensor, now: Now) -> Tensor:
        """Leave every model's gradient; return the mean losses [M]."""
        models, model = self.models, self.models.model
        leaf = models.matrix.detach().requires_grad_()

        def outputs(tensors: dict[str, Tensor], inputs: Tensor, share: Tensor, masks: Any) -> Any:
            with sharing(model.module, share, models.plan.least, masks):
                return functional_call(model.module, tensors, (inputs,))

        tensors = model.layout.views(leaf) | model.buffer_layout.views(models.buffers)
        with model.rounding():
            each = vmap(outputs, randomness="error")(tensors, x, now.share, now.masks)
        losses = (per_example(models.loss, each.to(leaf.dtype), target) * now.share).sum(1)
        (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        models.gradient.copy_(gradient)
        return losses.detach()


class ByChain:
    """Perceptrons, in closed form."""

    def __init__(self, models: Models, chain: Chain) -> None:
        layout, self.chain, self.loss = models.model.layout, chain, models.loss
        self.views, self.gradients = layout.views(models.matrix), layout.views(models.gradient)

    def __call__(self, x: Tensor, target: Tensor, now: Now) -> Tensor:
        """Leave every model's gradient; return the mean losses [M]."""
        values = self.chain.forward(self.views, x, now.masks)
        each, residual = with_residual(self.loss, values[-1], target)
        slopes = residual * now.share.unsqueeze(-1)
        self.chain.backward(self.views, values, slopes, self.gradients, masks=now.masks)
        return (each * now.share).sum(1)


def statistics(member: Trainee) -> Tensor:
    """Return BatchNorm's statistics [B] that a model begins with."""
    if member.local.training.buffers == "local" and "buffers" in member.memory:
        return member.memory["buffers"]
    return member.inbox["buffers"]


def refuse(reason: str) -> None:
    """Say why models cannot be trained as one batch."""
    remedy = "Train them one after the other (unseen.InProcess)."
    raise UnseenError(f"{PREFIX}{reason}.", remedy=remedy)
