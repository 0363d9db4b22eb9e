"""Which batches a network with BatchNorm can train on."""

import copy
from collections.abc import Mapping

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.core.client import Client, Split
from unseen.core.global_draws import global_draws
from unseen.errors import UnseenError
from unseen.studies.settings.study import StudySpec


def check_batches(module: torch.nn.Module, roster: Mapping[str, Client], study: StudySpec) -> None:
    """Refuse a batch of one for a model with BatchNorm: it has no variance."""
    if not any(isinstance(layer, _BatchNorm) for layer in module.modules()):
        return
    batch = study.training.batch_size
    for name, client in roster.items():
        n = len(client.split("train"))
        one_left = batch == 1 or (n % batch == 1 and not study.training.drop_last)
        if one_left and not takes_one(module, client.split("train")):
            what = (
                f"client {name!r} has {n} training examples, so that with batch_size = {batch} a "
            )
            what += "batch of one remains, which BatchNorm cannot normalise."
            way = "Set training.drop_last = true, or another" if batch > 1 else "Set another"
            raise UnseenError(what, remedy=f"{way} batch size.")


def takes_one(module: torch.nn.Module, split: Split) -> bool:
    """Return whether a network trains on one example: BatchNorm of maps has many numbers of it."""
    network, (x, _) = copy.deepcopy(module).train(), split.batch(slice(0, 1))
    try:
        with torch.no_grad(), global_draws():
            network(x.to(next(network.parameters(), x).device))
    except ValueError:  # torch: more than one value per channel
        return False
    return True
