"""Goals are judged, ratios have quartiles, and the page says what was and was not measured."""

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from unseen import bench
from unseen.errors import UnseenError

pytestmark = pytest.mark.skipif(
    not (bench.FOLDER / "harness.py").exists(), reason="benchmarks are part of a checkout"
)


@pytest.fixture
def harness() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("harness", bench.FOLDER / "harness.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get("harness")
    sys.modules["harness"] = module
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("harness")
    if before is not None:
        sys.modules["harness"] = before


def test_goals_are_judged_by_the_median(harness: Any) -> None:
    goals = [
        harness.Goal("a", "twice as fast", at_least=2),
        harness.Goal("b", "small", at_most=1.5),
        harness.Goal("c", "absent", at_most=1),
    ]
    found = harness.judged(goals, {"a": [1.9, 1.5, 2.5], "b": 1.5})
    assert [goal["met"] for goal in found] == [False, True, None]


def test_ratios_are_of_repetitions(harness: Any) -> None:
    assert harness.Ratio.of([2, 6, 20], [1, 2, 4]).list() == [3.0, 2.5, 4.0]


def test_ways_run_in_turn_and_the_order_is_reversed(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(
        harness.gc, "collect", lambda: 0
    )  # seconds, beside all other tests' objects
    ways = {name: (lambda name=name: calls.append(name)) for name in "ab"}
    timings = harness.interleaved(ways, repeats=3, warm=1)
    assert calls == list("ab" + "ab" + "ba" + "ab")
    assert {name: len(values) for name, values in timings.wall.items()} == {"a": 3, "b": 3}
    assert timings.row("work", "a", base="b")["ratio"] is not None


def test_every_benchmark_says_what_it_compares(harness: Any) -> None:
    for name in harness.names():
        text = (bench.FOLDER / f"{name}.py").read_text()
        assert "def run(quick: bool)" in text and text.startswith('"""'), name


SECTION = {
    "name": "rules",
    "about": "Rules.",
    "goals": [
        {"text": "fast", "at_least": 2.0, "at_most": None, "value": [2.5, 2.0, 3.0], "met": True},
        {"text": "small", "at_least": None, "at_most": 1.0, "value": 1.5, "met": False},
        {"text": "else", "at_least": None, "at_most": 1.0, "value": None, "met": None},
    ],
    "measured": [{"table": "Times", "way": "ours", "wall_ms": 1234.5}, {"way": "x", "mib": None}],
    "notes": ["A note."],
    "load": 3.0,
    "seconds": 61.0,
    "commit": "abc",
    "date": "2026-01-01",
}


def test_the_page() -> None:
    machine = {
        "processor": "P", "cores": 2, "memory_gib": 8, "vector_unit": "AVX2", "gpu": None,
        "system": "Linux", "python": "3", "torch": "2",
    }  # fmt: skip
    text = bench.page({"sections": {"rules": SECTION}, "order": ["rules"], "machine": machine})
    assert "**1 goals met, 1 not met, 1 not measured.**" in text
    assert "| fast | ≥ 2 | 2.50 [2.00, 3.00] | met |" in text
    assert "| small | ≤ 1 | 1.50 | **not met** |" in text
    assert "| else | ≤ 1 | – | not measured |" in text
    assert "**Times**\n\n| way | wall ms |\n|:--|--:|\n| ours | 1,234 |" in text
    assert "other work ran beside" in text and "A note." in text


def test_a_file_keeps_sections_that_were_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harness: Any, capsys: Any
) -> None:
    out = tmp_path / "b.json"
    out.write_text(json.dumps({"sections": {"rules": SECTION}, "order": [], "machine": {}}))
    monkeypatch.setattr(bench, "_harness", lambda: harness)
    monkeypatch.setattr(harness, "in_process", lambda name, quick: SECTION | {"name": name})
    monkeypatch.setattr(harness, "machine", dict)
    report = bench.bench(["start_up"], quick=True, out=out)
    assert (
        set(report["sections"])
        == {"rules", "start_up"}
        == set(json.loads(out.read_text())["order"])
    )
    with pytest.raises(UnseenError, match="unknown benchmark 'start_upp'"):
        bench.bench(["start_upp"])


def test_without_a_checkout_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    with pytest.raises(UnseenError, match="part of the repository"):
        bench.bench([])
