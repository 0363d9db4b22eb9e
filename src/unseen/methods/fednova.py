"""FedNova: updates are divided by how much local work made them."""

from dataclasses import replace
from typing import Any

from unseen.core import Local, Method
from unseen.core.parts import rewrapped
from unseen.errors import Incompatible, UnseenError
from unseen.methods.base import local_training, with_local
from unseen.methods.combine import NormalizedAveraging
from unseen.methods.local.accumulation import Accumulated, check_sgd
from unseen.methods.local.train import Train
from unseen.methods.new_rule import replace_rule
from unseen.methods.options import options_from


@options_from(NormalizedAveraging, without=("prior",))
def add_fednova(method: Method, **options: Any) -> Method:
    """Average the clients' mean steps, so that those who take more of them do not pull more.

        x ← x + τ_eff Σ_i p_i Δ_i / ‖a_i‖₁,   τ_eff = Σ_i p_i ‖a_i‖₁

    Δ_i = y_i − x; a_i: with which factors the gradients of client i's τ_i steps entered Δ_i.

    Note:
        At a fixed rate this does not remove all drift: on quadratics of curvature a with optima
        x_i* it settles at Σ p_i c_i x_i* / Σ p_i c_i, c_i = (1 − (1 − ηa)^{τ_i}) / (τ_i ηa), which
        tends to the optimum as η → 0.

        `fednova+ga` has GA's a_i in place of p_i, in the sum and in τ_eff: our reading, GA's paper
        leaves it open. The clients' momentum starts from 0 in each round, as released, whatever the
        training says of keeping it. Adam is refused. BatchNorm statistics are averaged by p_i,
        since the weights sum to more than 1.

        Plain SGD has ‖a_i‖₁ = τ_i; momentum m has Σ_{k=1}^{τ_i} (1 − m^k) / (1 − m); `+fedprox`,
        with α = ημ, has (1 − (1 − α)^{τ_i}) / α; see `unseen.methods.local.accumulation`. Equal τ_i
        are FedAvg.

    Departs from:
        the released code with momentum and a proximal term together, whose factors it adds up and
        whose term enters the momentum without being counted.
    """
    local = local_training(method)
    if not isinstance(local, Train):
        why = f"the clients of {method.name} take no steps whose number could be evened out."
        raise Incompatible(f"{method.name}+fednova", why)
    changed = replace_rule(method, "fednova", "wang2020fednova", NormalizedAveraging, options)
    try:
        check_sgd("FedNova", local.training, "Take sgd.")
    except UnseenError as error:
        raise Incompatible(f"{method.name}+fednova", str(error)) from None
    return with_local(changed, lambda outer: Accumulated(forgetful(outer)))


def forgetful(local: Local) -> Local:
    """Return the local with a training whose momentum starts from 0 in each round."""

    def inside(local: Local) -> Local:
        assert isinstance(local, Train)
        return replace(local, training=replace(local.training, keep_optimiser=False))

    return rewrapped(local, inside)
