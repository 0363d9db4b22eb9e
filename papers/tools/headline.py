"""Recompute the headline of docs/results from the packed records, with numpy and scipy alone.

    python papers/tools/headline.py          # writes docs/results/headline.{json,md} and figures
    python papers/tools/headline.py --check  # writes nothing, fails where the figures differ

Model: set j has differences d (points, portfolio minus another method), one for each group of sites
left out together: the mean over its sites of figures that are means over seeds.

    d_jg ~ N(θ_j, σ_j²),   p(σ_j) ∝ 1/σ_j,   θ_j ~ N(μ, τ²),   μ flat,   τ flat on [0, 10]

σ_j integrates to Student's t; θ, μ and τ are summed over a grid, so that equal records give equal
figures. The frequentist twin is DerSimonian and Laird's τ² with Hartung and Knapp's interval.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

DOCS = Path(__file__).resolve().parents[2] / "docs"
EVIDENCE = DOCS / "results" / "evidence"
OURS = "portfolio"
FEDAVG = "fedavg"
ENSEMBLE = "fedavg+ensemble(members=3)"
PAPERS = ("ppdg", "fedavg+ga", "scaffold+ga", "fishr", "fedilc-inter")
SIMPLE = ("glm", "boost", "forest")
POOLED, POOLED_FOREST = "deepall", "trees(kind='forest')"
#: Points within which two methods count as practically equal.
ROPE = 0.5
#: Wilcoxon's two-sided p cannot be below 0.05 on fewer sites.
LEAST_SITES = 6
STEP = 0.05
THETA = np.arange(-30.0, 35.0, STEP)
MU = np.arange(-6.0, 10.0, STEP)
NEXT = np.arange(-15.0, 20.0, 0.25)
TAU = np.arange(STEP, 10.0, 2 * STEP)
Array = NDArray[np.float64]
#: Site -> figure.
Figures = Mapping[str, float]


@dataclass(frozen=True)
class Set:
    """A data set of the second design.

    Attributes:
        name: What its packed records are called.
        label: What tables call it.
        unit: What its sites are.
        confirming: Whether its sites were kept back while the portfolio was designed.
        tabular: Whether its rows are columns of a table, not pixels.
        tuned: The table whose trials were scored at source sites left out.
        metric: The declared metric.
    """

    name: str
    label: str
    unit: str
    confirming: bool = False
    tabular: bool = True
    tuned: str = "lodo"
    metric: str = "accuracy"


SETS = (
    Set("wisdm", "activities from a phone", "people", True, tuned="tuned"),
    Set("school", "exam scores", "schools", True, tuned="tuned"),
    Set("gusto", "death after a heart attack", "regions", True, metric="auroc"),
    Set("digit-makers", "handwritten digits", "makers", True, tabular=False),
    Set("views", "digits in Ghifary's views", "angles", True, tabular=False),
    Set("rotated-digits", "handwritten digits", "angles", tabular=False),
    Set("eicu", "intensive care", "regions", metric="auroc"),
    Set("pm25", "fine dust", "cities"),
    Set("cars", "prices of used cars", "makers"),
    Set("youtube", "spam in comments", "videos"),
)
DIGITS = ("digit-makers", "views", "rotated-digits")


@dataclass(frozen=True)
class Effect:
    """A set's differences over groups of sites: their mean, its standard error, how many."""

    mean: float
    error: float
    groups: int

    @classmethod
    def over(cls, groups: Sequence[float]) -> Effect:
        """Return the effect of one difference per group."""
        error = float(np.std(groups, ddof=1)) / len(groups) ** 0.5
        return cls(float(np.mean(groups)), error, len(groups))

    def interval(self) -> tuple[float, float]:
        """Return Student's 95 % interval."""
        half = float(stats.t.ppf(0.975, self.groups - 1)) * self.error
        return self.mean - half, self.mean + half

    def likelihood(self) -> Array:
        """Return the density at each θ, σ integrated out."""
        z = (THETA - self.mean) / self.error
        return np.asarray(stats.t.pdf(z, self.groups - 1) / self.error)


@cache
def jobs(path: Path) -> list[dict[str, Any]]:
    """Return the finished jobs of a packed study."""
    content = json.loads(lzma.decompress(path.read_bytes()))
    return [job for job in content["jobs"] if "diverged" not in job["mark"]]


