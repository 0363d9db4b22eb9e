"""What a study with noise refuses before any training, and what it warns of."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from unseen import UnseenError
from unseen.studies.execution import Study
from unseen.studies.execution.plan import prepare_study
from unseen.studies.execution.prepare import prepare

pytest.importorskip("opacus", reason="the extra dp is not installed")
EXAMPLES = {"examples": "dp(clip=1.0, noise=1.0, delta=1e-4)"}


def planned(tmp_path, **settings):
    usual = {"dataset": "rotated-digits", "model": "mlp(widths=[8])", "targets": ("0",),
             "seeds": 1, "rounds": 1, "privacy": EXAMPLES}  # fmt: skip
    return prepare_study(Study(**(usual | settings)), tmp_path)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model": "bn-cnn"}, "GroupNorm"),
        ({"training": {"oversample": True}}, "oversample"),
        ({"training": {"balanced": True}}, "balanced"),
        ({"methods": ("fedavg+ga",)}, "report"),
        ({"record": ("gaps",)}, "GapProbe"),
        (
            {
                "privacy": {"clients": "dp(clip=1.0, noise=1.0, delta=1e-4)"},
                "training": {"weights": "examples"},
            },
            "weights='uniform'",
        ),
        ({"privacy": {"examples": "dp(noise=1.0, delta=1e-4)"}}, "needs clip"),
        ({"privacy": {"exmaples": "dp()"}}, "did you mean 'examples'"),
    ],
)
def test_refused_with_the_reason(tmp_path, settings, reason):
    with pytest.raises(UnseenError, match=reason):
        planned(tmp_path, **settings)


def columns(tmp_path, **settings):
    """A study of three sites with a numeric and a categorical column; some cells are missing."""
    table = tmp_path / "sites.csv"
    rows = [
        f"{s},{i % 7 if i % 5 else ''},{'uvw'[i % 3]},{i % 2}" for s in "abc" for i in range(20)
    ]
    table.write_text("\n".join(["site,x,kind,y", *rows]) + "\n")
    usual = {"dataset": f"table(path={str(table)!r}, domain='site', label='y')", "targets": ("a",),
             "model": "logistic", "training": {"batch_size": 8}, "privacy": EXAMPLES}  # fmt: skip
    return usual | settings


RANGED = EXAMPLES | {"columns": {"x": (0, 10)}}


def test_columns_that_are_standardised_over_the_sites_are_refused(tmp_path):
    with pytest.raises(UnseenError, match=r"standardised and imputed.*{x = \[0, 100\]}"):
        planned(tmp_path, **columns(tmp_path))
    planned(tmp_path, **columns(tmp_path, privacy={}))


def test_columns_with_public_ranges_need_no_sums(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "unseen.studies.execution.prepare.summed", lambda *given: asked.append(given)
    )
    results = Study(**{"seeds": 1, "rounds": 1, **columns(tmp_path, privacy=RANGED)}).run()
    assert not asked
    assert "scaled by public ranges" in results.table().to_markdown()


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        ({}, "missing: x"),
        ({"x": (0, 10), "z": (0, 1)}, "'z'"),
        ({"x": (0, 10), "kind": (0, 1)}, "'kind'"),
        ({"x": (10, 0)}, "low below high"),
        ({"x": (0, float("inf"))}, "finite"),
        ({"x": (1e9, 1e9 + 1)}, "almost equal"),
    ],
)
def test_ranges_that_do_not_fit_are_refused(tmp_path, ranges, reason):
    with pytest.raises(UnseenError, match=reason):
        planned(tmp_path, **columns(tmp_path, privacy=EXAMPLES | {"columns": ranges}))


def test_ranges_are_for_tables(tmp_path):
    with pytest.raises(UnseenError, match="rotated-digits is not"):
        planned(tmp_path, privacy={"columns": {"x": (0, 1)}})


def test_what_training_sees_follows_from_the_row_and_the_ranges_alone(tmp_path):
    """One row of one site changed: every other row is encoded as before, bit for bit."""
    plan = planned(tmp_path, **columns(tmp_path, privacy=RANGED))
    data, study, (task,) = plan.data, plan.setting.study, plan.tasks
    site = data[task.sources[0]]
    changed = site.x.clone()
    changed[3] = torch.tensor([1e6, 2.0], dtype=changed.dtype)
    other = replace(site, x=changed)
    moved = replace(data, domains=tuple(other if d is site else d for d in data.domains))
    before, after = (prepare(d, task, study, 0) for d in (data, moved))
    assert torch.equal(before.statistics, after.statistics)
    for name, client in before.everyone.items():
        for kind in ("train", "validation"):
            if getattr(client, kind) is not None:
                x, y = (getattr(c.everyone[name], kind).x[:] for c in (before, after))
                assert int((x != y).any(1).sum()) <= 1


def test_what_protects_nothing_is_warned_of(tmp_path):
    large = planned(tmp_path, privacy={"examples": "dp(clip=1.0, noise=1.0, delta=0.1)"})
    assert any("not less than 1/270" in warning for warning in large.warnings)
    seeded = planned(tmp_path, privacy={"examples": "dp(clip=1.0, noise=1.0, delta=1e-4, seed=1)"})
    assert any("known seed" in warning for warning in seeded.warnings)
    silent = planned(tmp_path, privacy={"examples": "dp(clip=1.0, noise=0.0, delta=1e-4)"})
    assert any("noise = 0" in warning for warning in silent.warnings)
