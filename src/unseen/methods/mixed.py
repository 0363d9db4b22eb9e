"""Several federations and their mixture, weighed by how they predict sites left out."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from torch import nn

from unseen.core import Apply, Exchange, Method, Model, Reference, Replace, Slot
from unseen.core.exchange import SHARED, Blueprint
from unseen.core.metrics.evaluation import plain
from unseen.data.networks.mixture import Averaged, Mixture
from unseen.methods.base import cited, zeros_of
from unseen.methods.combine import Sum
from unseen.methods.exact.screening import AtRate, Least, Scores
from unseen.methods.exact.stacking import SUMS, Judge, Judged, LeftOut, Weigh
from unseen.methods.together import Federation, check_member, check_repeats, together

#: What a method that is trained at a rate to be chosen calls the entry with the choice.
RATE = "rate"


@dataclass(frozen=True)
class Member:
    """One member of a mixture.

    Attributes:
        methods: It at every learning rate [R]; of one there is nothing to choose.
        trials: What is played at each rate to choose among them [R].
    """

    methods: tuple[Method, ...]
    trials: tuple[Method, ...] = ()


class Parts(NamedTuple):
    """The federations of a mixture: on all sites, without groups of them, and at each rate."""

    whole: list[Federation]
    folds: list[Federation]
    trials: list[Federation]


def stacked(
    name: str, usual: Sequence[Member], groups: int, shrink: float, images: Sequence[Member] = ()
) -> Method:
    """Return the stack of members.

    Those that are to be trained at one of several rates are tried first, and begin when the rate is
    chosen.

    Args:
        name: Of the method.
        usual: The members.
        groups: Groups of sites that are left out; of none, it is a mixture with equal weights.
        shrink: λ.
        images: The members where inputs are images, if these are others; of features of images,
            those of them that do not ask for images. Where there are such, members that cannot
            serve the data are left out; otherwise they were asked for by name, and the method
            cannot serve the data either.
    """

    def offered(blueprint: Blueprint) -> Sequence[Member]:
        if images and blueprint.frozen:
            return [m for m in images if "images" not in m.methods[0].asks]
        return images if images and len(blueprint.shape) == 3 else usual

    def reasons(blueprint: Blueprint) -> dict[str, str]:
        methods = [member.methods[0] for member in offered(blueprint)]
        K, G = blueprint.clients, min(groups, blueprint.clients)
        fewest = replace(blueprint, clients=K - -(-K // G) if G > 1 else K)
        return {m.name: reason for m in methods if (reason := m.unfit(fewest))}

    def members_for(blueprint: Blueprint) -> Sequence[Member]:
        unable = reasons(blueprint)
        return [m for m in offered(blueprint) if m.methods[0].name not in unable]

    def unfit(blueprint: Blueprint) -> str:
        if groups and blueprint.clients < 2:
            return (
                "leaves source sites out in turn, and there is one only; train one of its members "
                "alone, or an ensemble of it"
            )
        unable = reasons(blueprint)
        if unable and (not images or len(unable) == len(offered(blueprint))):
            every = (f"{member}, which {why}" for member, why in unable.items())
            return f"cannot have the member {', and '.join(every)}"
        return ""

    def network(blueprint: Blueprint) -> nn.Module:
        G = min(groups, blueprint.clients)
        parts = federations(members_for(blueprint), G, blueprint.rounds)
        whole, folds, trials = [[own(f, blueprint) for f in part] for part in parts]
        return Mixture(whole, blueprint.classes is None, [*folds, *trials])

    def sized(method: Method, model: Model, blueprint: Blueprint) -> Method:
        G = min(groups, blueprint.clients)
        members = members_for(blueprint)
        M, parts = len(members), federations(members, G, blueprint.rounds)
        every = [f.sized(model, blueprint) for part in parts for f in part]
        last = max(f.begin + (f.rounds or 1) for f in every)
        part = model.layout.span("weights")
        size, left_out = M * M + M + 2, LeftOut(M, max(1, G))
        sums = Slot(Sum(size), apply=Replace(), sends="value", start=partial(zeros_of, size))
        weigh = Slot(follows=SUMS, apply=Weigh(shrink), to="model", part=part)
        judge = Slot(Sum(3), apply=Judge(), sends="value", to="model", part=part)
        end = (
            Exchange("stack", left_out, {SUMS: sums, "weights": weigh}, (last - 1, 0), "all"),
            Exchange("judge", Judged(left_out, shrink), {"judged": judge}, (last - 1, 0), "all"),
        )
        choose = screening(members, G, blueprint.rounds)
        exchanges = (*together(every, model), *choose, *(end if groups else ()))
        return replace(
            method, exchanges=exchanges, references=sources(members), rounds=last, cycle=last,
            shares=shared(members), fits=fitted(members),
        )  # fmt: skip

    every = federations(usual, groups, 1)
    return Method(
        name, together([*every.whole, *every.folds, *every.trials]), sources(usual), plain,
        adapt=network, sized=sized, rounds=1, shares=shared((*usual, *images)),
        asks=tuple(dict.fromkeys(ask for m in usual for ask in m.methods[0].asks)),
        fits=fitted((*usual, *images)), unfit=unfit, left_out=reasons,
    )  # fmt: skip


def sources(members: Sequence[Member]) -> tuple[Reference, ...]:
    """Return where the members and their mixture come from."""
    every = [reference for member in members for reference in member.methods[0].references]
    mixture = cited("wolpert1992stacked"), cited("breiman1996stacked")
    return tuple(dict.fromkeys((*mixture, *every)))


def shared(members: Sequence[Member]) -> tuple[str, ...]:
    """Return what leaves a client of a mixture beyond the model, in words."""
    products = "products of its left-out predictions with one another and with its labels"
    every = [share for member in members for share in member.methods[0].shares]
    return tuple(dict.fromkeys((products, *every)))


def fitted(members: Sequence[Member]) -> str:
    """Return what the members fit in place of the study's network; "" if one trains that."""
    every = [member.methods[0].fits for member in members]
    return " and ".join(dict.fromkeys(every)) if all(every) else ""