def chosen_round(job: Mapping[str, Any], metric: str) -> int:
    """Return the round of the best mean over the sources' validation rows, of equals the first."""
    source = job["source.jsonl"]
    levels: dict[int, list[float]] = defaultdict(list)
    for round_, value in zip(source["round"], source[metric], strict=True):
        if value is not None:
            levels[round_].append(value)
    means = {round_: float(f"{np.mean(values):.12g}") for round_, values in levels.items()}
    return min(means, key=lambda round_: (-means[round_], round_))


def by_seed(path: Path, method: str, metric: str) -> dict[int, dict[str, float]]:
    """Return seed -> site -> the figure at the chosen round, in percent."""
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for job in jobs(path):
        if job["method"] == method:
            target, best = job["target.jsonl"], chosen_round(job, metric)
            for round_, site, value in zip(
                target["round"], target["domain"], target[metric], strict=True
            ):
                if round_ == best:
                    found[job["seed"]][site] = 100 * value
    return found


def groups_of(path: Path) -> dict[str, str]:
    """Return site -> the group with which it was left out."""
    return {site: job["task"] for job in jobs(path) for site in job["target.jsonl"]["domain"]}


def path_of(data: Set, method: str) -> Path:
    """Return the packed records that hold a method's row of the table."""
    if method in ("fishr", "fedilc-inter"):
        kind = "steps"
    elif method == POOLED:
        kind = "tuned"
    elif method in (FEDAVG, ENSEMBLE, *PAPERS):
        kind = data.tuned
    else:
        kind = "untuned"
    return EVIDENCE / "second" / f"{kind}-{data.name}.json.xz"


@cache
def figures(data: Set, method: str) -> Figures:
    """Return site -> mean over seeds; nothing where the method did not run."""
    seeds = by_seed(path_of(data, method), method, data.metric)
    sites = sorted({site for values in seeds.values() for site in values})
    return {site: float(np.mean([values[site] for values in seeds.values()])) for site in sites}


def effect(data: Set, method: str) -> Effect:
    """Return the portfolio minus a method, over the set's groups."""
    ours, theirs = figures(data, OURS), figures(data, method)
    groups: dict[str, list[float]] = defaultdict(list)
    for site, group in groups_of(path_of(data, OURS)).items():
        groups[group].append(ours[site] - theirs[site])
    return Effect.over([float(np.mean(values)) for values in groups.values()])


@cache
def kernels() -> Array:
    """Return N(θ; μ, τ²) for each τ, θ and μ, each summing to 1 over θ."""
    z = (THETA[None, :, None] - MU[None, None, :]) / TAU[:, None, None]
    density = np.exp(-0.5 * z * z)
    return np.asarray(density / density.sum(axis=1, keepdims=True))


def posterior(effects: Iterable[Effect], tau_scale: float = np.inf) -> dict[str, float]:
    """Return the posterior of μ and the predictive of the next set's θ.

    Args:
        effects: The sets.
        tau_scale: The scale of a half-normal prior of τ; infinite for the flat one.
    """
    likelihoods = np.array([one.likelihood() for one in effects])
    log = np.log(likelihoods @ kernels()).sum(axis=1) - 0.5 * (TAU[:, None] / tau_scale) ** 2
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    of_mu = weight.sum(axis=0)
    low, high = np.interp((0.025, 0.975), np.cumsum(of_mu), MU)

    def above(x: float) -> float:
        return float((weight * stats.norm.sf(x, MU[None], TAU[:, None])).sum())

    next_low, next_high = np.interp((0.025, 0.975), [1 - above(x) for x in NEXT], NEXT)
    return {
        "mu": float(of_mu @ MU), "low": float(low), "high": float(high),
        "P(mu > 0)": float(of_mu[MU > 1e-9].sum()),
        "P(next > 0)": above(0.0),
        "P(next > 0.5)": above(ROPE),
        "P(next < -0.5)": 1 - above(-ROPE),
        "next low": float(next_low), "next high": float(next_high),
        "tau": float(weight.sum(axis=1) @ TAU),
    }  # fmt: skip


