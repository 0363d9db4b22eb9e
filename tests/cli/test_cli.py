"""The command line: what is typed, what is printed, how it ends."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import numpy as np
import pytest
import typer
from support.command_line import Command

import unseen as package
from unseen import __version__
from unseen.cli.main import ORDER, app
from unseen.expression import options
from unseen.methods import METHODS, MODIFIERS
from unseen.studies.execution import Study
from unseen.studies.settings.named import split_list

#: Six jobs, each long enough to be caught at work.
DIGITS = ["study", "digits", "rounds=6", "--methods", "fedavg", "--seeds", "1"]
SITES = [("north", 0), ("south", 1), ("west", 2)]


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data is where a test says that it is."""
    monkeypatch.delenv("UNSEEN_DATA", raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A study of a table of three sites."""
    lines = ["site,u,v,y"]
    for name, shift in SITES:
        lines += [f"{name},{i % 5 + shift},{i % 2 - i / 30},{i % 2}" for i in range(20)]
    (tmp_path / "sites.csv").write_text("\n".join(lines) + "\n")
    path = tmp_path / "sites.toml"
    path.write_text(
        'title = "Three sites"\nmodel = "logistic"\nrounds = 2\nseeds = 1\n'
        "dataset = \"table(path='sites.csv', domain='site', label='y')\"\n"
        "[training]\nbatch_size = 6\n"
    )
    return path


def written(out: Path) -> dict[str, bytes]:
    """The bytes of every record file and table file."""
    kinds = (".jsonl", ".csv", ".md", ".tex")
    files = (f for f in sorted(out.rglob("*")) if f.suffix in kinds)
    return {str(f.relative_to(out)): f.read_bytes() for f in files}


def process(arguments: Sequence[str], **options: object) -> subprocess.Popen[str]:
    """The command line in a process of its own, which leads those that it starts."""
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-c", "from unseen.cli.main import main; main()", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def alive(leader: int) -> list[str]:
    """The command lines of a process and of all that it started, if they have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, of, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(of) == leader and state not in "ZX":
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except (OSError, ValueError):
            continue
    return found


def wait_for(what: Callable[[], object], seconds: float) -> bool:
    """Whether it came true in time."""
    end = time.monotonic() + seconds
    while not what() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(what())


# --- help, lists, pages ----------------------------------------------------------------------


def test_help_waits_for_neither_torch_nor_pydantic() -> None:
    code = (
        "import sys; from unseen.cli.main import main; sys.argv = ['unseen', '--help']\n"
        "try: main()\n"
        "finally: print('LOADED', [m for m in ('torch', 'pydantic', 'numpy', 'sklearn', 'scipy',"
        " 'unseen.core.exchange') if m in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert "LOADED []" in ran.stdout
    assert all(command in ran.stdout for command in ("study", "list", "show"))


def test_the_version(unseen: Command) -> None:
    assert unseen("--version").out.strip() == __version__


@pytest.mark.parametrize("command", ["study", "table", "list", "show"])
def test_every_command_explains_itself(unseen: Command, command: str) -> None:
    ran = unseen(command, "-h")
    assert ran.code == 0
    assert "Usage: unseen" in ran.out


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command that there is, as it is typed."""
    yield path
    for name, one in group.commands.items():
        yield from commands(one, (*path, name)) if isinstance(one, click.Group) else [(*path, name)]


@pytest.mark.parametrize("path", commands(typer.main.get_command(app)), ids=" ".join)  # type: ignore[arg-type]
def test_no_word_of_the_help_is_lost(unseen: Command, path: tuple[str, ...]) -> None:
    """Square brackets are markup to rich: what stands in them leaves a blank before the stop, or
    two between words."""
    text = unseen(*path, "--help").out
    assert re.search(r" \.(\s|$)", text) is None
    assert re.search(r"\S {2,}\S", text.partition("╭")[0]) is None
    if "--data-dir" in text and "report" not in path:
        assert "$UNSEEN_DATA" in text


def test_the_help_begins_with_what_is_needed_first(unseen: Command) -> None:
    names = re.findall(r"^│ ([a-z]+) ", unseen("--help").out, re.MULTILINE)
    assert names[:11] == [
        "choose",
        "open",
        "tune",
        "study",
        "table",
        "compare",
        "report",
        "train",
        "predict",
        "evaluate",
        "export",
    ]
    assert sorted(names) == sorted(ORDER)


def test_a_mistyped_command_is_answered_once(unseen: Command) -> None:
    ran = unseen("stduy")
    assert ran.code == 2
    assert ran.err.count("Did you mean 'study'") == 1


def test_what_is_imported_late_is_completed(unseen: Command) -> None:
    assert set(package.__all__) <= set(dir(package))
    assert "__version__" in dir(package) and dir(package) == sorted(dir(package))


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("methods", [*METHODS, *(f"+{name}" for name in MODIFIERS)]),
        ("datasets", ["rotated-digits", "heart-disease", "folder", "table"]),
        ("models", ["logistic", "mlp", "lenet", "widths=(64, 64)"]),
        ("studies", ["digits", "heart", "lung", "segmentation", "table"]),
    ],
)
def test_lists(unseen: Command, what: str, names: list[str]) -> None:
    ran = unseen("list", what)
    assert ran.code == 0
    for name in names:
        assert name in ran.out


@pytest.mark.parametrize("what", ["methods", "models"])
def test_what_a_list_says_ends_with_a_sentence(unseen: Command, what: str) -> None:
    rows = [line.split("│")[1:-1] for line in unseen("list", what).out.splitlines() if "│" in line]
    described: list[str] = []
    for name, text, *_ in rows:  # a cell may go on in the next line, whose name is empty
        if name.strip():
            described.append(text.strip())
        else:
            described[-1] = f"{described[-1]} {text.strip()}".strip()
    assert len(described) > 4
    assert [text for text in described if not text.endswith((".", ":"))] == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ppdg", ["λ", "lam = 0.1", "base = 'raw'", "@article{tian2023ppdg", "+ppdg"]),
        ("ga", ["+ga", "step = 0.05", "variant = 'centred'", "@inproceedings{zhang2023ga", "gap"]),
        ("+ga", ["+ga", "CVPR 2023"]),
        ("fedprox", ["mu = ", "μ", "@inproceedings"]),
        ("FedAvg", ["fedavg", "weights = 'examples'", "McMahan"]),
    ],
)
def test_the_page_of_a_method(unseen: Command, name: str, words: list[str]) -> None:
    ran = unseen("show", name)
    assert ran.code == 0
    for word in words:
        assert word in ran.out


@pytest.mark.parametrize("name", [*METHODS, *(f"+{name}" for name in MODIFIERS)])
def test_every_method_has_a_page_with_its_options_and_source(unseen: Command, name: str) -> None:
    ran = unseen("show", name)
    part = MODIFIERS[name[1:]] if name.startswith("+") else METHODS[name]
    for option, parameter in options(part).items():
        assert f"{option} = {parameter.default!r}" in ran.out
    assert "Source" in ran.out
    assert "@" in ran.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "fedagv"], ["unknown method 'fedagv'", "'fedavg'"]),
        (["list", "method"], ["unknown list 'method'", "'methods'"]),
        (["study", "digit"], ["unknown study 'digit'", "'digits'"]),
        (["study", "digits", "round=3"], ["unknown setting 'round'", "'rounds'"]),
        (["study", "digits", "training.epoch=3"], ["'training.epoch'", "'epochs'"]),
        (["study", "digits", "rounds"], ["key=value", "'rounds'"]),
        (["study", "digits", "--methods", "fedagv"], ["unknown method 'fedagv'", "'fedavg'"]),
        (["study", "digits", "--methods", "fedavg(weight=1)"], ["'weight'", "'weights'"]),
        (["study", "digits", "--methods", "fedavg("], ["column", "fedavg("]),
        (["study", "digits", "--targets", "16"], ["unknown target '16'", "'15'"]),
        (["study", "digits", "--targets", ""], ["targets"]),
        (["study", "digits", "--seeds", "two"], ["seeds", "'two'"]),
        (["study", "digits", "--seeds", ""], ["seeds"]),
        (["study", "digits", "--seeds", "0"], ["seeds", "0"]),
        (["study", "nowhere.toml"], ["nowhere.toml", "list studies"]),
    ],
)
def test_a_mistake_is_answered_in_one_paragraph(
    unseen: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = unseen(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    assert "Traceback" not in ran.err
    for word in words:
        assert word in ran.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["stduy"], ["study"], ["study", "digits", "--jobs", "0"]])
def test_a_command_that_cannot_be_read(unseen: Command, arguments: list[str]) -> None:
    ran = unseen(*arguments)
    assert ran.code == 2
    assert "Traceback" not in ran.err


# --- studies ---------------------------------------------------------------------------------


def test_a_study_prints_its_table_and_says_where_it_is(
    unseen: Command, file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ran = unseen("study", str(file), "--data-dir", str(tmp_path), "--out", str(out))
    assert ran.code == 0, ran.err
    assert "Three sites" in ran.out
    for column in ("north", "south", "west", "average", "worst"):
        assert column in ran.out
    assert f"{out}" in ran.out
    for name in ("table.csv", "table.md", "table.tex", "runs.csv", "study.json"):
        assert (out / name).is_file()
    for name, columns in (("table.csv", 1 + 5 * 5), ("runs.csv", 5)):
        # A reader that knows no comments: numpy refuses rows of another length.
        found = np.genfromtxt(out / name, delimiter=",", dtype=str, comments=None)
        assert found.shape[1] == columns
    assert "selection: source-validation" in (out / "table.notes.txt").read_text()
    again = unseen("study", str(file), "--data-dir", str(tmp_path), "--out", str(out))
    assert again.out.split("Three sites")[1] == ran.out.split("Three sites")[1]


def test_the_table_of_what_is_finished_by_another_rule(
    unseen: Command, file: Path, tmp_path: Path
) -> None:
    shared = ["--data-dir", str(tmp_path), "--out", str(tmp_path / "out")]
    unseen("study", str(file), *shared)
    before = written(tmp_path / "out")
    results = Study.read(file).run(tmp_path / "out", data_dir=tmp_path)
    ran = unseen("table", str(file), *shared, "--selection", "target-oracle", "--format", "csv")
    assert ran.out == results.table(selection="target-oracle").to_csv()
    assert ran.err == results.table(selection="target-oracle").to_notes()
    shown = unseen("table", str(file), *shared, "--metric", "loss", "--format", "markdown")
    assert shown.out == results.table("loss").to_markdown()
    assert "Three sites" in unseen("table", str(file), *shared).out
    alone = unseen("table", str(tmp_path / "out"), "--metric", "loss", "--format", "markdown")
    assert alone.out == shown.out
    assert "says itself" in unseen("table", str(tmp_path / "out"), "rounds=3").err
    assert written(tmp_path / "out") == before
    wrong = unseen("table", str(file), *shared, "--format", "word")
    assert wrong.code == 2
    assert "markdown" in wrong.err


def test_the_command_line_and_python_do_the_same(
    unseen: Command, file: Path, tmp_path: Path
) -> None:
    shared = ["--data-dir", str(tmp_path), "--methods", "fedavg,ppdg(lam=0.2)+ga"]
    unseen("study", str(file), "rounds=3", *shared, "--out", str(tmp_path / "typed"))
    overrides = {"rounds": 3, "methods": ["fedavg", "ppdg(lam=0.2)+ga"]}
    results = Study.read(file, overrides).run(tmp_path / "called", data_dir=tmp_path)
    assert written(tmp_path / "typed") == written(tmp_path / "called")
    assert results.table().methods == ("fedavg", "ppdg(lam=0.2)+ga")


def test_results_lie_under_the_studys_name_unless_told_otherwise(
    unseen: Command, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNSEEN_DATA", str(tmp_path))
    assert unseen("study", str(file), "--targets", "west").code == 0
    assert (tmp_path / "results" / "sites" / "table.csv").is_file()


def test_options_win_over_settings_and_settings_over_the_file(
    unseen: Command, file: Path, tmp_path: Path
) -> None:
    ran = unseen(
        "study", str(file), "seeds=4", "rounds=5", "training.batch_size=3", "--seeds", "3,7",
        "--targets", "south,west", "--methods", "fedavg, fedsgd", "--data-dir", str(tmp_path),
        "--out", str(tmp_path / "out"), "--dry-run",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "jobs: 8" in ran.out  # 2 methods × 2 targets × 2 seeds
    assert "tasks: south, west" in ran.out


def test_a_metric_that_is_asked_for_is_measured(
    unseen: Command, file: Path, tmp_path: Path
) -> None:
    shared = [str(file), "--data-dir", str(tmp_path), "--targets", "north"]
    ran = unseen("study", *shared, "metric=auroc", "--out", str(tmp_path / "out"))
    assert ran.code == 0, ran.err
    assert "auroc, one seed" in ran.out and "source-validation by auroc" in ran.out
    identity = json.loads((tmp_path / "out/study.json").read_text())["identity"]
    assert identity["metrics"] == ["loss", "accuracy", "auroc"]
    plain = unseen("study", *shared, "--out", str(tmp_path / "plain"))
    assert plain.code == 0
    wrong = unseen("study", *shared, "metric=f1", "--out", str(tmp_path / "wrong"))
    assert wrong.code == 2 and "unknown metric 'f1'" in wrong.err and "auroc" in wrong.err


def test_a_table_by_its_file_is_answered_with_how_to_name_it(unseen: Command) -> None:
    ran = unseen("study", "visits.csv")
    assert ran.code == 2
    assert "table(path='visits.csv', site='SITE', label='LABEL')" in ran.err


def test_an_address_is_shown_as_it_was_typed(unseen: Command, tmp_path: Path) -> None:
    ran = unseen("data", "check", "table(path='http://x/y.csv', domain='a', label='b')")
    assert ran.code == 2
    assert "'http://x/y.csv'" in ran.err and "downloads nothing" in ran.err


def test_a_dry_run_checks_everything_and_writes_nothing(
    unseen: Command, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UNSEEN_DATA", str(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    ran = unseen("study", str(file), "--dry-run")
    assert ran.code == 0
    for word in (
        "north: 20 examples",
        "model: logistic",
        "jobs: 3, of which 3",
        "length of a job: ",
    ):
        assert word in ran.out
    large = ["training.batch_size=50", "training.drop_last=true"]
    wrong = unseen("study", str(file), *large, "--dry-run")
    assert wrong.code == 2
    assert "batch_size = 50" in wrong.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_dry_run_counts_what_is_finished(unseen: Command, file: Path, tmp_path: Path) -> None:
    shared = [str(file), "--data-dir", str(tmp_path), "--out", str(tmp_path / "out")]
    unseen("study", *shared, "--targets", "north")
    assert "jobs: 3, of which 2 are still to run" in unseen("study", *shared, "--dry-run").out


def test_a_dry_run_refuses_a_folder_of_another_study(
    unseen: Command, file: Path, tmp_path: Path
) -> None:
    shared = [str(file), "--data-dir", str(tmp_path), "--out", str(tmp_path / "out")]
    unseen("study", *shared)
    for more in ([], ["--dry-run"]):
        ran = unseen("study", *shared, "rounds=3", *more)
        assert ran.code == 2
        assert "rounds was 2 and is 3" in ran.err


def test_a_warning_is_one_line_without_its_origin(
    unseen: Command, file: Path, tmp_path: Path
) -> None:
    table = tmp_path / "sites.csv"
    lines = table.read_text().splitlines()
    one = [line[:-1] + "0" if line.startswith("west") else line for line in lines]
    table.write_text("\n".join(one) + "\n")
    ran = unseen(
        "study", str(file), "--data-dir", str(tmp_path), "--out", str(tmp_path / "out"),
        "--targets", "north", 'metrics=["accuracy", "auroc"]',
    )  # fmt: skip
    assert ran.code == 0, ran.err
    (line,) = ran.err.strip().splitlines()
    assert line.startswith("warning: clients with examples of one class only")
    assert line.endswith("undefined: 'west' (0)")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("fedavg", ["fedavg"]),
        ("a, b ,c", ["a", "b", "c"]),
        ('ppdg(lam=0.2, base="running")+ga,fedavg', ['ppdg(lam=0.2, base="running")+ga', "fedavg"]),
        ("mlp(widths=[64, 64]),x", ["mlp(widths=[64, 64])", "x"]),
        ("a,b,", ["a", "b"]),
        ("", []),
    ],
)
def test_commas_inside_brackets_do_not_separate(text: str, parts: list[str]) -> None:
    assert split_list(text) == parts


@pytest.mark.parametrize("text", ["fedavg,,ppdg", ",fedavg", "fedavg, ,ppdg,", ",,"])
def test_nothing_between_two_commas_is_refused_in_words(text: str, unseen: Command) -> None:
    ran = unseen("study", "digits", "--methods", text, "--dry-run")
    assert ran.code == 2 and "nothing between two commas" in ran.err


@pytest.mark.parametrize("command", ["predict", "study"])
def test_paragraphs_of_the_help_break_where_the_terminal_ends(
    unseen: Command, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wide enough, each is one line."""
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 400)
    prose = unseen(command, "--help").out.partition("╭")[0].strip().splitlines()
    lines = [line.strip() for line in prose]
    assert all(a == "" or b == "" for a, b in itertools.pairwise(lines))


def test_what_the_package_needs_itself_is_not_offered() -> None:
    assert not {"Any", "TYPE_CHECKING", "annotations", "_HOMES"} & {*dir(package)}
    assert {*package.__all__} <= {*dir(package)}


# --- how it ends -----------------------------------------------------------------------------

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the digits study writes when nobody interrupts it."""
    out = tmp_path_factory.mktemp("digits")
    Study.read("digits", {"rounds": 6, "methods": ["fedavg"], "seeds": 1}).run(out)
    return written(out)


def interrupted(running: subprocess.Popen[str]) -> None:
    """Ctrl-C: every process of the terminal is told, as a shell does it."""
    os.killpg(running.pid, signal.SIGINT)
    try:
        out, err = running.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        raise
    assert running.returncode == 130
    assert "Traceback" not in err, err
    assert "KeyboardInterrupt" not in err, err
    assert "Run the same command to resume." in err + out
    assert wait_for(lambda: not alive(running.pid), 20), alive(running.pid)


@linux
@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_ends_cleanly_and_the_same_command_goes_on(
    digits: dict[str, bytes], tmp_path: Path, jobs: str
) -> None:
    command = [*DIGITS, "--jobs", jobs, "--out", str(tmp_path)]
    running = process(command)
    assert wait_for(lambda: list(tmp_path.rglob("done.json")), 120)
    interrupted(running)
    finished = len(list(tmp_path.rglob("done.json")))
    assert 1 <= finished < 6
    again = process(command)
    out, err = again.communicate(timeout=240)
    assert again.returncode == 0, err
    assert "Rotated digits" in out
    assert written(tmp_path) == digits


@linux
@pytest.mark.slow
def test_ctrl_c_while_workers_start_ends_cleanly(tmp_path: Path) -> None:
    running = process([*DIGITS, "--jobs", "2", "--out", str(tmp_path)])
    assert wait_for(
        lambda: len(alive(running.pid)) >= 5, 60
    )  # its tracker, what forks, two workers
    time.sleep(0.2)  # they are importing
    interrupted(running)


@linux
@pytest.mark.slow
def test_workers_do_not_outlive_a_killed_study(tmp_path: Path) -> None:
    running = process([*DIGITS, "rounds=2000", "--jobs", "2", "--out", str(tmp_path)])
    try:
        begun = tmp_path.rglob
        assert wait_for(lambda: any(f.stat().st_size for f in begun("target.jsonl")), 120)
        running.kill()
        running.wait()
        assert wait_for(lambda: not alive(running.pid), 20), alive(running.pid)
    finally:
        if alive(running.pid):
            os.killpg(running.pid, signal.SIGKILL)


@linux
@pytest.mark.slow
def test_a_study_killed_with_its_workers_goes_on(digits: dict[str, bytes], tmp_path: Path) -> None:
    running = process([*DIGITS, "--jobs", "2", "--out", str(tmp_path)])
    assert wait_for(lambda: list(tmp_path.rglob("done.json")), 120)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate(timeout=60)
    Study.read("digits", {"rounds": 6, "methods": ["fedavg"], "seeds": 1}).run(tmp_path)
    assert written(tmp_path) == digits


OWN = """
from torch import nn

def small(shape, outputs):
    return nn.Sequential(nn.Linear(shape[0], 3), nn.Tanh(), nn.Linear(3, outputs))
"""


@pytest.mark.slow
def test_workers_find_the_users_model_and_data_where_the_command_was_given(
    file: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    command = ["study", file.name, "model=mine:small", "--data-dir", "."]
    for jobs in ("1", "2"):
        running = process([*command, "--jobs", jobs, "--out", f"out-{jobs}"], cwd=tmp_path)
        _, err = running.communicate(timeout=120)
        assert running.returncode == 0, err
    assert written(tmp_path / "out-1") == written(tmp_path / "out-2")
    assert len(written(tmp_path / "out-1")) == 3 * 5 + 4