def federations(members: Sequence[Member], G: int, rounds: int) -> Parts:
    """Return the federations for G groups left out, each trial lasting `rounds` rounds."""
    parts, M = Parts([], [], []), len(members)
    for i, member in enumerate(members):
        tried = len(member.methods) > 1
        begin, reads = (rounds, {RATE: entry(i)}) if tried else (0, {})
        method = at_chosen_rate(member.methods) if tried else member.methods[0]
        placed = partial(Federation, method, begin=begin, reads=reads, spared=tried)
        parts.whole.append(placed(f"members.{i}"))
        parts.folds.extend(placed(f"others.{i * G + g}", fold=(g, G)) for g in range(G))
    for trial in (trial for member in members for trial in member.trials):
        first = M * G + len(parts.trials)
        parts.trials.extend(
            Federation(trial, f"others.{first + g}", fold=(g, G), spared=True) for g in range(G)
        )
    return parts


def screening(members: Sequence[Member], G: int, rounds: int) -> Iterator[Exchange]:
    """Yield the exchange that chooses the rates of those that were tried, if there are any."""
    slots, places, first = {}, {}, len(members) * G
    for i, member in enumerate(members):
        if R := len(member.trials):
            step = Slot(Sum(R + 1), apply=Least(), sends="value", start=partial(zeros_of, R))
            slots[entry(i)] = step
            places[entry(i)] = tuple(
                tuple(range(first + r * G, first + (r + 1) * G)) for r in range(R)
            )
            first += R * G
    if slots:
        yield Exchange("screen", Scores(places), slots, (rounds - 1, 0), "all")


def entry(i: int) -> str:
    """Return the inbox entry that says at which rate a member is trained."""
    return f"{RATE}.{i}"


def at_chosen_rate(methods: Sequence[Method]) -> Method:
    """Return the method whose clients train as that one of these whose rate was chosen."""

    def sized(method: Method, model: Model, blueprint: Blueprint) -> Method:
        every = [m.sized(m, model, blueprint) if m.sized is not None else m for m in methods]
        return at_chosen_rate(every)

    exchanges = tuple(
        replace(exchange, local=AtRate(RATE, tuple(m.exchanges[i].local for m in methods)))
        for i, exchange in enumerate(methods[0].exchanges)
    )
    return replace(methods[0], exchanges=exchanges, sized=sized)


def own(federation: Federation, blueprint: Blueprint) -> nn.Module:
    """Return a network that no other federation of the same seed has."""
    return federation.network(replace(blueprint, network=blueprint.another(0)))


def averaged(method: Method, step: Apply, name: str, sends: tuple[str, ...] = ()) -> Method:
    """Return the method with an average of its model, which predicts.

    Args:
        method: What trains.
        step: (average, model, state, table) -> average.
        name: The modifier's, for the message.
        sends: The scalars of the clients that the step reads.
    """
    check_member(method, f"{method.name}+{name}")
    check_repeats(method, name)
    first = Federation(method, "trained", sends=sends)

    def network(blueprint: Blueprint) -> nn.Module:
        trained = first.network(blueprint)
        return Averaged(trained, deepcopy(trained))

    def sized(whole: Method, model: Model, blueprint: Blueprint) -> Method:
        federation = first.sized(model, blueprint)
        key, own = federation.key, federation.method
        layouts = {"model": model.layout, "buffers": model.buffer_layout}

        def follow(exchange: Exchange, slot: str) -> Slot:
            part, followed = layouts[slot].span("average"), exchange.slots[slot + key]
            return Slot(apply=step, to=slot, part=part, follows=slot + key, view=followed.view)

        exchanges = [
            replace(
                exchange,
                slots={
                    **exchange.slots,
                    **{
                        f"average {s}": follow(exchange, s)
                        for s in SHARED
                        if s + key in exchange.slots
                    },
                },
            )
            for exchange in together([federation], model)
        ]
        return replace(whole, exchanges=tuple(exchanges), rounds=own.rounds, cycle=own.cycle)

    return replace(method, exchanges=together([first]), adapt=network, sized=sized)
