"""tools/verdicts.py: which test decides, the words, and that claims.md is what it writes."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest
import scipy.stats

from unseen.core import record_lines
from unseen.studies.results import records

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "papers" / "tools"
RESULTS = ROOT / "docs" / "results"


def load() -> ModuleType:
    sys.path.insert(0, str(TOOLS))  # for the module next to it
    spec = importlib.util.spec_from_file_location("verdicts", TOOLS / "verdicts.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["verdicts"] = module
    spec.loader.exec_module(module)
    return module


verdicts = load()


def figures(targets: int, seeds: int, start: int) -> dict[tuple[str, int], float | None]:
    draw = random.Random(start)
    return {(f"t{t}", s): draw.random() for t in range(targets) for s in range(seeds)}


def units(targets: int, seeds: int):  # type: ignore[no-untyped-def]
    names = [f"t{t}" for t in range(targets)]
    return verdicts.units(figures(targets, seeds, 1), figures(targets, seeds, 2), names, names)


@pytest.mark.parametrize(("targets", "seeds"), [(3, 1), (4, 5), (6, 3)])
def test_seeds_are_averaged_before_targets_are_tested(targets: int, seeds: int) -> None:
    found, a, b = units(targets, seeds), figures(targets, seeds, 1), figures(targets, seeds, 2)
    expected = [
        sum(a[f"t{t}", s] - b[f"t{t}", s] for s in range(seeds)) / seeds for t in range(targets)
    ]
    assert found.values == pytest.approx(expected)
    assert found.over == "target" and found.enough
    test = scipy.stats.ttest_1samp(expected, 0)
    assert test.df == targets - 1
    assert verdicts.p_of(found, "t") == pytest.approx(test.pvalue)
    low, high = test.confidence_interval(0.95)
    assert found.half_width == pytest.approx((high - low) / 2)


@pytest.mark.parametrize(
    ("targets", "seeds", "enough"), [(1, 2, False), (2, 2, False), (1, 3, True), (2, 5, True)]
)
def test_with_two_targets_only_seeds_are_left(targets: int, seeds: int, enough: bool) -> None:
    found, a, b = units(targets, seeds), figures(targets, seeds, 1), figures(targets, seeds, 2)
    expected = [
        sum(a[f"t{t}", s] - b[f"t{t}", s] for t in range(targets)) / targets for s in range(seeds)
    ]
    assert found.values == pytest.approx(expected)
    assert found.over == "seed" and found.enough is enough
    assert verdicts.chosen_test(found, 1) == ("t" if enough else None)


def test_a_seed_without_a_figure_is_left_out() -> None:
    a, b = figures(2, 4, 1), figures(2, 4, 2)
    found = verdicts.units(a | {("t1", 2): None}, b, ["t0", "t1"], ["t0", "t1"])
    assert found.seeds == 3 and len(found.values) == 3
    targets = [f"t{t}" for t in range(4)]
    short = figures(4, 2, 1)
    del short["t3", 1]
    assert len(verdicts.units(short, figures(4, 2, 2), targets, targets).values) == 4


@pytest.mark.parametrize(
    ("targets", "tests", "chosen"),
    [
        (5, 1, "t"),  # the smallest p is 2 / 2^5 = 0.0625
        (6, 1, "wilcoxon"),  # 2 / 2^6 = 0.031
        (6, 2, "t"),
        (12, 100, "wilcoxon"),  # 100 · 2 / 2^12 = 0.0488
        (12, 103, "t"),
    ],
)
def test_wilcoxon_decides_where_it_can(targets: int, tests: int, chosen: str) -> None:
    assert verdicts.chosen_test(units(targets, 2), tests) == chosen


def test_wilcoxon_is_exact() -> None:
    found = verdicts.Units((0.1, 0.2, 0.3, 0.4, 0.5, 0.6), "target", True, 6, 1)
    assert verdicts.p_of(found, "wilcoxon") == pytest.approx(2 / 2**6)


@pytest.mark.parametrize(
    ("sign", "claim", "p", "word"),
    [
        (1, "more", 0.049, "holds"),
        (1, "more", 0.05, "not decided: significant alone from 0.215"),
        (-1, "more", 0.01, "opposite"),
        (-1, "less", 0.01, "holds"),
        (1, "less", 0.01, "opposite"),
        (1, "equal", 0.01, "opposite: they differ"),
        (1, "equal", 0.9, "not decided: significant alone from 0.215"),
        (1, "more", None, "cannot be decided with 3 {}s"),
    ],
)
@pytest.mark.parametrize("over", ["target", "seed"])
def test_no_word_is_stronger_than_its_p(
    sign: int, claim: str, p: float | None, word: str, over: str
) -> None:
    # s / √3 = 0.05, and Student's t with 2 degrees of freedom has 4.303 at 0.975.
    values = tuple(sign * (0.5 + x * 0.05 * 3**0.5) for x in (-1, 0, 1))
    found = verdicts.Units(values, over, True, 3, 3)
    said = verdicts.verdict(found, claim, p, "{:.3f}".format)
    note = "; over seeds: says nothing of other sites" if over == "seed" and p is not None else ""
    assert said == word.format(over) + note


SMALL = """
head = "{tests} in number ({wilcoxon} Wilcoxon, {t} t), {none} without, {alpha}"
tail = "## Not tested"
[[ran]]
name = "sources"
what = "FedAvg and CSAC"
folders = ["claims-sources"]
unit = "angle"
[[section]]
name = "CSAC"
intro = "Figure 3"
[[section.claim]]
text = "ahead"
published = "yes"
compare = [{ on = "sources", a = "csac", b = "METHOD", targets = ["5"] }]
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    if not (RESULTS / "claims-sources" / "records.json.xz").exists():
        pytest.skip("the records of claims-sources are not here")
    (tmp_path / "claims-sources").symlink_to(RESULTS / "claims-sources")
    (tmp_path / "claims.toml").write_text(SMALL.replace("METHOD", "fedavg"))
    return tmp_path


