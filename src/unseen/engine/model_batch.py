"""One batch of models: the rows of one [M, P] matrix are M models that train together.

Each step takes one batch of every model's data, one `vmap` over strided views of the matrix, and
one optimiser step on all rows. Up to rounding the results are those of training one by one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, vmap

from unseen.core import Client, Inbox, Model, Split, Turn
from unseen.core.losses import CrossEntropy, Loss, SquaredError
from unseen.core.optimiser import Adam
from unseen.core.vector import stack
from unseen.errors import UnseenError
from unseen.local.accumulation import proximal
from unseen.local.train import Train, batches

PREFIX = "these models cannot be trained as one batch: "


@dataclass(frozen=True)
class Member:
    """One model of the batch: of which network, who trains it, from where, and how."""

    model: Model
    local: Train
    client: Client
    inbox: Inbox
    turn: Turn


@dataclass(frozen=True)
class Plan:
    """What every step of the M models needs, on their device, before the first of them.

    Attributes:
        index: Rows of the pooled data [T, M, B].
        mask: 1 for an example, 0 for padding [T, M, B].
        rates: Learning rates [T, M, 1]; 0 from a model's last step on.
        columns: One number per model [M, 1], by the name of an option; `mu` is the pull of its
            proximal terms.
    """

    index: Tensor
    mask: Tensor
    rates: Tensor
    columns: Mapping[str, Tensor]


class Pool:
    """The training splits of all clients in one tensor on the device, each of them once."""

    def __init__(self, splits: Sequence[Split], device: torch.device) -> None:
        self.begin: dict[int, int] = {}
        distinct: list[Split] = []
        for split in splits:
            if id(split.x) not in self.begin:
                self.begin[id(split.x)] = sum(map(len, distinct))
                distinct.append(split)
        inputs = [split.x for split in distinct if isinstance(split.x, Tensor)]
        if len(inputs) < len(distinct):
            refuse("the images stay on disk, and a batch of models needs them in memory")
        self.x, self.y = torch.cat(inputs).to(device), torch.cat([s.y for s in distinct]).to(device)
        self.splits = distinct  # alive, so that no other's images get the id of one's

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs [M, B, ...] as floating point and labels [M, B]."""
        x = self.x[index]
        return (x.float() / 255 if x.dtype == torch.uint8 else x), self.y[index]


def train(
    members: Sequence[Member], pool: Pool, graph: bool = False
) -> tuple[Tensor, list[dict[str, float]]]:
    """Return the members' trained vectors [M, P] and what each reports.

    Note:
        Nothing in a step waits for the device: batches, masks and rates are there before the first,
        and losses are read after the last.

    Args:
        members: Who trains what, M times one network.
        pool: Their data.
        graph: Whether to record a step once as a CUDA graph and replay it.
    """
    model = members[0].model
    if any(member.model.layout != model.layout for member in members):
        refuse("they are of different networks")
    plan = planned(members, pool, model.device)
    models = Models(model, members, pool, plan)
    model.module.train()
    models.play(graph)
    counts = plan.mask.sum((0, 2)).clamp(min=1)
    means, steps = (models.total / counts).tolist(), (plan.mask.sum(2) > 0).sum(0).tolist()
    sizes = [len(member.client.split("train")) for member in members]
    numbers = zip(sizes, steps, means, strict=True)
    return models.matrix, [{"examples": n, "steps": s, "loss": value} for n, s, value in numbers]