def random_effects(effects: Sequence[Effect]) -> dict[str, float]:
    """Return DerSimonian and Laird's mean with Hartung and Knapp's interval and p."""
    y, v = np.array([e.mean for e in effects]), np.array([e.error**2 for e in effects])
    w, df = 1 / v, len(effects) - 1
    q = float((w * (y - (w * y).sum() / w.sum()) ** 2).sum())
    tau2 = max(0.0, (q - df) / float(w.sum() - (w**2).sum() / w.sum()))
    w = 1 / (v + tau2)
    mean = float((w * y).sum() / w.sum())
    error = float(np.sqrt((w * (y - mean) ** 2).sum() / df / w.sum()))
    half = float(stats.t.ppf(0.975, df)) * error
    p = 2 * float(stats.t.sf(abs(mean) / error, df))
    return {"mu": mean, "low": mean - half, "high": mean + half, "tau": tau2**0.5, "p": p}


def both(effects: Sequence[Effect]) -> dict[str, dict[str, float]]:
    """Return the posterior and its frequentist twin."""
    return {"hierarchical": posterior(effects), "random effects": random_effects(effects)}


def wilcoxon(differences: Sequence[float]) -> float:
    """Return the exact two-sided p of Wilcoxon's signed-rank test, zeros left out."""
    nonzero = np.array([d for d in np.round(differences, 10) if d])
    if not nonzero.size:
        return 1.0
    doubled = np.rint(2 * stats.rankdata(np.abs(nonzero))).astype(int)
    above = int(doubled[nonzero > 0].sum())
    ways = np.ones(1)
    for rank in doubled:
        ways = np.concatenate((ways, np.zeros(rank))) + np.concatenate((np.zeros(rank), ways))
    least = min(above, int(doubled.sum()) - above)
    return min(1.0, 2 * float(ways[: least + 1].sum()) / 2.0**nonzero.size)


def null() -> dict[str, float]:
    """Return how often a method differs from itself with another seed, of all pairs of seeds."""
    tests = below = 0
    for path in sorted([*EVIDENCE.glob("*.json.xz"), *EVIDENCE.glob("second/*.json.xz")]):
        if len(set(groups_of(path))) < LEAST_SITES:
            continue
        metric = next((s.metric for s in SETS if s.name in path.name), "accuracy")
        for method in sorted({job["method"] for job in jobs(path)}):
            for a, b in combinations(by_seed(path, method, metric).values(), 2):
                p = wilcoxon([a[site] - b[site] for site in sorted(a.keys() & b.keys())])
                tests, below = tests + 1, below + (p < 0.05)
    return {"tests": tests, "below 0.05": below, "share": below / tests}


def row(data: Set) -> dict[str, Any]:
    """Return one set's means over sites, in percent, and the portfolio's lead over FedAvg."""
    means = {m: float(np.mean(list(found.values())))
             for m in (POOLED, FEDAVG, *PAPERS, *SIMPLE, POOLED_FOREST, OURS)
             if (found := figures(data, m))}  # fmt: skip
    lead = effect(data, FEDAVG)
    low, high = lead.interval()
    return {
        "set": data.name, "label": data.label, "unit": data.unit, "confirming": data.confirming,
        "metric": data.metric, "sites": len(figures(data, OURS)), "groups": lead.groups,
        "means": means, "lead": lead.mean, "lead low": low, "lead high": high,
    }  # fmt: skip


def headline() -> dict[str, Any]:
    """Return everything that the page, the table and the figure say."""
    leads = {s.name: effect(s, FEDAVG) for s in SETS}
    rest = {n: [e for m, e in leads.items() if m != n] for n in leads}
    digits = Effect.over([leads[name].mean for name in DIGITS])
    confirming = [leads[s.name] for s in SETS if s.confirming]
    tables = [s for s in SETS if s.tabular]
    return {
        "sets": [row(s) for s in SETS],
        "portfolio minus": {
            m: both([effect(s, m) for s in SETS]) for m in (FEDAVG, ENSEMBLE, *PAPERS)
        },
        "on tables, portfolio minus": {
            m: both([effect(s, m) for s in tables]) for m in ("glm", "boost", POOLED_FOREST)
        },
        "portfolio minus fedavg, other readings": {
            "the three sets of digits as one": both(
                [*(e for n, e in leads.items() if n not in DIGITS), digits]
            ),
            "the five confirming sets": both(confirming),
            "half-normal prior of tau, scale 1": {"hierarchical": posterior(leads.values(), 1.0)},
            "mu without any one set": _range([posterior(e)["mu"] for e in rest.values()]),
        },
        "two seeds of one method": null(),
    }


