"""FedAvg and its two limits: one gradient per round (FedSGD) and pooled data (DeepAll)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from unseen.combine import Mean
from unseen.core.apply import Add, Descend
from unseen.core.client import Client, pooled
from unseen.core.exchange import Method, Reference
from unseen.gradient import Backprop
from unseen.local.train import FullGradient
from unseen.methods.base import federated
from unseen.recipe import Training

REFERENCE = Reference(
    "McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep "
    "Networks from Decentralized Data. AISTATS 2017. Algorithm 1.",
    """@inproceedings{mcmahan2017fedavg,
  title     = {Communication-Efficient Learning of Deep Networks from Decentralized Data},
  author    = {McMahan, Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and
               {Ag{\\"u}era y Arcas}, Blaise},
  booktitle = {International Conference on Artificial Intelligence and Statistics},
  year      = {2017}
}""",
)


def fedavg(training: Training, *, weights: Literal["examples", "uniform"] = "examples") -> Method:
    """Average what the clients' local training made of the model.

        x ← Σ_i p_i y_i,   p_i = n_i / Σ_j n_j

    y_i: the model after client i's local training from x; n_i: examples of its training split.
    weights: `"uniform"` takes p_i = 1/K. Which of the two a paper's FedAvg row used is often
    unsaid; in GA's Table 3 uniform weights are ahead by 0.7 points.
    """
    return federated("fedavg", training, Mean(weights), REFERENCE)


def fedsgd(training: Training, *, weights: Literal["examples", "uniform"] = "uniform") -> Method:
    """One gradient over each client's whole training split per round; the server steps.

        x ← optimiser(x, Σ_i p_i ∇F_i(x))

    The training's optimiser and learning rate run on the server, unless a server optimiser is
    set; epochs and batch size have no effect. weights: `"uniform"`, as FedILC's tables use it,
    or `"examples"`.
    """
    apply = Descend(training.optimiser) if training.server == Add() else training.server
    local = FullGradient(Backprop(training.loss))
    return federated("fedsgd", training, Mean(weights), REFERENCE, local, apply)


def deepall(training: Training) -> Method:
    """All source data in one place: the pooled baseline that federation does without.

    One client holds the union of the training splits and trains as FedAvg's clients do;
    validation stays per source domain. It has no server rule to speak of, so nothing composes
    with it on the server. Source: the name is Li et al. 2017 ("Deeper, Broader and Artier Domain
    Generalization"); PPDG and CSAC print it.
    """
    method = federated("deepall", training, Mean("uniform"), POOLED)
    return replace(method, gather=gather)


def gather(clients: Mapping[str, Client]) -> Mapping[str, Client]:
    """The roster of pooled training: one client."""
    return {"pooled": pooled(clients)}


POOLED = Reference(
    "Li, Yang, Song, Hospedales. Deeper, Broader and Artier Domain Generalization. ICCV 2017.",
    """@inproceedings{li2017deeper,
  title     = {Deeper, Broader and Artier Domain Generalization},
  author    = {Li, Da and Yang, Yongxin and Song, Yi-Zhe and Hospedales, Timothy M.},
  booktitle = {International Conference on Computer Vision},
  year      = {2017}
}""",
)
