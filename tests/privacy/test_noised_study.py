"""What a study with noise refuses before any training, and what it warns of."""

from __future__ import annotations

import pytest

from unseen import UnseenError
from unseen.study.plan import prepare_study
from unseen.study.spec import Study

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
        ({"privacy": {"clients": "dp(clip=1.0, noise=1.0, delta=1e-4)"}}, "weights='uniform'"),
        ({"privacy": {"examples": "dp(noise=1.0, delta=1e-4)"}}, "needs clip"),
        ({"privacy": {"exmaples": "dp()"}}, "did you mean 'examples'"),
    ],
)
def test_refused_with_the_reason(tmp_path, settings, reason):
    with pytest.raises(UnseenError, match=reason):
        planned(tmp_path, **settings)


def test_columns_that_are_standardised_over_the_sites_are_refused(tmp_path):
    table = tmp_path / "sites.csv"
    rows = [f"{site},{i % 7},{i % 2}" for site in "abc" for i in range(20)]
    table.write_text("\n".join(["site,x,y", *rows]) + "\n")
    dataset = f"table(path={str(table)!r}, domain='site', label='y')"
    with pytest.raises(UnseenError, match="standardised and imputed"):
        planned(tmp_path, dataset=dataset, targets=("a",), model="logistic",
                training={"batch_size": 8})  # fmt: skip


def test_what_protects_nothing_is_warned_of(tmp_path):
    large = planned(tmp_path, privacy={"examples": "dp(clip=1.0, noise=1.0, delta=0.1)"})
    assert any("no less than 1/270" in warning for warning in large.warnings)
    seeded = planned(tmp_path, privacy={"examples": "dp(clip=1.0, noise=1.0, delta=1e-4, seed=1)"})
    assert any("known seed" in warning for warning in seeded.warnings)
    silent = planned(tmp_path, privacy={"examples": "dp(clip=1.0, noise=0.0, delta=1e-4)"})
    assert any("noise = 0" in warning for warning in silent.warnings)
