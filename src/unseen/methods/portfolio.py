"""Members that differ in kind, each a small ensemble, weighed by sites that they have not seen."""

from collections.abc import Callable, Sequence
from typing import Annotated

from unseen.core import Method
from unseen.errors import UnseenError
from unseen.methods.mixed import stacked
from unseen.methods.together import check_member
from unseen.ranges import Count, NotNegative, Range
from unseen.recipe import Training

#: For tables: networks with and without the shift between sites, a linear model, trees.
MEMBERS = ("fedavg", "fedavg+shift(alpha=0.5)", "fedavg+shift(alpha=1)", "glm", "boost")


def portfolio_of(compose: Callable[[str, Training], Method]) -> Callable[..., Method]:
    """Return the method `portfolio`, whose members are read by `compose`."""

    def portfolio(
        training: Training,
        *,
        members: Sequence[str] = MEMBERS,
        ensemble: Count = 3,
        groups: Annotated[int, Range(2)] = 5,
        shrink: NotNegative = 0.05,
    ) -> Method:
        """Train members that differ in what they assume, and mix them as the sources say.

            p(x) = Σ_m w_m 1/M Σ_i p_mi(x)

        Members that train by rounds are ensembles of M federations; `glm` and `boost` have no
        seed to differ in. Their weights w are those of `stack`: the least Brier score at groups of
        source sites that were left out, shrunk towards equal weights, and equal unless better by
        one standard error over sites. What wins at a new site is rarely known beforehand; a
        mixture of members whose errors differ is seldom behind the best of them. Everything goes
        by sums, so that masks and encryption carry it; `bag(of='trees')` is one more member where
        models may be seen.

        Args:
            training: The recipe.
            members: expressions of methods.
            ensemble: M, for members that train by rounds.
            groups: groups of sites that are left out in turn.
            shrink: λ of `stack`.
        """
        if isinstance(members, str) or len(members) < 2:
            raise UnseenError(
                f"portfolio(members) needs two or more methods; found {members!r}.",
                remedy="Write, for example, portfolio(members=['glm', 'fedavg']).",
            )
        methods = [compose(member, training) for member in members]
        for place, (text, member) in enumerate(zip(members, methods, strict=True)):
            if member.rounds is None and ensemble > 1 and "+ensemble" not in text:
                methods[place] = compose(f"{text}+ensemble(members={ensemble})", training)
            check_member(methods[place], "portfolio")
        return stacked("portfolio", methods, groups, shrink)

    return portfolio
