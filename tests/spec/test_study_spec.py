"""Studies as records: files, names, overrides, and every mistake answered."""

from __future__ import annotations

import json
import pickle
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from unseen.core.apply import Add, Descend
from unseen.core.losses import CrossEntropy, SquaredError
from unseen.core.optimiser import SGD, Adam
from unseen.core.schedule import Cosine, Step
from unseen.errors import UnseenError
from unseen.studies.execution import Study
from unseen.studies.settings.holdout import Fixed, Growing, Task, plan
from unseen.studies.settings.named import named_studies, parse_override
from unseen.studies.settings.training import Recipe


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(
        'title = "Mine"\nmethods = ["fedavg", "ppdg(lam=0.2)"]\nrounds = 7\nseeds = [4, 2]\n'
        '[holdout]\nsource = ["0", "15"]\nvalidation = ["30"]\ntarget = ["75"]\n'
        '[training]\noptimiser = "adam(lr=0.001)"\nbatch_size = 16\n'
    )
    return path


# --- where settings come from --------------------------------------------------------------


def test_the_command_line_wins_over_the_file_and_the_file_over_the_default(file: Path) -> None:
    study = Study.read(file, {"rounds": 9, "training.batch_size": 4})
    assert (study.rounds, study.training.batch_size) == (9, 4)  # command line
    assert study.training.optimiser == "adam(lr=0.001)"  # file, in the same table
    assert study.methods == ("fedavg", "ppdg(lam=0.2)")
    assert study.seed_list == (4, 2)
    assert study.holdout == Fixed(source=("0", "15"), validation=("30",), target=("75",))
    assert (study.evaluate_every, study.dataset) == (1, "rotated-digits")  # default
    assert study.name == "mine"
    assert Study.read(file).rounds == 7
    assert Study().rounds == 20


def test_an_override_makes_a_table_that_the_file_lacks(tmp_path: Path) -> None:
    path = tmp_path / "plain.toml"
    path.write_text("rounds = 3\n")
    study = Study.read(path, {"training.epochs": 5, "holdout.growing": ["0", "15"],
                              "holdout.target": ["30"]})  # fmt: skip
    assert study.training.epochs == 5
    assert study.holdout == Growing(growing=("0", "15"), target=("30",))


def test_an_override_below_a_single_value_is_refused(file: Path) -> None:
    with pytest.raises(UnseenError, match="'rounds' is a single value"):
        Study.read(file, {"rounds.first": 3})


def test_epochs_asked_for_beside_a_files_steps_are_refused(tmp_path: Path) -> None:
    """A file's steps must not silently win over the command line's epochs."""
    path = tmp_path / "steps.toml"
    path.write_text("[training]\nsteps = 10\n")
    with pytest.raises(UnseenError, match="steps"):
        Study.read(path, {"training.epochs": 5}).training.build("classes")


@pytest.mark.parametrize("name", named_studies())
def test_the_studies_of_the_package_can_be_read(name: str) -> None:
    study = Study.read(name)
    assert study.name == name
    assert study.title
    study.training.build("classes")


def test_the_names_of_the_studies() -> None:
    assert {"digits", "heart", "lung", "segmentation", "table"} <= set(named_studies())


def test_unknown_studies_and_files(tmp_path: Path) -> None:
    with pytest.raises(UnseenError, match="unknown study 'digit'; did you mean 'digits'"):
        Study.read("digit")
    with pytest.raises(UnseenError, match=r"no study file .*absent\.toml"):
        Study.read(tmp_path / "absent.toml")
    (tmp_path / "broken.toml").write_text("rounds = = 3")
    with pytest.raises(UnseenError, match=r"broken\.toml is not valid TOML: .*line 1"):
        Study.read(tmp_path / "broken.toml")


# --- key=value -----------------------------------------------------------------------------

toml_values = st.one_of(
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.lists(st.integers(0, 99), max_size=4),
)


