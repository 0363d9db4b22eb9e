"""`unseen new`: what it writes passes as it is; own methods and data sets by `module:name`."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest
import torch
from support.command_line import Command

from unseen import Study, Training, UnseenError, method
from unseen.cli.catalogue import page
from unseen.cli.skeletons import FILES, rendered, write
from unseen.core.turn import keyed
from unseen.data import info, load
from unseen.data.networks import build
from unseen.expression import parse, text

KINDS = list(FILES)
#: As short as a name can be, and as long.
NAMES = ["q", "own_rule_of_exactly_30_letters"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder, whose modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


def in_folder(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(part for part in sys.path if part and Path(part) != folder)
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    env.pop("UNSEEN_DATA", None)
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=env, capture_output=True, text=True,
        timeout=800,
    )  # fmt: skip


def test_what_is_written_passes_its_tests(folder: Path, unseen: Command) -> None:
    """Both kinds in one folder, and their tests in one process."""
    for kind in KINDS:
        ran = unseen("new", kind, f"my_{kind}")
        assert ran.code == 0
        assert f"pytest test_my_{kind}.py" in ran.out
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        target.format(f"my_{kind}") for kind in KINDS for target in FILES[kind].values()
    )
    ran = in_folder(folder, "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "9 passed" in ran.stdout


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_clean(folder: Path, name: str) -> None:
    """By ruff's own rules and by many more, formatted at 88 and at 100 columns."""
    pytest.importorskip("ruff", reason="ruff is not installed")
    for kind in KINDS:
        write(kind, name, folder / kind)
    many = "E,F,I,UP,B,SIM,RUF,N,D1,PT,ANN"
    greek = "RUF001,RUF002,RUF003,N803,N806,D105,D107"
    checks = [
        ("check", "--isolated"),
        ("check", "--isolated", "--target-version=py311", f"--select={many}", f"--ignore={greek}",
         "--per-file-ignores=test_*:D1"),
        ("format", "--isolated", "--check", "--diff", "--line-length=88"),
        ("format", "--isolated", "--check", "--diff", "--line-length=100"),
    ]  # fmt: skip
    for kind in KINDS:
        for check in checks:
            ran = in_folder(folder / kind, "ruff", check[0], "--no-cache", *check[1:], ".")
            assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
def test_what_is_written_is_typed(folder: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    for kind in KINDS:
        write(kind, f"my_{kind}", folder)
    files = sorted(path.name for path in folder.glob("*.py"))
    assert len(files) == 4
    ran = in_folder(folder, "mypy", "--strict", *files)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_every_template_is_shipped_and_filled_in(kind: str) -> None:
    for template in FILES[kind]:
        assert (resources.files("unseen.cli.skeletons") / template).is_file()
        made = rendered(template, "my_part")
        assert "my_part" in made and "NAME" not in made
        if template.endswith(".py.txt"):
            ast.parse(made)


def test_nothing_is_overwritten(folder: Path) -> None:
    (folder / "my_rule.md").write_text("mine")
    with pytest.raises(UnseenError, match="my_rule.md exists"):
        write("method", "my_rule", folder)
    assert [path.name for path in folder.iterdir()] == ["my_rule.md"]
    assert (folder / "my_rule.md").read_text() == "mine"
    (folder / "my_rule.md").unlink()
    write("method", "my_rule", folder)
    with pytest.raises(UnseenError, match="nothing is overwritten"):
        write("dataset", "my_rule", folder)


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        ("method", "fedavg", "unseen has a method"),
        ("method", "nash_mtl", "unseen has a method"),
        ("dataset", "rotated_mnist", "unseen has a dataset"),
        ("method", "json", "there is a module"),
        ("dataset", "torch", "there is a module"),
        ("method", "lambda", "a Python keyword or builtin"),
        ("method", "print", "a Python keyword or builtin"),
        ("method", "match", "a Python keyword or builtin"),
        ("method", "My-Rule", "lower-case letters"),
        ("method", "", "lower-case letters"),
        ("method", "../up", "lower-case letters"),
        ("method", "test_rule", "lower-case letters"),
        ("method", "a" * 31, "lower-case letters"),
        ("model", "my_model", "'method', 'dataset'"),
    ],
)
def test_names_that_cannot_be(folder: Path, kind: str, name: str, told: str) -> None:
    with pytest.raises(UnseenError, match=told):
        write(kind, name, folder)
    assert not list(folder.iterdir())


