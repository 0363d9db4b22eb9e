"""AM: images whose amplitude spectra are mixed, within a client or across clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from unseen.combine import Mean
from unseen.core.exchange import Method, Reference
from unseen.core.parts import layers
from unseen.errors import Incompatible
from unseen.gradient import AmplitudeMix, Normalised
from unseen.images.bank import Bank, with_bank
from unseen.images.frequency import Window
from unseen.methods.base import asking, citing, federated, trained, with_gradient
from unseen.recipe import Training

REFERENCE = Reference(
    "Xu, Zhang, Zhang, Wang, Tian. A Fourier-based Framework for Domain Generalization. CVPR 2021. "
    "Amplitude mix; in federations GA's baseline AM.",
    """@inproceedings{xu2021fourier,
  title     = {A {Fourier}-based Framework for Domain Generalization},
  author    = {Xu, Qinwei and Zhang, Ruipeng and Zhang, Ya and Wang, Yanfeng and Tian, Qi},
  booktitle = {Conference on Computer Vision and Pattern Recognition},
  year      = {2021}
}""",
)


def am(
    training: Training,
    *,
    p: float = 0.5,
    strength: float = 1.0,
    clip: bool = True,
    across: bool = False,
    bank: int = 16,
    weights: Literal["examples", "uniform"] = "examples",
) -> Method:
    """FedAvg on images of which half have the amplitude of another image mixed into their own.

        x̃ = F⁻¹[((1 − λ) |F(x)| + λ |F(x')|) e^{i arg F(x)}],   λ ~ U(0, strength)

    F: the discrete Fourier transform of each channel; x': another image of the same batch. p: the
    probability with which a batch is mixed, all of it, as in GA's code; FACT (the source) always
    mixes, beside the image itself, and adds a teacher and a dual loss that are left out here.
    strength: 1 in GA's code; FACT has 1 for PACS and 0.2 for OfficeHome. clip: to the range of the
    pixels, as FACT does; GA's code mixes after normalisation and does not clip. across: x' is
    another client's, out of amplitude spectra of `bank` images that each client sends once before
    round 0 and everybody receives; neither paper's federated row has it. weights: see `fedavg`.

    p=0 is FedAvg. GA's released scripts of this row end on an import that does not exist.
    """
    method = federated("am", training, Mean(weights), REFERENCE)
    return mixing(method, p, strength, clip, across, bank)


def add_am(
    method: Method,
    *,
    p: float = 0.5,
    strength: float = 1.0,
    clip: bool = True,
    across: bool = False,
    bank: int = 16,
) -> Method:
    """Mix amplitude spectra of images under any method's local training; options as for `am`.

    Under CSAC's calibration, that is, and not in its first round.
    """
    if REFERENCE in method.references:
        raise Incompatible(
            f"{method.name}+am", f"{method.name} mixes amplitudes already; set its own p."
        )
    if across and method.gather is not None:
        raise Incompatible(
            f"{method.name}+am",
            f"{method.name} pools the data, so that there is no other "
            "client to take an amplitude from; take across=False.",
        )
    if erased(method):
        raise Incompatible(
            f"{method.name}+am",
            f"{method.name} replaces the whole amplitude of every "
            "image, so that nothing of what AM mixes would be left.",
        )
    return citing(mixing(method, p, strength, clip, across, bank), REFERENCE)


def mixing(
    method: Method, p: float, strength: float, clip: bool, across: bool, bank: int
) -> Method:
    """The method with mixed amplitudes in its local training."""
    source = Bank("am", Window(), bank) if across else None
    mixed = with_gradient(method, lambda inner: AmplitudeMix(inner, p, strength, clip, source))
    if source is not None:
        shares = f"the amplitude spectra of {bank} training images, once, to every client"
        mixed = replace(with_bank(mixed, source), shares=(*method.shares, shares))
    return asking(mixed, "images")


def erased(method: Method) -> bool:
    """Whether the method's network replaces the whole amplitude of what enters it."""
    found = [part for part in layers(trained(method).local) if isinstance(part, Normalised)]
    return bool(found) and found[0].window.share is None
