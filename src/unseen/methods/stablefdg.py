"""StableFDG: feature maps in other styles, and attention to what examples of a class share."""

from dataclasses import replace
from typing import Any

from torch import nn

from unseen.combine import Mean, Weights
from unseen.core import Method
from unseen.core.exchange import Blueprint
from unseen.gradient.class_pairs import ClassPairs, highlighted
from unseen.gradient.style_exploration import StyleExplored
from unseen.methods.base import cited, federated, incompatible, with_gradient
from unseen.methods.options import options_from, picked
from unseen.methods.styles import SOURCE, in_styles
from unseen.recipe import Training


@options_from(StyleExplored)
def stablefdg_style(training: Training, *, weights: Weights = "uniform", **options: Any) -> Method:
    """Run FedAvg on feature maps in styles of another client, and in styles outside the batch's.

        shared:    z ← σ' (z − μ)/σ + μ',   (μ', σ') ~ N(mean_k, deviation_k²),  on half of a batch
        explored:  μ + α (μ − mean_batch(μ)),   σ + α (σ − mean_batch(σ)),       on added examples
        mixed:     λ (μ, σ) + (1 − λ) (μ, σ)_π,   λ ~ Beta,                      on all

    μ, σ: mean and deviation of each channel of an example's map over its pixels; mean_k,
    deviation_k: theirs over the examples of another client k, which clients measure at the received
    model and send before they train; in each round every client has another k. The added examples
    are of the classes with fewest in the batch.

    Args:
        training: The recipe.
        weights: p; uniform as released.
        **options: The other options of the page.

    Note:
        This is one of StableFDG's two parts, hence the name; `stablefdg` has both.

    Departs from:
        the released code, whose sharing gives the styles that k-means++ finds to the first half of
        the batch, whichever examples had them, where here an example keeps its own or takes the
        other client's; where clients do not share in round 0, since no style was sent; and where
        an example whose class is alone in a batch of Office-Home is doubled from another batch;
        and which adds the examples at the first layer that explores, where here they enter the
        network, so that BatchNorm before that layer sees them too.
    """
    plain = federated("stablefdg-style", training, Mean(weights), SOURCE)
    return in_styles(plain, "stablefdg-style", options)


@options_from(StyleExplored)
def add_stablefdg_style(method: Method, **options: Any) -> Method:
    """Train any method's clients on feature maps in other styles: see `stablefdg-style`.

    Note:
        Where data are pooled there is no other client, and styles are explored and mixed alone.
    """
    return in_styles(method, "stablefdg-style", options)


@options_from(StyleExplored, ClassPairs)
def stablefdg(training: Training, *, weights: Weights = "uniform", **options: Any) -> Method:
    """Run `stablefdg-style` in a network that weighs its last maps by what a class shares.

        h(f, Σ_p a_p z_p),   a = softmax_p [k_p·(q̄ + q̄')/2],   q̄ = mean_p q_p
        q_p ∝ W_q z_p + b_q,   k_p ∝ W_k z_p + b_k,   ‖q_p‖ = ‖k_p‖ = 1

    f: what enters the head, the mean of the maps in a ResNet; z_p: the last maps of more than one
    pixel, at pixel p; q̄': the mean query of the next example of the class in the batch. In
    evaluation, and where an example is alone of its class, q̄' = q̄.

    Args:
        training: The recipe.
        weights: p; uniform as released.
        **options: The other options of the page.

    Note:
        W_q, W_k and the wider head are averaged with the model. The weights of what is added begin
        at 0, so that a trained network begins as what it was. In a network that flattens its maps,
        f is what its layers make of them. `share=0, p=0` is the highlighter alone. The equations
        are those of the released code; of the paper only abstract and introduction were available.

    Departs from:
        the released code as `stablefdg-style` does; where an example that is alone of its class
        takes the query of one from another batch; where f is divided by 49, the pixels of the
        last maps at 224 × 224; and where the head begins at random.
    """
    plain = federated("stablefdg", training, Mean(weights), SOURCE)
    return highlighting(plain, "stablefdg", options)


@options_from(StyleExplored, ClassPairs)
def add_stablefdg(method: Method, **options: Any) -> Method:
    """Add StableFDG's styles and highlighter to any method's training: see `stablefdg`.

    Note:
        In passes that a method takes beside its loss's own, examples attend to themselves.
    """
    if cited("nguyen2022fedsr") in method.references:
        why = "bounds what its features say, and attended maps would pass beside them."
        remedy = f"Take {method.name}+stablefdg-style, its styles alone."
        raise incompatible(method, "stablefdg", why, remedy)
    return highlighting(method, "stablefdg", options)


def highlighting(method: Method, name: str, options: dict[str, Any]) -> Method:
    """Return the method in other styles, and with the highlighter in its network."""
    width, before = options["width"], method.adapt

    def adapt(blueprint: Blueprint) -> nn.Module:
        network = blueprint.network if before is None else before(blueprint)
        return highlighted(network, blueprint.shape, width)

    paired = with_gradient(method, lambda g: ClassPairs(g, width), SOURCE)
    changed = in_styles(paired, name, picked(StyleExplored, options))
    return replace(changed, adapt=adapt)