def test_another_folder(folder: Path, unseen: Command) -> None:
    ran = unseen("new", "method", "my_rule", "--out", "deep/er")
    assert ran.code == 0 and "cd deep/er && pytest" in ran.out
    assert (folder / "deep" / "er" / "my_rule.py").is_file()


OWN = '''
from dataclasses import replace

from unseen.methods.base import federated
from unseen.methods.new_rule import with_rule
from unseen.methods.combine import Mean
from unseen.data import DataSet, Domain
from unseen.core.exchange import Reference
import torch

REFERENCE = Reference("Own. Here.", "@misc{own}")


def even(training, weights="uniform"):
    """Every client alike."""
    return federated("even", training, Mean(weights), REFERENCE)


def add_even(method, *, weights="uniform"):
    """Every client alike, on any method."""
    return with_rule(method, Mean(weights))


def wide(shape, outputs, width=4, *, bias):
    """A net with options."""
    inputs = torch.Size(shape).numel()
    layers = torch.nn.Linear(inputs, width, bias=bias), torch.nn.Linear(width, outputs)
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)


def early(training):
    return even(replace(training, batch_size=training.batch_size))


def broken(training):
    return (3).loss


def nothing(training):
    return 3


def sites(data_dir, *, count=3):
    x = torch.arange(40.0)[:, None] / 40
    made = [Domain(f"s{k}", x + k, (x[:, 0] > 0.5).long()) for k in range(count)]
    return DataSet("sites", tuple(made), ("low", "high"), "made", "none", "")


def nobody(data_dir):
    return []
'''


