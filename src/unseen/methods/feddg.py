"""FedDG: episodes between a client's own images and their likes in other clients' styles."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from unseen.combine import Mean
from unseen.core.exchange import Method, Reference
from unseen.gradient import Backprop, Episodic
from unseen.images.bank import Bank, with_bank
from unseen.images.frequency import Window
from unseen.local.train import Train
from unseen.methods.base import asking, federated
from unseen.recipe import Training

REFERENCE = Reference(
    "Liu, Chen, Qin, Dou, Heng. FedDG: Federated Domain Generalization on Medical Image "
    "Segmentation via Episodic Learning in Continuous Frequency Space. CVPR 2021.",
    """@inproceedings{liu2021feddg,
  title     = {{FedDG}: Federated Domain Generalization on Medical Image Segmentation via Episodic
               Learning in Continuous Frequency Space},
  author    = {Liu, Quande and Chen, Cheng and Qin, Jing and Dou, Qi and Heng, Pheng-Ann},
  booktitle = {Conference on Computer Vision and Pattern Recognition},
  year      = {2021}
}""",
)


def feddg(
    training: Training,
    *,
    L: float = 0.0,
    interpolation: Literal["continuous", "swap"] = "continuous",
    inner_lr: float = 1e-3,
    order: Literal["first", "second"] = "first",
    scale: Literal["mean", "sum"] = "mean",
    bank: int = 16,
    weights: Literal["examples", "uniform"] = "examples",
) -> Method:
    """A step that, taken on a client's images, also serves them in another client's style (ELCFS).

        w' = w − η clamp(∇F(w; x), ±100),      w ← w − lr · c [∇F(w; x) + ∇F(w'; x̃)]
        |F(x̃)| = (1 − λ) |F(x)| + λ A inside the window,   arg F(x̃) = arg F(x)

    A: the amplitude of an image of another client, anew for each image. This is CSAC's row FedDG,
    the method without what it has for segmentation: the boundary term is left out.

    L: the window, frequencies of at most ⌊L · min(H, W)⌋; 0 is the mean of each channel alone,
    which is what the released training code passes, although its demonstration shows 0.003 (the
    DC coefficient too, below 334 pixels); try 0.1 for small images. interpolation: λ ~ U(0, 1) for
    each image, the continuous frequency space of the title, or λ = 1, `"swap"`, since in the
    released code the interpolation is commented out. inner_lr: η, 0.001 as released, there with
    Adam at 0.001. order: as released `"first"`, w' counting as a constant; `"second"`
    differentiates through it. scale: c = ½ (`"mean"`), or 1 (`"sum"`) as released. The released
    code trains with Adam, whose step does not depend on c; under SGD the sum is twice FedAvg's
    learning rate, at which small networks with momentum collapse, so the mean is the default. bank:
    images per client whose amplitudes are sent, once, before round 0; the released code hands on an
    eighth of them. weights: see `fedavg`; the released ones are by examples, rounded to two
    decimals.

    x̃ is clipped to the range of the pixels. As released but for: the mean of the two losses;
    amplitudes outside the window, which nobody reads, are not sent; every image has one style per
    step, of any other client; statistics of BatchNorm are averaged like the weights, and come from
    the pass on x alone.
    """
    source = Bank("feddg", Window(L), bank)
    episodic = Episodic(
        Backprop(training.loss),
        source,
        inner_lr,
        interpolation=interpolation,
        order=order,
        scale=scale,
    )
    local = Train(episodic, training)
    method = federated("feddg", training, Mean(weights), REFERENCE, local)
    shares = f"the amplitudes of {bank} training images in the window, once, to every client"
    return asking(replace(with_bank(method, source), shares=(shares,)), "images")
