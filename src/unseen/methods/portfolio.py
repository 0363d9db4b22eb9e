"""Members that differ in kind, each a small ensemble, weighed by sites that they have not seen."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated

from unseen.core import Method
from unseen.errors import UnseenError, number
from unseen.methods.mixed import Member, stacked
from unseen.methods.recipe import Training
from unseen.methods.together import check_member
from unseen.ranges import Count, NotNegative, Range, log

#: For tables: networks with and without the shift between sites, a linear model, boosted trees, a
#: forest. For images:
#: networks alone, as the images are, with the sites' shift of each channel, with the amplitudes
#: (the style) of other images, and on mixtures of two.
TABLES = ("fedavg", "fedavg+shift(alpha=0.5)", "fedavg+shift(alpha=1)", "glm", "boost", "forest")
IMAGES = ("fedavg", "fedavg+shift(alpha=0.5)", "fedavg+am", "fedavg+mixup")


def portfolio_of(compose: Callable[[str, Training], Method]) -> Callable[..., Method]:
    """Return the method `portfolio`, whose members are read by `compose`."""

    def portfolio(
        training: Training,
        *,
        members: Sequence[str] | None = None,
        ensemble: Count = 3,
        groups: Annotated[int, Range(2)] = 5,
        shrink: Annotated[NotNegative, log(0.005, 0.5)] = 0.05,
        rates: Sequence[float] = (0.2, 1.0, 5.0),
    ) -> Method:
        """Train members that differ in what they assume, and mix them as the sources say.

            p(x) = Σ_m (w_m / M) Σ_i p_mi(x)
            rate_m = argmin_r Σ_k (A_k[mr, mr] − 2 b_k[mr])

        Of tables the members are `fedavg`, `fedavg+shift(alpha=0.5)`, `fedavg+shift(alpha=1)`,
        `glm`, `boost` and `forest`; of images `fedavg`, `fedavg+shift(alpha=0.5)`, which shifts
        channels, `fedavg+am`, which mixes styles within a site, and `fedavg+mixup`; where a frozen
        trunk has made features of the images, these without `fedavg+am`.

        Members that train by rounds are ensembles of M federations; `glm`, `boost` and `forest`
        have no seed to differ in. Their weights w are those of `stack`: the least Brier score at
        groups of source sites that were left out, shrunk towards equal weights, and equal unless
        better by one standard error over sites. What wins at a new site is rarely known beforehand;
        a mixture of members whose errors differ need not know it, and is often a little behind the
        best of them. Everything goes
        by sums, so that masks and encryption carry it; `bag(of='trees')` is one more member where
        models may be seen.

        At first, members that train by rounds are tried at every rate without each group of sites,
        one federation each and as many rounds as the study says: the rate with the least Brier
        score at the groups left out is the member's (A_k, b_k: those of `stack`, of its models at
        the R rates). Then the stack is trained at these rates, in as many rounds again; a client
        whose training of a member diverges changes nothing of it in that round. With G
        groups that are (R + M) G + M federations for each such member; of one rate, M G + M.

        Args:
            training: The recipe.
            members: expressions of methods; None: those for the kind of data.
            ensemble: M, for members that train by rounds.
            groups: groups of sites that are left out in turn.
            shrink: λ of `stack`.
            rates: factors of the training's learning rate; of one nothing is tried.

        Departs from:
            its sources where `stack`, `ensemble` and the members do: see their pages. The whole is
            of no paper.
        """
        if members is not None and (isinstance(members, str) or len(members) < 2):
            raise UnseenError(
                f"portfolio(members) needs two or more methods; found {members!r}.",
                remedy="Write, for example, portfolio(members=['glm', 'fedavg']).",
            )
        trainings = [at(training, factor) for factor in checked(rates)]

        def member(text: str) -> Member:
            method = compose(text, training)
            if method.rounds is not None:
                check_member(method, "portfolio")
                return Member((method,))
            several = f"{text}+ensemble(members={ensemble})"
            whole = several if ensemble > 1 and "+ensemble" not in text else text
            methods = tuple(compose(whole, rated) for rated in trainings)
            check_member(methods[0], "portfolio")
            trials = [compose(text, replace(rated, ensemble=1)) for rated in trainings]
            return Member(methods, tuple(trials) if len(trials) > 1 else ())

        usual, images = (TABLES, IMAGES) if members is None else (members, ())
        every = [[member(text) for text in texts] for texts in (usual, images)]
        return stacked("portfolio", every[0], groups, shrink, every[1])

    return portfolio


def checked(rates: Sequence[float]) -> Sequence[float]:
    """Return the factors, or refuse them."""
    if isinstance(rates, str) or not isinstance(rates, Sequence) or not rates:
        raise UnseenError(
            f"portfolio(rates) needs one factor or more of the learning rate; found {rates!r}.",
            remedy="Write, for example, portfolio(rates=[0.2, 1, 5]).",
        )
    for factor in rates:
        number("portfolio(rates)", factor, 0, open_low=True)
    return rates


def at(training: Training, factor: float) -> Training:
    """Return the recipe at a multiple of its learning rate."""
    if factor == 1:
        return training
    lr = float(f"{factor * training.optimiser.lr:.6g}")
    return replace(training, optimiser=replace(training.optimiser, lr=lr))  # type: ignore[type-var]
