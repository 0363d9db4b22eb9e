"""FedCCRL's objective: images in other clients' styles must be represented and predicted alike."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.core import Client, Inbox, Memory, Model, Turn
from unseen.core.losses import Loss
from unseen.methods.gradient.backprop import Step
from unseen.methods.gradient.heads import head_layer
from unseen.methods.images.augmix import AugMix
from unseen.methods.images.bank import Bank
from unseen.methods.images.features import recorded, tapped
from unseen.methods.images.frequency import pixel_range
from unseen.ranges import Checked, NotNegative, Positive, log

#: Under the root of a variance, as released.
EPSILON = 1e-6


@dataclass(frozen=True)
class CrossClient(Checked, named="fedccrl"):
    """g = ∇ [mean_v F(x_v) + contrast · SupCon(z_0, z_1, z_2) + consistency · JS(p_0, p_1, p_2)].

    x_0 = x; x_1 and x_2: x with channel means and deviations (1 − λ)(μ, σ) + λ (μ', σ') of another
    client's image, λ ~ Beta(beta, beta) for each example, clipped to the range of the pixels, and
    then AugMix; z: what enters the head; p: predicted probabilities.

    Attributes:
        loss: F.
        bank: the statistics of other clients' images.
        contrast: of the supervised contrast.
        consistency: of the Jensen-Shannon divergence.
        temperature: of the supervised contrast.
        beta: of the distribution of λ.
        transfer: whether views take foreign statistics.
        augment: the second half of a view; none for none.

    Note:
        Three passes per batch, one per view; without transfer and augment there is x alone.

    Source:
        Wang, Guo, Tang 2024, "FedCCRL".
    """

    loss: Loss
    bank: Bank
    contrast: Annotated[NotNegative, log(0.01, 1)] = 0.1
    consistency: Annotated[NotNegative, log(0.1, 10)] = 1.0
    temperature: Annotated[Positive, log(0.05, 1)] = 0.1
    beta: Positive = 0.1
    transfer: bool = True
    augment: AugMix | None = field(default_factory=AugMix)

    @contextmanager
    def open(
        self, model: Model, inbox: Inbox, client: Client, memory: Memory, turn: Turn
    ) -> Iterator[Step]:
        loss = self.loss.open(model, inbox, client, memory, turn)
        pool, generator = self.bank.others(inbox, turn), turn.generator("fedccrl")
        low, high = pixel_range(client.split("train"))
        rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        count = 3 if self.transfer or self.augment is not None else 1

        def view(x: Tensor) -> Tensor:
            if self.transfer:
                lam = torch.from_numpy(rng.beta(self.beta, self.beta, len(x)))
                x = restyled(x, self.bank.draw(pool, len(x), generator), lam).clamp(low, high)
            if self.augment is not None and high > low:
                x = self.augment((x - low) / (high - low), generator) * (high - low) + low
            return x

        entering: list[Tensor] = []

        def keep(z: Tensor) -> Tensor:
            entering.append(z.flatten(1))
            return z

        with (
            recorded(model.module, ("",)) as outputs,
            tapped(model.module, head_layer(model)[0], "input") as tap,
        ):
            tap.change = keep

            def step(x: Tensor, y: Tensor) -> Tensor:
                entering.clear()
                values, p = [], []
                for v in range(count):
                    values.append(loss(model, view(x) if v else x, y))
                    p.append(probabilities(outputs()[0]))
                total = sum(values[1:], values[0]) / count
                if self.contrast and count > 1:
                    z, labels = torch.cat(entering), y.repeat(count)
                    total = total + self.contrast * supervised_contrast(z, labels, self.temperature)
                if self.consistency and count > 1:
                    total = total + self.consistency * jensen_shannon(p)
                model.gradient.zero_()
                total.backward()  # type: ignore[no-untyped-call]
                return total.detach()

            yield step


def statistics(x: Tensor) -> Tensor:
    """Return the mean and deviation of each channel of each image [N, C, H, W], as [N, 2, C]."""
    flat = x.flatten(2)
    return torch.stack([flat.mean(2), (flat.var(2) + EPSILON).sqrt()], dim=1)


def restyled(x: Tensor, other: Tensor, lam: Tensor) -> Tensor:
    """Return images with statistics drawn by λ [N] to others', [N, 2, C] in any shape."""
    own, other = statistics(x), other.view(len(x), 2, x.shape[1])
    lam = lam.view(-1, 1, 1).to(x)
    target = (1 - lam) * own + lam * other
    (mean, deviation), (new, scale) = (s[..., None, None].unbind(1) for s in (own, target))
    return (x - mean) / deviation * scale + new


def probabilities(outputs: Tensor) -> Tensor:
    """Return class probabilities [N, C] of logits [N, C], or [N, 2] of logits of class 1 [N, 1]."""
    if outputs.shape[-1] == 1:
        return torch.cat([(-outputs).sigmoid(), outputs.sigmoid()], dim=-1)
    return outputs.softmax(-1)


def supervised_contrast(z: Tensor, y: Tensor, temperature: float = 0.1) -> Tensor:
    """Return mean_i −1/|P(i)| Σ_{p ∈ P(i)} log [exp(s_ip) / Σ_{a≠i} exp(s_ia)], s = cosine / τ.

    P(i): the others of i's class y_i; an anchor without any counts 0.

    Args:
        z: features [M, D].
        y: classes [M].
        temperature: τ.

    Source:
        Khosla et al. 2020, "Supervised Contrastive Learning", Eq. 2.
    """
    z = F.normalize(z, dim=1)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    similar = (z @ z.T / temperature).masked_fill(itself, float("-inf"))
    logs = similar - similar.logsumexp(1, keepdim=True)
    positive = (y[:, None] == y) & ~itself
    of_positives = torch.where(positive, logs, 0).sum(1) / positive.sum(1).clamp_min(1)
    return -of_positives.mean()


def jensen_shannon(p: Sequence[Tensor]) -> Tensor:
    """Return mean_n (1/V) Σ_v KL(p_v ‖ p̄) for V tables of probabilities [N, C], in nats."""
    table = torch.stack(list(p))
    logs, middle = (t.clamp_min(1e-7).log() for t in (table, table.mean(0)))
    return (table * (logs - middle)).sum(-1).mean()