class TestOwnParts:
    @pytest.fixture(autouse=True)
    def _own(self, folder: Path) -> None:
        (folder / "own_parts_here.py").write_text(OWN)
        (folder / "inner_here").mkdir()
        (folder / "inner_here" / "parts.py").write_text("from own_parts_here import even\n")

    def test_expressions_keep_the_path(self) -> None:
        written = "inner_here.parts:even( weights='examples' ) + own_parts_here:add_even"
        assert text(parse(written)) == (
            "inner_here.parts:even(weights='examples')+own_parts_here:add_even"
        )
        assert text(parse(text(parse(written)))) == text(parse(written))
        assert parse("My_Parts:Even")[0].name == "My_Parts:Even"

    @pytest.mark.parametrize("written", ["a:b:c", "a:", ":b", "a:b.c", "a..b:c", "a:1"])
    def test_what_is_no_path(self, written: str) -> None:
        with pytest.raises(UnseenError, match="cannot read the expression at"):
            parse(written)

    def test_the_caret_counts_the_path(self) -> None:
        with pytest.raises(UnseenError) as caught:
            parse("own.parts:even+ga(step=x)")
        line, caret = str(caught.value).splitlines()[1:3]
        assert line.strip() == "own.parts:even+ga(step=x)"
        assert line[caret.index("^")] == "x"

    def test_a_method_and_a_modifier(self) -> None:
        own = method("own_parts_here:even+fedprox(mu=0.5)", Training())
        assert own.name == "own_parts_here:even+fedprox(mu=0.5)"
        again = method("fedprox+own_parts_here:add_even(weights='examples')+ga")
        assert again.name.endswith("+own_parts_here:add_even(weights='examples')+ga")

    @pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
    def test_a_study_is_that_of_the_method_that_it_equals(self, tmp_path: Path, jobs: int) -> None:
        """Own code with FedAvg's uniform weights has FedAvg's records, in other processes too."""
        names = ["own_parts_here:even", "fedavg(weights='uniform')"]
        study = Study(
            dataset="own_parts_here:sites(count=3)", methods=names, targets=["s0"], seeds=1,
            rounds=2, model="logistic", training={"batch_size": 8},
        )  # fmt: skip
        results = study.run(tmp_path / "out", jobs)
        (_, *own), (_, *theirs) = sorted(results.jobs(), key=lambda job: job[0].method)
        for ours, others in zip(own, theirs, strict=True):
            for a, b in zip(ours, others, strict=True):
                assert {**a, "method": ""} == {**b, "method": ""}

    @pytest.mark.parametrize(
        ("expression", "words"),
        [
            ("scaffold+own_parts_here:early", "'own_parts_here:early' does not work as a modifier: "
             "it reads 'batch_size' of what it is given, and a Method has none. A modifier is a "
             "function (method, *, options) -> Method; a method, "),
            ("own_parts_here:add_even", "'own_parts_here:add_even' does not work as a method: "),
            ("scaffold+fedavg", "'fedavg' is a method, not a modifier: a method comes first"),
            ("ga", "'ga' is a modifier, not a method: write it behind one, as in fedavg+ga."),
        ],
    )  # fmt: skip
    def test_a_part_in_the_place_of_the_other_kind(self, expression: str, words: str) -> None:
        with pytest.raises(UnseenError) as caught:
            method(expression)
        assert words in str(caught.value)

    def test_a_mistake_inside_a_part_keeps_its_own_error(self) -> None:
        with pytest.raises(AttributeError, match="'int' object has no attribute 'loss'"):
            method("own_parts_here:broken")

    def test_wrong_parts_are_named(self) -> None:
        cases = {
            "own_parts_here:evn": "did you mean 'even'",
            "own_parts_nowhere:even": "no module 'own_parts_nowhere'",
            "own_parts_here:REFERENCE": "must be a function or a class",
            "own_parts_here:nothing": "must return an unseen.core.exchange.Method; it returned int",
            "own_parts_here:even(wieghts='uniform')": "did you mean 'weights'",
            "own_parts_here:REFERENCE.x": "cannot read",
        }
        for written, told in cases.items():
            with pytest.raises(UnseenError, match=told):
                method(written)
        with pytest.raises(UnseenError, match="found list"):
            load("own_parts_here:nobody")
        with pytest.raises(UnseenError, match="no option 'cuont'; did you mean 'count'"):
            load("own_parts_here:sites", cuont=2)

    def test_a_model_with_options(self) -> None:
        net = build("own_parts_here:wide(width=7, bias=False)", (2, 3), 5, keyed("net"))
        assert [tuple(p.shape) for p in net.parameters()] == [(7, 6), (5, 7), (5,)]
        cases = {
            "own_parts_here:wide": "asks for bias",
            "own_parts_here:wide(bias=True, widht=3)": "did you mean 'width'",
            "own_parts_here:wide(bias=True, shape=3)": "unknown option",
        }
        for written, told in cases.items():
            with pytest.raises(UnseenError, match=told):
                build(written, (2, 3), 5, keyed("net"))

    def test_only_methods_and_data_can_be_ones_own(self) -> None:
        with pytest.raises(UnseenError, match="unknown schedule"):
            Study(training={"schedule": "own_parts_here:even"}).training.build("classes")

    def test_data_and_its_entry(self) -> None:
        data = load("own_parts_here:sites", count=2)
        assert data.names == ("s0", "s1")
        assert torch.equal(data["s1"].x, data["s0"].x + 1)
        assert info("own_parts_here:sites").metrics == ("loss", "accuracy")

    def test_the_page(self) -> None:
        shown = page("own_parts_here:even")
        assert "Every client alike." in shown and "weights = 'uniform'" in shown
        assert "on any method" in page("+own_parts_here:add_even")

    def test_the_check_of_the_data(self, unseen: Command) -> None:
        ran = unseen("data", "check", "own_parts_here:sites(count=2)")
        assert ran.code == 0
        assert "s1" in ran.out and "high" in ran.out
