"""Goals are judged, ratios have quartiles, and the page says what was and was not measured."""

import doctest
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from unseen.errors import UnseenError

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))

import harness as shared  # noqa: E402
import hierarchy  # noqa: E402
import report as bench  # noqa: E402
import where_time_goes  # noqa: E402


@pytest.fixture
def harness() -> ModuleType:
    return shared


def test_goals_are_judged_by_the_median(harness: Any) -> None:
    goals = [
        harness.Goal("a", "twice as fast", at_least=2),
        harness.Goal("b", "small", at_most=1.5),
        harness.Goal("c", "absent", at_most=1),
    ]
    found = harness.judged(goals, {"a": [1.9, 1.5, 2.5], "b": 1.5})
    assert [goal["met"] for goal in found] == [False, True, None]


def test_examples_in_docstrings() -> None:
    for module in (shared, bench, where_time_goes):
        assert (found := doctest.testmod(module)).attempted and not found.failed


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
        text = (FOLDER / f"{name}.py").read_text()
        assert "def run(quick: bool)" in text and text.startswith('"""'), name


@pytest.mark.slow  # CI runs them all by `make bench-quick`
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", shared.names())
def test_every_benchmark_runs(
    name: str, harness: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setenv("UNSEEN_BENCH_DEVICE", "cpu")  # what is for a GPU runs there too
    monkeypatch.setenv(
        "OMP_WAIT_POLICY", "passive"
    )  # a thread that waits leaves its core to others
    section = harness.in_process(name, quick=True)
    assert not section.get("failed"), capfd.readouterr().err
    assert section["name"] == name and section["quick"]
    absent = [note for note in section["notes"] if "is not installed" in note]
    assert section["measured"] or absent
    if absent:
        pytest.skip(absent[0])
    text = bench.section_text(section)
    assert text.startswith(f"## {section['about']}") and "A quick run" in text


#: Each prints what it measures; with the least work that it can be given.
SCRIPTS = {
    "calibration": ["--examples", "64", "--repeats", "1"],
    "per_example_geometric": ["--examples", "16", "--repeats", "1"],
    "ppdg_rule": ["--clients", "2", "--repeats", "1"],
    "extraction": ["--images", "8", "--size", "32", "--repeats", "1"],
    "round_times": ["--study", "digits", "--methods", "fedavg,ppdg", "--repeats", "1"],
    "where_time_goes": ["--quick"],
}


#: Their least work is 7 to 9 CPU seconds, half a minute on a loaded core.
DEAR = {"ppdg_rule", "per_example_geometric"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in DEAR)) for n in SCRIPTS]
)
def test_every_script_runs(name: str) -> None:
    command = [sys.executable, str(FOLDER / f"{name}.py"), *SCRIPTS[name]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


#: What each of these says without its extra; None in sys.modules: as if it were not installed.
WITHOUT = """
import json, sys
sys.modules |= dict.fromkeys(["tenseal", "opacus", "flwr", "numba", "pandas"])
sys.path.insert(0, sys.argv[1])
import harness
print(json.dumps([harness.measure(name, True) for name in sys.argv[2:]]))
"""
EXTRAS = {
    "encryption": "he", "noise": "dp", "flower": "flower", "flower_engine": "flower",
    "members": "fast", "table_reading": "pandas",
}  # fmt: skip


def test_a_benchmark_without_its_extra_says_so(harness: Any) -> None:
    command = [sys.executable, "-c", WITHOUT, str(FOLDER), *EXTRAS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for section in json.loads(done.stdout.splitlines()[-1]):
        extra = EXTRAS[section["name"]]
        assert section["notes"] == [
            "Not measured: this needs an extra that is not installed: "
            f'pip install "unseen[{extra}]".'
        ]
        assert {goal["met"] for goal in section["goals"]} <= {None}
    with_extras = [n for n in harness.names() if "\nextras = (" in (FOLDER / f"{n}.py").read_text()]
    assert set(with_extras) == set(EXTRAS)


def test_the_mean_of_a_hierarchy_is_that_of_all_rows() -> None:
    counts = torch.tensor([hierarchy.examples(k) for k in range(23)], dtype=torch.float64)
    rows = hierarchy.rows(range(23), 300).double()
    expected = (counts[:, None] * rows).sum(0) / counts.sum()
    vector, found = hierarchy.layered("mean", 23, 300)
    # Two levels of at most 5 products and sums each in float32.
    bound = 2**-24 * 24 * rows.abs().max()
    assert (vector.double() - expected).abs().max() <= bound
    assert found["received_mib"] * 2**20 == 5 * 300 * 4
    apart = hierarchy.layered("PPDG", 23, 300)[0].double()
    assert (apart - expected).abs().max() > bound


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


def machine(processor: str = "P", cores: int = 2) -> dict[str, Any]:
    return {
        "processor": processor, "cores": cores, "memory_gib": 8, "vector_unit": "AVX2", "gpu": None,
        "system": "Linux", "python": "3", "torch": "2",
    }  # fmt: skip


def record(*sections: Any, processor: str = "P", commit: str = "abc") -> dict[str, Any]:
    found = {section["name"]: section for section in sections}
    about = {"machine": machine(processor), "commit": commit, "date": "2026-01-01"}
    return {"machines": {f"{processor}, 2 cores": {**about, "sections": found}}}


def test_the_page() -> None:
    text = bench.page(record(SECTION))
    counts = "**P, 2 cores: 1 goals met, 1 not met, 1 not measured**"
    assert f"\n\n- {counts}, at commit abc on 2026-01-01.\n" in text
    assert "| goal | asked | P, 2 cores |" in text
    assert "| fast | ≥ 2 | 2.50 [2.00, 3.00], met |" in text
    assert "| small | ≤ 1 | 1.50, **not met** |" in text
    assert "| else | ≤ 1 | not measured |" in text
    assert "| 3.0 (other work ran: trust ratios and CPU times) |" in text
    assert "Sections of other commits" not in text
    assert "[performance](performance.md)" in text


def test_the_text_of_a_section() -> None:
    text = bench.section_text(SECTION)
    assert "| fast | ≥ 2 | 2.50 [2.00, 3.00] | met |" in text
    assert "**Times**\n\n| way | wall ms |\n|:--|--:|\n| ours | 1,234 |" in text
    assert "A note." in text


def test_the_page_holds_machines_side_by_side() -> None:
    slow = SECTION["goals"][0] | {"value": 1.0, "met": False}
    small = SECTION["goals"][1]
    new = record(SECTION | {"goals": [slow, small | {"at_most": 2.0, "met": True}], "notes": []},
                 processor="new", commit="def")  # fmt: skip
    old = record(SECTION, SECTION | {"name": "step", "about": "Steps.", "goals": []}, processor="o")
    text = bench.page({"machines": new["machines"] | old["machines"]})
    assert "- **new, 2 cores: 1 goals met, 1 not met, 0 not measured**, at commit def" in text
    assert "- **o, 2 cores: 1 goals met, 1 not met, 1 not measured**, at commit abc" in text
    assert "| goal | asked | new, 2 cores | o, 2 cores |" in text
    assert "| fast | ≥ 2 | 1.00, **not met** | 2.50 [2.00, 3.00], met |" in text
    # What another commit asked for is not what this one asks for.
    assert "| small | ≤ 2 | 1.50, met | – |" in text
    assert "| small | ≤ 1 | – | 1.50, **not met** |" in text


def test_sections_of_other_commits_are_flagged() -> None:
    step = SECTION | {"name": "step", "commit": "old"}
    text = bench.page(record(SECTION, step, SECTION | {"name": "memory", "commit": "old"}))
    flag = "**Sections of other commits:** step, memory at old (2026-01-01)."
    assert f"at commit abc on 2026-01-01. {flag}" in text


def ran(monkeypatch: pytest.MonkeyPatch, processor: str, commit: str, value: float) -> None:
    """Sections as if they had been measured on this processor at this commit."""

    def section(name: str, quick: bool) -> dict[str, Any]:
        goal = {"value": None, "met": None} if quick else {"value": value, "met": True}
        goals = [SECTION["goals"][0] | goal]
        return SECTION | {"name": name, "quick": quick, "goals": goals}

    monkeypatch.setattr(shared, "in_process", section)
    monkeypatch.setattr(shared, "machine", lambda: machine(processor))
    monkeypatch.setattr(shared, "commit", lambda: commit)


def values(out: Path) -> dict[str, dict[str, float]]:
    found = json.loads(out.read_text())["machines"].items()
    return {
        key: {name: s["goals"][0]["value"] for name, s in record["sections"].items()}
        for key, record in found
    }


def test_a_run_changes_its_own_machines_sections_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "b.json"
    ran(monkeypatch, "one", "abc", 3.0)
    bench.bench(["rules", "step"], out=out)
    first = json.loads(out.read_text())["machines"]["one, 2 cores"]
    ran(monkeypatch, "two", "def", 4.0)
    report, wrong = bench.bench(["rules"], out=out)
    assert not wrong and list(report["machines"]) == ["two, 2 cores", "one, 2 cores"]
    assert json.loads(out.read_text())["machines"]["one, 2 cores"] == first
    ran(monkeypatch, "one", "ghi", 5.0)
    bench.bench(["rules"], out=out)
    assert values(out) == {
        "one, 2 cores": {"rules": 5.0, "step": 3.0}, "two, 2 cores": {"rules": 4.0},
    }  # fmt: skip
    assert "at commit ghi" in (text := bench.page(json.loads(out.read_text())))
    assert "**Sections of other commits:** step at abc" in text
    with pytest.raises(UnseenError, match="unknown benchmark 'start_upp'"):
        bench.bench(["start_upp"])


def test_a_quick_run_never_replaces_a_measured_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "b.json"
    ran(monkeypatch, "one", "abc", 3.0)
    bench.bench(["rules"], out=out)
    before = json.loads(out.read_text())["machines"]["one, 2 cores"]
    ran(monkeypatch, "one", "def", 9.0)
    bench.bench(["rules", "step"], quick=True, out=out)
    after = json.loads(out.read_text())["machines"]["one, 2 cores"]
    assert after["sections"]["rules"] == before["sections"]["rules"]
    assert {k: after[k] for k in ("machine", "commit", "date")} == {
        k: before[k] for k in ("machine", "commit", "date")
    }
    assert after["sections"]["step"]["quick"]
    ran(monkeypatch, "two", "def", 9.0)
    report, _ = bench.bench(["rules"], quick=True, out=out)
    assert list(report["machines"]) == ["one, 2 cores", "two, 2 cores"]
    assert "two, 2 cores: 0 goals met" in (text := bench.page(report))
    assert "quick runs alone, nothing was measured" in text
    ran(monkeypatch, "two", "def", 2.0)  # a measured one replaces a quick one
    bench.bench(["rules"], out=out)
    assert values(out)["two, 2 cores"] == {"rules": 2.0}


def test_the_committed_page_is_of_the_committed_figures() -> None:
    docs = FOLDER.parent / "docs"
    report = json.loads((docs / "benchmarks.json").read_text())
    text = (docs / "benchmarks.md").read_text()
    assert text == bench.page(report), "made by hand? report.page(report) writes it"


def test_a_section_that_fails_is_named_and_the_command_fails(tmp_path: Path) -> None:
    for name in ("__main__.py", "harness.py", "report.py"):
        shutil.copy(FOLDER / name, tmp_path)
    (tmp_path / "broken.py").write_text(
        '"""Broken."""\ngoals = []\ndef run(quick): {}["decrypt"]\n'
    )
    (tmp_path / "sound.py").write_text('"""Sound."""\ngoals = []\ndef run(quick): return {}\n')
    out, page = tmp_path / "b.json", tmp_path / "b.md"

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, tmp_path, *arguments, "--out", out]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run("--quick", "--page", page)
    assert done.returncode == 1 and "broken failed" in done.stderr
    assert "`python benchmarks broken`" in done.stderr and "KeyError: 'decrypt'" in done.stderr
    assert "**Failed** with exit status 1" in done.stdout and page.exists()
    assert run("sound").returncode == 0


def test_time_below_a_part_belongs_to_it() -> None:
    """Seconds of a graph by hand: `add` is called by a rule for 3 s and by a client for 1 s, and
    `kernel`, which only `add` calls, is shared as `add` is, 3 to 1."""
    main, rule = ("cli.py", 1, "main"), ("/t/methods/combine/mean.py", 1, "mean")
    client, add = ("/t/methods/local/train.py", 1, "train"), ("/torch.py", 1, "add")
    kernel = ("~", 0, "kernel")
    stats = {
        main: (1, 1, 1.0, 8.0, {}),
        rule: (1, 1, 2.0, 5.0, {main: (1, 1, 2.0, 5.0)}),
        client: (1, 1, 1.0, 2.0, {main: (1, 1, 1.0, 2.0)}),
        add: (2, 2, 2.0, 4.0, {rule: (1, 1, 1.5, 3.0), client: (1, 1, 0.5, 1.0)}),
        kernel: (2, 2, 2.0, 2.0, {add: (2, 2, 2.0, 2.0)}),
    }
    found = where_time_goes.by_part(stats, "/t/")
    spent = {part: seconds for part, seconds in found.items() if seconds}
    expected = {"server": 2 + 1.5 + 1.5, "training": 1 + 0.5 + 0.5, where_time_goes.OTHER: 1.0}
    assert spent == pytest.approx(expected)