@given(value=toml_values)
def test_values_in_tomls_spelling_keep_their_type(value: Any) -> None:
    text = json.dumps(value)
    key, found = parse_override(f"training.x={text}")
    assert key == "training.x"
    assert found == value
    assert type(found) is type(value)


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1))
def test_anything_else_is_the_text_itself(text: str) -> None:
    value = parse_override(f"key={text}")[1]
    try:
        expected = tomllib.loads(f"key = {text}")["key"]
    except tomllib.TOMLDecodeError:
        expected = text.strip()
    assert value == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("participation=1", ("participation", 1)),
        ("participation=1.0", ("participation", 1.0)),
        ("model=mlp(widths=[64])", ("model", "mlp(widths=[64])")),
        ("dataset=rotated-digits", ("dataset", "rotated-digits")),
        ('title="a = b"', ("title", "a = b")),
        (" rounds = 4 ", ("rounds", 4)),
        ("training.optimiser=sgd(lr=0.1, momentum=0.9)",
         ("training.optimiser", "sgd(lr=0.1, momentum=0.9)")),
        ('methods=["fedavg", "ppdg(lam=0.2)"]', ("methods", ["fedavg", "ppdg(lam=0.2)"])),
    ],
)  # fmt: skip
def test_overrides_as_they_are_typed(text: str, expected: tuple[str, object]) -> None:
    key, value = parse_override(text)
    assert (key, value) == expected
    assert type(value) is type(expected[1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("metrics=auroc,accuracy", ["auroc", "accuracy"]),
        ("metrics=auroc", ["auroc"]),
        ('metrics=["auroc", "accuracy"]', ["auroc", "accuracy"]),
        ("targets=a, b", ["a", "b"]),
        ("targets=75", ["75"]),
        ("targets=0,75", ["0", "75"]),
        ("seeds=0,1,2", ["0", "1", "2"]),
        ("seeds=3", 3),
        ("seeds=[3, 4]", [3, 4]),
        ("methods=fedavg,ppdg(lam=0.2, base='raw')+ga", ["fedavg", "ppdg(lam=0.2, base='raw')+ga"]),
        ('methods="fedavg"', ["fedavg"]),
        ("save=final,locals", ["final", "locals"]),
        ("holdout.target=a,b", ["a", "b"]),
        ("holdout.source=others", "others"),
        ("groups=region", ["region"]),
        ("dataset=folder(path='a,b')", "folder(path='a,b')"),
    ],
)
def test_lists_may_be_written_with_commas(text: str, expected: object) -> None:
    assert parse_override(text)[1] == expected


def test_lists_with_commas_make_a_study() -> None:
    texts = ["metrics=loss,accuracy", "targets=0,75", "seeds=0,4", "methods=fedavg,ppdg(lam=0.2)"]
    study = Study.read("digits", dict(map(parse_override, texts)))
    assert study.metrics == ("loss", "accuracy") and study.targets == ("0", "75")
    assert study.seed_list == (0, 4) and study.methods == ("fedavg", "ppdg(lam=0.2)")


@pytest.mark.parametrize("text", ["rounds", "=4", " = 4", ""])
def test_what_is_no_setting(text: str) -> None:
    with pytest.raises(UnseenError, match="key=value"):
        parse_override(text)


# --- mistakes ------------------------------------------------------------------------------


def message(**settings: Any) -> str:
    with pytest.raises(UnseenError) as caught:
        Study(**settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "name", "nearest"),
    [
        ({"round": 3}, "round", "rounds"),
        ({"partcipation": 0.5}, "partcipation", "participation"),
        ({"training": {"epoch": 3}}, "training.epoch", "epochs"),
        ({"training": {"batchsize": 3}}, "training.batchsize", "batch_size"),
        ({"holdout": {"sources": ["0"], "target": ["15"]}}, "sources", "source"),
    ],
)
def test_an_unknown_setting_is_answered_with_the_nearest(
    settings: dict[str, Any], name: str, nearest: str
) -> None:
    found = message(**settings)
    assert "unknown setting" in found
    assert name in found
    assert f"did you mean '{nearest}'?" in found


def test_every_mistake_is_named_at_once() -> None:
    found = message(rounds=0, round=3, training={"epoch": 2})
    assert all(word in found for word in ("'round'", "'training.epoch'", "rounds must", "0"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rounds": 0}, ("rounds", "of at least 1", "found 0")),
        ({"rounds": 2.5}, ("rounds", "2.5")),
        ({"validation": 1.0}, ("validation", "less than 1", "1.0")),
        ({"validation": 0}, ("validation", "greater than 0", "0")),
        ({"participation": 0}, ("participation", "0")),
        ({"participation": 1.5}, ("participation", "1.5")),
        ({"participation": True}, ("participation", "True")),
        ({"participation": "all"}, ("participation", "'all'")),
        ({"seeds": 0}, ("seeds", "0")),
        ({"seeds": [-1]}, ("seeds", "-1")),
        ({"methods": []}, ("methods", "one or more")),
        ({"on_bad_reply": "ignore"}, ("on_bad_reply", "'stop' or 'drop'", "'ignore'")),
        ({"holdout": "leave-one-out"}, ("holdout", "leave-one-domain-out", "'leave-one-out'")),
        ({"threads": 0}, ("threads", "0")),
        ({"training": {"batch_size": 0}}, ("training.batch_size", "0")),
        ({"training": {"buffers": "mean"}}, ("buffers", "'mean'")),
    ],
)
def test_values_that_cannot_be(settings: dict[str, Any], words: tuple[str, ...]) -> None:
    found = message(**settings)
    for word in words:
        assert word in found