def _range(values: Sequence[float]) -> dict[str, float]:
    return {"least": min(values), "most": max(values)}


def rounded(found: Any) -> Any:
    """Return the figures to four digits behind the point, so that a file stays the same."""
    if isinstance(found, dict):
        return {key: rounded(value) for key, value in found.items()}
    if isinstance(found, list):
        return [rounded(value) for value in found]
    return round(found, 4) if isinstance(found, float) else found


def table(found: Mapping[str, Any]) -> str:
    """Return the confirming sets as a Markdown table."""
    lines = [
        "| data | sites left out | pooled | FedAvg, tuned | best of the papers' methods |"
        " best simple model | portfolio |",
        "| :-- | :-- | --: | --: | --: | --: | --: |",
    ]
    for one in (s for s in found["sets"] if s["confirming"]):
        means = one["means"]
        cells = [
            one["label"], f"{one['sites']} {one['unit']}",
            f"{means[POOLED]:.1f}" if POOLED in means else "–", f"{means[FEDAVG]:.1f}",
            _best(means, PAPERS), _best(means, SIMPLE), f"{means[OURS]:.1f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _best(means: Mapping[str, float], methods: Iterable[str]) -> str:
    best = max((m for m in methods if m in means), key=lambda m: means[m])
    return f"{means[best]:.1f} `{best}`"


THEMES = {
    "headline": ("#1f2328", "#57606a", "#0969da", "#ffffff"),
    "headline-dark": ("#e6edf3", "#9198a1", "#58a6ff", "#0d1117"),
}


def draw(found: Mapping[str, Any], name: str, suffix: str = "svg") -> Path:
    """Draw every set's lead, the mean of sets, and what the next set would show."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    strong, faint, accent, back = THEMES[name]
    rows = sorted(found["sets"], key=lambda one: one["lead"])
    mean = found["portfolio minus"][FEDAVG]["hierarchical"]
    ends = (-8.0, 14.0)
    with mpl.rc_context({"svg.hashsalt": name, "font.size": 10, "text.color": strong}):
        sheet = Figure(figsize=(7.2, 4.4), layout="constrained", facecolor=back)
        axes = sheet.add_subplot(facecolor=back)
        axes.axvline(0, color=faint, linewidth=1)
        labels = ["the next set, predicted", "mean of sets"]
        for place, (low, high) in enumerate(
            ((mean["next low"], mean["next high"]), (mean["low"], mean["high"]))
        ):
            axes.plot((low, high), (place, place), color=accent, linewidth=5 if place else 3,
                      solid_capstyle="butt")  # fmt: skip
        axes.plot(mean["mu"], 1, "D", color=accent, markeredgecolor=back, markersize=8)
        for place, one in enumerate(rows, start=2):
            low, high = max(one["lead low"], ends[0]), min(one["lead high"], ends[1])
            axes.plot((low, high), (place, place), color=faint, linewidth=1.5)
            face = strong if one["confirming"] else back
            axes.plot(one["lead"], place, "o", color=strong, markerfacecolor=face, markersize=6)
            labels.append(f"{one['label']} ({one['sites']} {one['unit']})")
        axes.set_yticks(range(len(labels)), labels)
        axes.set_xlim(*ends)
        axes.set_xlabel("points ahead of FedAvg tuned on the same sites, 95 % intervals",
                        color=strong)  # fmt: skip
        axes.tick_params(colors=strong, length=0)
        axes.spines[:].set_visible(False)
        axes.grid(axis="x", color=faint, alpha=0.25)
        path = DOCS / "figures" / f"{name}.{suffix}"
        plain: dict[str, Any] = {"Date": None, "Creator": None} if suffix == "svg" else {}
        sheet.savefig(path, metadata=plain, facecolor=back, dpi=110)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or with --check say whether they are what the records give."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail if they differ")
    asked = parser.parse_args(arguments)
    found = rounded(headline())
    files = {"headline.json": json.dumps(found, indent=1) + "\n", "headline.md": table(found)}
    if asked.check:
        wrong = [n for n, t in files.items() if (DOCS / "results" / n).read_text("utf-8") != t]
        print(f"not what the records give: {', '.join(wrong)}" if wrong else "up to date")
        return bool(wrong)
    for name, text in files.items():
        (DOCS / "results" / name).write_text(text, "utf-8")
    for name in THEMES:
        print(draw(found, name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