def test_a_page_of_one_row(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["--results", str(small)]
    assert verdicts.main([*call, "--check"]) == 1
    assert verdicts.main(call) == 0 and verdicts.main([*call, "--check"]) == 0
    text = (small / "claims.md").read_text()
    # The table of these records says 58.2 and 51.6.
    assert "| ahead | yes | sources (1 angle × 5 seeds) | +6.6 ± 7.1 | 0.061 | 0.061 |" in text
    assert "1 in number (0 Wilcoxon, 1 t)" in text
    (small / "claims.md").write_text(text.replace("+6.6", "+6.7"))
    assert verdicts.main([*call, "--check"]) == 1
    (small / "claims.toml").write_text(SMALL.replace("METHOD", "nobody"))
    assert verdicts.main(call) == 1
    assert "claims-sources has no finished job of 'nobody'" in capsys.readouterr().err


def test_local_models_are_compared_with_the_global_one(tmp_path: Path) -> None:
    def line(round_: int, loss: float, accuracy: float, **more: str) -> dict[str, object]:
        own = {"round": round_, "domain": "z", "loss": loss, "accuracy": accuracy}
        return {**more, "role": "target", **own}

    cross = [
        line(0, 2.0, 0.3, client="a"),
        line(0, 3.0, 0.5, client="b"),
        line(7, 1.5, 0.6, client="a"),
        line(7, 0.5, 0.7, client="b"),
        {"client": "b", "role": "source", "round": 7, "domain": "a", "loss": 9, "accuracy": 1.0},
    ]
    target = [line(0, 1.0, 0.4), line(7, 0.25, 0.9)]  # fmt: skip
    for name, lines in ((records.CROSS, cross), ("target.jsonl", target)):
        (tmp_path / name).write_bytes(b"".join(map(record_lines.to_line, lines)))
    found = {name: read(tmp_path) for name, read in verdicts.LOCALS.items()}
    assert found == {
        "loss of local models above the global one's": 0.75,  # (1.5 + 0.5) / 2 - 0.25
        "accuracy of the best local model before fusion": 0.5,
        "accuracy of local models before fusion": 0.4,
    }


@pytest.mark.timeout(1200)
def test_claims_md_is_what_its_records_say() -> None:
    page = verdicts.read(RESULTS / "claims.toml")
    names = {folder for ran in page.ran.values() for folder in ran.folders}
    missing = [n for n in names if not (RESULTS / n / "records.json.xz").exists()]
    if missing:
        pytest.skip(f"records are not here: {', '.join(sorted(missing))}")
    assert (RESULTS / "claims.md").read_text("utf-8") == verdicts.written(RESULTS)