def test_a_domain_that_is_held_out_by_name_is_the_only_target(tmp_path: Path) -> None:
    """As `unseen train` has it, so that its file is a study's."""
    short = Study(holdout="15")
    assert short == Study(holdout="leave-one-domain-out", targets=("15",))
    (tmp_path / "s.toml").write_text('holdout = "15"\n')
    assert Study.read(tmp_path / "s.toml").targets == ("15",)
    (task,) = plan(short.holdout, ["0", "15", "30"], short.targets)
    assert task == Task("15", ("0", "30"), ("15",))
    with pytest.raises(UnseenError, match="did you mean '15'"):
        plan("leave-one-domain-out", ["0", "15", "30"], Study(holdout="155").targets)
    assert "Leave one of the two out" in message(holdout="15", targets=["30"])


@pytest.mark.parametrize("participation", [1, 1.0, 3, 0.5])
def test_a_share_stays_a_share_and_a_count_a_count(participation: float) -> None:
    study = Study(participation=participation)
    assert study.participation == participation
    assert type(study.participation) is type(participation)
    again = Study(**json.loads(study.model_dump_json()))
    assert type(again.participation) is type(participation)


def test_a_study_cannot_be_changed_and_can_be_pickled() -> None:
    study = Study(rounds=3, holdout={"growing": ["0", "15"], "target": ["30"]})
    assert pickle.loads(pickle.dumps(study)) == study
    with pytest.raises(ValidationError):
        study.rounds = 4  # type: ignore[misc]


# --- recipes -------------------------------------------------------------------------------


def test_a_recipe_is_built_of_the_parts_it_names() -> None:
    recipe = Recipe(
        optimiser="adam(lr=0.002)", steps=7, schedule="step(at=0.5, factor=0.2)",
        smoothing=0.1, balanced=True, server="sgd(lr=0.5, momentum=0.9)", buffers="local",
        batch_size=9, drop_last=True, keep_optimiser=True,
    )  # fmt: skip
    built = recipe.build("classes")
    assert built.optimiser == Adam(lr=0.002)
    assert (built.epochs, built.steps) == (None, 7)
    assert built.schedule == Step(at=0.5, factor=0.2)
    assert built.loss == CrossEntropy(0.1, True)
    assert built.server == Descend(SGD(lr=0.5, momentum=0.9))
    assert (built.buffers, built.batch_size) == ("local", 9)
    assert (built.drop_last, built.keep_optimiser) == (True, True)


def test_the_default_recipe() -> None:
    built = Recipe(schedule="cosine").build("numbers")
    assert (built.epochs, built.steps, built.loss) == (1, None, SquaredError())
    assert (built.server, built.schedule) == (Add(), Cosine())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimiser": "sdg(lr=1)"}, ("unknown optimiser 'sdg'", "'sgd'")),
        ({"optimiser": "sgd(l=1)"}, ("no option 'l'", "'lr'")),
        ({"optimiser": "sgd(lr=1)+adam"}, ("optimiser takes one name", "2")),
        ({"optimiser": "sgd(lr=-1)"}, ("lr", "-1")),
        ({"server": "ad"}, ("unknown server 'ad'", "'add'", "adam")),
        ({"schedule": "cos"}, ("unknown schedule 'cos'", "'cosine'")),
        ({"smoothing": 1.5}, ("smoothing", "1.5")),
    ],
)
def test_parts_that_do_not_exist(settings: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(UnseenError) as caught:
        Recipe(**settings).build("classes")
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["balanced", "oversample", "smoothing"])
def test_what_is_for_classes_is_refused_for_numbers(name: str) -> None:
    with pytest.raises(UnseenError, match=f"{name}.*are for classes"):
        Recipe(**{name: 1.0 if name == "smoothing" else True}).build("numbers")


def test_groups_of_domains_are_left_out_in_turn_and_a_domain_trains_alone() -> None:
    names = ["d", "a", "c", "b", "e"]
    study = Study(holdout={"groups": 2})
    tasks = plan(study.holdout, names)
    assert tasks == (
        Task("a", ("b", "d"), ("a", "c", "e")),
        Task("b", ("a", "c", "e"), ("b", "d")),
    )
    assert len(plan(Study(holdout={"groups": 9}).holdout, names)) == 5
    alone = plan(Study(holdout={"alone": True}).holdout, names)
    assert alone[0] == Task("d", ("d",), ("a", "c", "b", "e"))
    assert [task.name for task in alone] == names
    for wrong in ({"groups": 1}, {"alone": False}):
        with pytest.raises(UnseenError):
            Study(holdout=wrong)
