"""What a study's `[privacy]` table makes of its methods, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from unseen.client import Client
from unseen.datasets.base import DataSet
from unseen.errors import UnseenError
from unseen.exchange import Method
from unseen.study import sealed
from unseen.study.spec import Study

#: Channels that show the server no single client's row.
SUMMED = ("masks", "ckks")


def is_noised(study: Study) -> bool:
    """Whether the study asks for noise of any kind."""
    return bool(study.privacy.examples or study.privacy.clients)


def privatised(method: Method, study: Study) -> Method:
    """The method with the noise that the study asks for."""
    if not is_noised(study):
        return method
    from unseen.privacy.dp import private, read

    examples, clients = read(study.privacy.examples, study.privacy.clients)
    channel = str(getattr(study.privacy, "channel", "")).split("(")[0].strip()
    return private(method, examples, clients, study.participation, channel in SUMMED)


def check_private(
    study: Study, data: DataSet, network: nn.Module, clients: Mapping[str, Client]
) -> list[str]:
    """Refuse what would leave the clients without noise all the same; what deserves a warning."""
    if not is_noised(study):
        return []
    from unseen.privacy.accounting import opacus
    from unseen.privacy.clipped import check_layers
    from unseen.privacy.dp import read

    opacus("accountants")
    if data.schema is not None:
        raise UnseenError(
            f"privacy: {data.name} is standardised and imputed with sums that leave the clients "
            "before training, without noise. Bring its columns to fixed public ranges beforehand "
            "and give them as images or arrays, or leave the noise out."
        )
    if study.training.oversample:
        raise UnseenError(
            "privacy: training.oversample repeats examples, so that one of them may enter a step "
            "many times and no bound on its part holds. Leave it out."
        )
    check_layers(network, f"{study.model or 'the model'}+dp")
    examples, whole = read(study.privacy.examples, study.privacy.clients)
    warnings = []
    for name, client in clients.items() if examples is not None else ():
        n = len(client.split("train"))
        if examples is not None and examples.delta >= 1 / n:
            warnings.append(
                f"privacy.examples: δ = {examples.delta:g} is no less than 1/{n}, one over the "
                f"number of examples of client {name!r}: publishing one example whole would count "
                "as private."
            )
    for where, dp in (("examples", examples), ("clients", whole)):
        if dp is not None and (dp.seed is not None or not dp.noise):
            why = "its noise follows from a known seed" if dp.seed is not None else "noise = 0"
            warnings.append(f"privacy.{where} protects nothing: {why}.")
    return warnings


def protocol(study: Study) -> list[str]:
    """What stands under a table about noise."""
    lines = sealed.protocol(study)
    if study.privacy.examples:
        lines.append(f"noise on examples' gradients, Poisson batches: {study.privacy.examples}")
    if study.privacy.clients:
        lines.append(f"noise on clients' replies: {study.privacy.clients}")
    if is_noised(study):
        lines.append(
            "noise and batches are drawn anew in every run, so that these figures are not "
            "reproducible bit for bit; validation splits are not covered by the guarantee"
        )
    return lines
