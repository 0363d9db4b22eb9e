"""AM: images whose amplitude spectra are mixed, within a client or across clients."""

from dataclasses import replace
from typing import Any

from unseen.core import Method
from unseen.core.parts import layers
from unseen.methods.base import (
    asking,
    cited,
    citing,
    incompatible,
    trained,
    with_gradient,
)
from unseen.methods.gradient import AmplitudeMix, Normalised
from unseen.methods.images.bank import Bank, with_bank
from unseen.methods.images.frequency import Window
from unseen.methods.options import options_from


@options_from(AmplitudeMix)
def add_am(method: Method, *, across: bool = False, bank: int = 16, **options: Any) -> Method:
    """Mix another image's amplitude spectrum into half of the images.

        x̃ = F⁻¹[((1 − λ) |F(x)| + λ |F(x')|) e^{i arg F(x)}],   λ ~ U(0, strength)

    F: the discrete Fourier transform of each channel; x': another image of the same batch. p=0 is
    FedAvg.

    Args:
        method: The method that is changed.
        across: x' is another client's, out of amplitude spectra that each client sends once before
            round 0 and everybody receives; neither paper's federated row has it.
        bank: images per client whose spectra are sent, if `across`.
        **options: The other options of the page.

    Note:
        GA's released scripts of this row end on an import that does not exist.

        On CSAC it mixes in the calibration, not in the first round.

    Departs from:
        FACT, the source, which mixes always, with an image of any source domain, trains on the
        image itself next to the mixed one, and adds a teacher and a dual loss; and GA's code, which
        mixes after normalisation and does not clip.
    """
    if cited("xu2021fourier") in method.references:
        raise incompatible(method, "am", "mixes amplitudes already.", "Set its own p.")
    if across and method.gather is not None:
        why = "pools the data, so that there is no other client to take an amplitude from."
        raise incompatible(method, "am", why, "Take across=False.")
    normalised = [part for part in layers(trained(method).local) if isinstance(part, Normalised)]
    if normalised and normalised[0].window.share is None:
        why = "replaces the whole amplitude of every image, so that nothing of what AM mixes would "
        raise incompatible(method, "am", f"{why}be left.")
    source = Bank("am", Window(), bank) if across else None
    mixed = with_gradient(method, lambda inner: AmplitudeMix(inner, bank=source, **options))
    if source is not None:
        shares = f"the amplitude spectra of {bank} training images, once, to every client"
        mixed = replace(with_bank(mixed, source), shares=(*method.shares, shares))
    return asking(citing(mixed, "xu2021fourier"), "images")
