"""What a study's `[privacy]` table makes of its methods, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from unseen.client import Client
from unseen.datasets.base import DataSet
from unseen.datasets.totals import Totals
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


def check_columns(study: Study, data: DataSet) -> None:
    """Refuse sums over columns that no noise protects, and ranges where there are no columns."""
    ranges, totals = study.privacy.columns, Totals.of(data)
    if totals is None and ranges is not None:
        raise UnseenError(f"privacy.columns is for tables, and {data.name} is none. Leave it out.")
    if totals is not None and ranges is not None:
        totals.of_ranges(ranges)
    if totals is None or ranges is not None or not is_noised(study):
        return
    numeric = totals.columns
    also = f", the label {totals.label!r} among them" if totals.label is not None else ""
    raise UnseenError(
        f"privacy: {data.name} is standardised and imputed with sums that leave the clients "
        f"before training, without noise. Say in which ranges its numeric columns lie{also}, by "
        "what is known without looking at the data, such as privacy.columns = "
        f"{{{', '.join(f'{name} = [0, 100]' for name in numeric)}}}; or leave the noise out."
    )


def check_noised(study: Study, data: DataSet, network: nn.Module) -> None:
    """Refuse what would leave a client without noise all the same. Every site looks for itself."""
    check_columns(study, data)
    if not is_noised(study):
        return
    from unseen.privacy.clipped import check_layers

    if study.training.oversample:
        raise UnseenError(
            "privacy: training.oversample repeats examples, so that one of them may enter a step "
            "many times and no bound on its part holds. Leave it out."
        )
    check_layers(network, f"{study.model or 'the model'}+dp")


def check_private(
    study: Study, data: DataSet, network: nn.Module, clients: Mapping[str, Client]
) -> list[str]:
    """As `check_noised`, before anything runs; what deserves a warning."""
    check_noised(study, data, network)
    if not is_noised(study):
        return []
    from unseen.privacy.accounting import opacus
    from unseen.privacy.dp import read

    opacus("accountants")
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
    if study.privacy.columns is not None:
        lines.append("columns scaled by public ranges; no statistics of them left the sites")
    if is_noised(study):
        lines.append(
            "noise and batches are drawn anew in every run, so that these figures are not "
            "reproducible bit for bit; validation splits are not covered by the guarantee"
        )
    return lines
