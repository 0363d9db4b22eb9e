"""Stacking: federations of different methods, weighed by how they predict sites left out."""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from unseen.core import ONE_LABEL, Method
from unseen.errors import UnseenError
from unseen.methods.base import asking
from unseen.methods.mixed import Member, stacked
from unseen.methods.recipe import Training
from unseen.methods.together import check_member
from unseen.ranges import NotNegative, Range, log


def stack_of(compose: Callable[[str, Training], Method]) -> Callable[..., Method]:
    """Return the method `stack`, whose members are read by `compose`."""

    def stack(
        training: Training,
        *,
        members: Sequence[str] = ("glm", "boost", "fedavg+ensemble(members=3)"),
        groups: Annotated[int, Range(2)] = 5,
        shrink: Annotated[NotNegative, log(0.005, 0.5)] = 0.05,
        mixing: Literal["sources", "equal"] = "sources",
    ) -> Method:
        """Mix methods of different kinds, by weights that the source sites choose.

            p(x) = Σ_m w_m p_m(x),   w = argmin over the simplex of wᵀA w − 2 bᵀw + λ ‖w − 1/M‖²

        Every member is trained on all sites, and once more without each of G groups of sites. At
        the end each site predicts its own rows with the members that were trained without it, and
        sends A_k = P_kᵀP_k / n_k and b_k = P_kᵀy_k / n_k; their means give the weights with the
        least Brier score at a site left out. If such weights, made of the other sites' sums, are
        not better than equal ones by one standard error over sites, the weights are equal. The
        server sees sums only, so the method goes under masks and encryption if its members do; the
        sum of all goes back to the sites. It takes G + 1 times their work.

        Args:
            training: The recipe.
            members: expressions of methods; their predictions are probabilities or numbers.
            groups: G, groups of sites that are left out in turn, at most one for each site.
            shrink: λ.
            mixing: the weights are chosen by the sources, or equal, for which no site is left out.

        Departs from:
            Wolpert and Breiman, who leave out rows, where here groups of sites are left out; and
            Breiman, whose weights are not drawn to equal ones, need not sum to 1 and are never
            given up.
        """
        if isinstance(members, str) or len(members) < 2:
            raise UnseenError(
                f"stack(members) needs two or more methods; found {members!r}.",
                remedy="Write, for example, stack(members=['glm', 'fedavg']).",
            )
        methods = [compose(member, training) for member in members]
        for member in methods:
            check_member(member, "stack")
        every = [Member((method,)) for method in methods]
        whole = stacked("stack", every, groups if mixing == "sources" else 0, shrink)
        return asking(whole, ONE_LABEL)

    return stack