class Models:
    """M models on their way: rows, moments and losses, changed in place by every step.

    Note:
        A step reads its batch from tensors of its own, so that a recorded step can be replayed.
    """

    def __init__(self, model: Model, members: Sequence[Member], pool: Pool, plan: Plan) -> None:
        self.model, self.pool, self.plan = model, pool, plan
        recipe = members[0].local.training
        self.loss, self.adam = recipe.loss, isinstance(recipe.optimiser, Adam)
        self.received = stack(len(members), model.vector)
        for row, member in zip(self.received, members, strict=True):
            row.copy_(member.inbox["model"])
        self.matrix = stack(len(members), model.vector)
        self.first = torch.zeros_like(self.matrix)
        self.second = torch.zeros_like(self.matrix if self.adam else self.matrix[:0])
        self.total, self.count = self.matrix.new_zeros(len(members)), self.matrix.new_zeros(())
        self.index, self.mask, self.rate = (
            plan.index[0].clone(), plan.mask[0].clone(), plan.rates[0].clone()
        )  # fmt: skip

    def play(self, graph: bool) -> None:
        step = self.recorded() if graph else self.step
        self.begin()
        for t in range(len(self.plan.index)):
            self.index.copy_(self.plan.index[t])
            self.mask.copy_(self.plan.mask[t])
            self.rate.copy_(self.plan.rates[t])
            step()

    def begin(self) -> None:
        self.matrix.copy_(self.received)
        for moments in (self.first, self.second, self.total, self.count):
            moments.zero_()

    def step(self) -> None:
        x, y = self.pool.batch(self.index)
        losses, gradient = descended(self.model, self.matrix, x, y, self.mask, self.loss)
        columns = self.plan.columns
        self.total += losses * self.mask.sum(1)
        self.count += 1
        gradient.addcmul_(columns["mu"], self.matrix - self.received)
        gradient.addcmul_(columns["weight_decay"], self.matrix)
        if not self.adam:
            self.first.mul_(columns["momentum"]).add_(gradient)
            self.matrix.addcmul_(self.rate, self.first, value=-1)
            return
        b1, b2 = columns["beta1"], columns["beta2"]
        self.first.lerp_(gradient, 1 - b1)
        self.second.mul_(b2).addcmul_(1 - b2, gradient.square_())
        root = (self.second.sqrt() / (1 - b2**self.count).sqrt()).add_(columns["eps"])
        self.matrix.addcmul_(self.rate / (1 - b1**self.count), self.first / root, value=-1)

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


def descended(
    model: Model, matrix: Tensor, x: Tensor, y: Tensor, mask: Tensor, loss: Loss
) -> tuple[Tensor, Tensor]:
    """Return every model's mean loss [M] over its batch, and the gradients [M, P]."""
    leaf = matrix.detach().requires_grad_()

    def outputs(parameters: dict[str, Tensor], inputs: Tensor) -> Any:
        return functional_call(model.module, parameters, (inputs,))

    with model.rounding():
        computed: Tensor = vmap(outputs, randomness="error")(model.layout.views(leaf), x)
    each = per_example(loss, computed.to(matrix.dtype), y)
    losses = (each * mask).sum(1) / mask.sum(1).clamp(min=1)
    (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    return losses.detach(), gradient


def per_example(loss: Loss, outputs: Tensor, y: Tensor) -> Tensor:
    """Return the loss of every example [M, B] for outputs [M, B, C]."""
    if isinstance(loss, SquaredError):
        return (outputs.squeeze(-1) - y).square()
    assert isinstance(loss, CrossEntropy)  # `stackable` admits no other
    if outputs.shape[-1] > 1:
        flat = F.cross_entropy(
            outputs.flatten(0, 1), y.flatten(), reduction="none", label_smoothing=loss.smoothing
        )
        return flat.view(y.shape)
    soft = y.to(outputs.dtype) * (1 - loss.smoothing) + loss.smoothing / 2
    return F.binary_cross_entropy_with_logits(outputs.squeeze(-1), soft, reduction="none")


def planned(members: Sequence[Member], pool: Pool, device: torch.device) -> Plan:
    """Plan every member's batches, drawn as it draws them when it trains alone, and its numbers."""
    indices = []
    for member in members:
        split = member.client.split("train")
        begin = pool.begin[id(split.x)]
        indices.append([i + begin for i in batches(split, member.local.training, member.turn)])
    T, B = max(map(len, indices)), max(len(i) for own in indices for i in own)
    index = torch.zeros(T, len(members), B, dtype=torch.long)
    mask, rates = torch.zeros(T, len(members), B), torch.zeros(T, len(members), 1)
    for m, (member, own) in enumerate(zip(members, indices, strict=True)):
        recipe, turn = member.local.training, member.turn
        rates[: len(own), m] = recipe.optimiser.lr * recipe.schedule(turn.round, turn.rounds)
        for t, rows in enumerate(own):
            index[t, m, : len(rows)] = rows
            mask[t, m, : len(rows)] = 1
    names = ("momentum", "weight_decay", "beta1", "beta2", "eps")
    numbers = {n: [getattr(m.local.training.optimiser, n, 0.0) for m in members] for n in names}
    numbers["mu"] = [proximal(member.local.gradient) for member in members]
    columns = {n: torch.tensor(v, device=device).unsqueeze(1) for n, v in numbers.items()}
    kinds = {(type(m.local.training.optimiser), m.local.training.loss) for m in members}
    if len(kinds) > 1:
        refuse("the models of one batch share the kind of optimiser and the loss")
    return Plan(index.to(device), mask.to(device), rates.to(device), columns)


def refuse(reason: str) -> None:
    """Say why models cannot be trained as one batch."""
    remedy = "Train them one after the other (unseen.InProcess)."
    raise UnseenError(f"{PREFIX}{reason}.", remedy=remedy)
