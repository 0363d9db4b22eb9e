"""What a model's answers rest on, row by row: gradients on the way from an average row to each."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from unseen.core.outputs import probabilities
from unseen.errors import UnseenError, optional
from unseen.models.random_trees import RandomTrees
from unseen.models.trees import Trees
from unseen.serving.evaluation.breakdown import Breakdown
from unseen.serving.evaluation.importance import features_by_column
from unseen.serving.reading.inputs import Inputs, TableInputs

#: Rows and steps that pass at a time.
AT_A_TIME = 4096


def check_gradients(network: nn.Module) -> None:
    """Refuse a network with trees, whose answers jump: their part has no gradient to integrate."""
    if any(isinstance(part, Trees | RandomTrees) for part in network.modules()):
        raise UnseenError(
            "--gradients needs a model that is differentiable; this one has trees.",
            remedy="Take --importance.",
        )


def first_column(outputs: Tensor) -> Tensor:
    """Return a number's outputs [N, 1] as [N]."""
    return outputs[:, 0]


def attribution(
    answered: Callable[[Tensor], Tensor],
    inputs: Inputs,
    sites: Mapping[str, Tensor],
    classes: bool,
    steps: int,
    number: Callable[[Tensor], Tensor] = first_column,
) -> Breakdown:
    r"""Return each column's mean share in the answers, by integrated gradients, largest first.

        a_f(x) = (x_f − b_f) ∫₀¹ ∂F(b + t (x − b)) / ∂x_f dt
        A_c = (1/K) Σ_k (1/n_k) Σ_n |Σ_{f of c} a_f(x_kn)|

    F: the logarithm of the probability of the class that the model answers with, or its number,
    log-risk or probability of an event before the last interval's end; b = 0: a row at the
    sources' means, of no category. The shares of one row add up to F(x) − F(b), so that A_c is in
    units of F.

    Args:
        answered: The model: inputs [N, F] -> outputs [N, C], with gradients.
        inputs: What the model takes.
        sites: Site -> its inputs [N, F].
        classes: Whether outputs are of classes.
        steps: Points at which the integral is evaluated, by Gauss and Legendre.
        number: Outputs [N, C] of other labels than classes -> what is answered [N].

    Raises:
        UnseenError: The model takes images; or captum is missing.

    Source:
        Sundararajan, Taly, Yan. Axiomatic Attribution for Deep Networks. ICML 2017; `captum`.
    """
    attr = optional("captum.attr", "--gradients needs", "explain", "take --importance")
    if not isinstance(inputs, TableInputs):
        raise UnseenError("--gradients is for columns of a table; this model takes images.")

    def value(x: Tensor, answer: Tensor) -> Tensor:
        outputs = answered(x)
        if not classes:
            return number(outputs)
        return probabilities(outputs).log().gather(1, answer[:, None])[:, 0]

    integrated, means, signed = attr.IntegratedGradients(value), [], []
    columns = features_by_column(inputs)
    for x in sites.values():
        with torch.no_grad():
            answer = probabilities(answered(x)).argmax(1) if classes else torch.zeros(len(x)).long()
        shares = integrated.attribute(
            x, additional_forward_args=(answer,), n_steps=steps, internal_batch_size=AT_A_TIME
        )
        of_columns = torch.stack([shares[:, features].sum(1) for features in columns], dim=1)
        means.append(of_columns.abs().mean(0))
        signed.append(of_columns.mean(0))
    size, direction = torch.stack(means).double(), torch.stack(signed).double().mean(0)
    order = size.mean(0).argsort(descending=True, stable=True).tolist()
    spread = size.std(0, correction=0)
    texts = tuple(
        (
            inputs.schema.names[c], f"{size.mean(0)[c]:.4f}",
            f"{spread[c]:.4f}" if len(sites) > 1 else "", f"{direction[c]:+.4f}",
        )
        for c in order
    )  # fmt: skip
    of = "the log probability of the answer" if classes else "the answer"
    note = f"integrated gradients of {of} from a row at the sources' means, {steps} steps; size: "
    note += f"mean over the rows of each of {len(sites)} sites, without sign"
    return Breakdown("Gradients", ("column", "size", "deviation over sites", "mean"), texts, note)
