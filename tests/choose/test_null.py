"""Sites drawn at random from one pool: nobody wins but by chance, and a planted winner does."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats
from torch import Tensor

from unseen.methods.exact.stacking import Judge, Weigh, gain, products
from unseen.studies.choice import Candidates, Choice, choose, play
from unseen.studies.choice.trials import BASE
from unseen.studies.results.comparison import wilcoxon
from unseen.studies.settings.study import StudySpec

Rows = npt.NDArray[np.float64]
SITES, REPETITIONS = 12, 40
GLM, STUMPS = "glm(steps=3)", "boost(trees=2, depth=2, bins=8)"


def searched(folder: Path, seed: int, label: Callable[[Rows, np.random.Generator], Rows]) -> Choice:
    """The answer for twelve sites of 30 rows, all drawn alike."""
    draw = np.random.default_rng(seed)
    folder.mkdir()
    with (folder / "pool.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["site", "a", "b", "c", "y"])
        for k in range(SITES):
            x = draw.normal(size=(30, 3))
            for row, y in zip(x.tolist(), label(x, draw).astype(int).tolist(), strict=True):
                writer.writerow([f"s{k:02d}", *row, y])
    study = StudySpec(
        dataset=f"table(path='{folder / 'pool.csv'}', domain='site', label='y')", seeds=1, rounds=2,
        model="mlp(widths=[4])", training={"optimiser": "sgd(lr=0.1)", "batch_size": 27},
    )  # fmt: skip
    out, one = folder / "records", (1.0,)
    return choose(play(Candidates(study, [GLM, STUMPS], 3, one, pool=False, alone=False), out))


def distance(p: Sequence[float]) -> float:
    """Kolmogorov and Smirnov's, from the uniform distribution."""
    return float(stats.kstest(p, "uniform").statistic)


@pytest.mark.slow
def test_where_labels_are_coins_p_is_uniform_and_nobody_wins(tmp_path: Path) -> None:
    coins = [
        searched(tmp_path / str(seed), seed, lambda x, draw: draw.integers(2, size=len(x)))
        for seed in range(REPETITIONS)
    ]
    # The best of three has to be told from both others, each at 0.05 at the most after Holm.
    assert sum(len(choice.tied) == 1 for choice in coins) <= stats.binom.ppf(
        0.99, REPETITIONS, 0.05
    )
    for other in (GLM, STUMPS):
        pairs = [
            [round(a - choice.figures[other][s], 9) for s, a in choice.figures[BASE].items()]
            for choice in coins
        ]
        found = distance([wilcoxon(d) for d in pairs])
        # Twelve sites give steps, and accuracies ties: the same sizes with signs that are coins.
        draw = np.random.default_rng(1)
        null = [distance([wilcoxon(turned(d, draw)) for d in pairs]) for _ in range(300)]
        assert found <= np.quantile(null, 0.99)


def turned(differences: Sequence[float], draw: np.random.Generator) -> list[float]:
    """The differences with other signs."""
    signs: Rows = draw.choice([-1.0, 1.0], len(differences))
    return [d * s for d, s in zip(differences, signs.tolist(), strict=True)]


def test_where_the_classes_are_a_plane_apart_the_linear_model_wins(tmp_path: Path) -> None:
    choice = searched(tmp_path / "plane", 0, lambda x, draw: x.sum(1) > 0)
    assert choice.tied == (choice.recipe,) == (GLM,)
    assert choice.row(STUMPS).p is not None
    assert choice.row(STUMPS).p < 0.05
    assert choice.procedure.mean == choice.row(GLM).expected.mean


def left_out(draw: np.random.Generator, noise: Sequence[float]) -> Iterator[Tensor]:
    """The rows of eight sites, for five members whose predictions are off by so much."""
    for _ in range(8):
        true = 1 / (1 + np.exp(-draw.normal(0, 2, 60)))
        errors = draw.normal(size=(5, 60)) + draw.normal(size=(5, 1))  # of rows, and of the site
        p = np.clip(true + np.array(noise)[:, None] * errors, 0.01, 0.99)
        y = torch.from_numpy((draw.random(60) < true).astype(int))
        yield products(torch.from_numpy(np.stack([1 - p, p], -1)), y)


def stacked(draw: np.random.Generator, noise: Sequence[float]) -> Tensor:
    """The weights that five members end with."""
    rows = [torch.cat([row, row.new_ones(1)]) for row in left_out(draw, noise)]
    total = torch.stack(rows).sum(0)
    weights, _ = Weigh(0.05)(torch.full((5,), 0.2), total, {}, {})
    d = torch.stack([gain(row[:-1], total - row, 0.05) for row in rows])
    judged, _ = Judge()(weights, torch.stack([d.sum(), (d * d).sum(), total[-1]]), {}, {})
    return judged


def test_members_that_are_alike_have_equal_weights_but_by_chance() -> None:
    draw = np.random.default_rng(0)
    weights = torch.stack([stacked(draw, [0.1] * 5) for _ in range(300)])
    other = (weights - 0.2).abs().amax(1) > 1e-6
    nominal = stats.t.sf(1, 7)  # one standard error over eight sites, where nothing is to be gained
    assert other.float().mean() <= nominal + 3 * (nominal * (1 - nominal) / 300) ** 0.5
    assert (weights - 0.2).abs().max() < 0.25  # and where they differ, not by much
    torch.testing.assert_close(weights.mean(0), torch.full((5,), 0.2), atol=0.01, rtol=0)


def test_a_member_without_errors_is_found() -> None:
    draw = np.random.default_rng(0)
    weights = torch.stack([stacked(draw, [0.0, *[0.4] * 4]) for _ in range(50)])
    assert (weights[:, 0] > weights[:, 1:].amax(1)).float().mean() > 0.9
    assert weights[:, 0].mean() > 0.5
