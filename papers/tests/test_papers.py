"""The studies of the papers: every value says where it is from; their published rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from paper_sketches import SKETCHES

from unseen.data import datasets, load
from unseen.data.networks import MODELS
from unseen.errors import UnseenError
from unseen.expression import parse, resolve
from unseen.methods.compose import method
from unseen.studies.execution import Study
from unseen.studies.results.records import Job
from unseen.studies.results.selection import rule
from unseen.studies.results.study_results import Results
from unseen.studies.settings.holdout import plan
from unseen.studies.settings.named import named_studies
from unseen_papers.data.poverty import countries
from unseen_papers.published import table

PAPERS = [name for name in named_studies() if re.match("(ppdg|csac|fedilc|ga)/", name)]
#: `# paper`, `# code`, `# paper: detail; ours: reason`, or `# ours: reason`, never `# ours` alone.
MARK = re.compile(r"#\s+(?:(?:paper|code)\b(?!.*\bours\b(?!: \S))|ours: \S)")
UNMARKED = ("base", "title", "published")


def unmarked(text: str) -> list[str]:
    """The lines of a study file that set a value and do not say where it is from."""
    found, methods = [], False
    for line in map(str.strip, text.splitlines()):
        key = re.match(r"([A-Za-z_]+) = ", line)
        if line == "methods = [":
            methods = True
        elif line == "]":
            methods = False
        elif ((key and key[1] not in UNMARKED) or (methods and line.startswith('"'))) and (
            not MARK.search(line)
        ):
            found.append(line)
    return found


@pytest.mark.parametrize("name", PAPERS)
def test_every_value_says_where_it_is_from(name: str) -> None:
    assert unmarked(named_studies()[name]) == []


def test_an_unmarked_value_is_found() -> None:
    text = 'title = "T"\nrounds = 3\nseeds = 3  # ours\nmetric = "loss"  # paper\nmethods = [\n'
    text += '  "fedavg",\n  "ppdg(lam=0.1)",  # code\n]\n[training]\n'
    text += "epochs = 1  # ours: unsaid\nbatch_size = 2  # paper; ours\nserver = 'add'  # papers\n"
    assert unmarked(text) == [
        "rounds = 3",
        "seeds = 3  # ours",
        '"fedavg",',
        "batch_size = 2  # paper; ours",
        "server = 'add'  # papers",
    ]


@pytest.mark.parametrize("name", PAPERS)
def test_methods_compose_and_names_resolve(name: str) -> None:
    study = Study.read(name)
    training = study.training.build("classes")
    names = [method(text, training).name for text in study.methods]
    assert len(set(names)) == len(names)
    assert study.reference is None or study.reference in names
    rule(study.selection)
    (data,) = parse(study.dataset)
    if data.name in datasets() and study.model is not None:
        (model,) = parse(study.model)
        assert model.name in MODELS, f"{data.name} can be loaded, {model.name} is unknown"


@pytest.mark.parametrize("name", PAPERS)
def test_published_columns_are_tasks(name: str) -> None:
    """No two data sets' columns, and as many tasks as the plan has where it is a fixed one."""
    study = Study.read(name)
    names = (study.published,) if isinstance(study.published, str) else study.published
    for part in names:
        for metric, rows in table(str(part)).by_metric().items():
            for row in rows.values():
                free = metric == ENVIRONMENTS or study.holdout == "leave-one-domain-out"
                assert free or set(row) - {"average"} <= {"target"}


#: The metric whose columns are environments of the sources.
ENVIRONMENTS = "source accuracy@environment"
UNLIKE = ("domainnet10", "eicu", "color-mnist", "rotated-mnist")


def stand_in(expression: str, folder: Path) -> tuple[str, ...]:
    """The domains of a synthetic stand-in of a data set; none where there is nothing to tell.

    FedBN's lists and eICU's 58 hospitals are in no stand-in; MNIST's is as large as MNIST.
    """
    (call,) = parse(expression)
    if call.name not in SKETCHES or call.name in UNLIKE:
        return ()
    SKETCHES[call.name](folder)
    small = {} if call.name == "rotated-cifar10" else {"size": 16}
    return load(call.name, folder, **{**call.arguments, **small}).names


@pytest.mark.parametrize("expression", sorted({Study.read(name).dataset for name in PAPERS}))
def test_domains_are_those_of_the_data_set(expression: str, tmp_path: Path) -> None:
    """Plans, and the columns of published tables, name domains as the loader does."""
    domains = stand_in(expression, tmp_path)
    for name in PAPERS:
        study = Study.read(name)
        if study.dataset != expression or not domains:
            continue
        tasks = plan(study.holdout, domains, study.targets)
        names = (study.published,) if isinstance(study.published, str) else study.published
        for part in names:
            for metric, rows in table(str(part)).by_metric().items():
                for row in rows.values():
                    if metric == ENVIRONMENTS:
                        assert {column.partition("/")[0] for column in row} == set(tasks[0].sources)
                    else:
                        assert set(row) - {"average"} <= {task.name for task in tasks}


def shown(study: Study, metric: str) -> dict[str, dict[str, str]]:
    results = Results(study, Path(), (), (), (metric,), "", "", {})
    return results.published(metric)


def test_a_reference_shows_what_the_paper_printed() -> None:
    rows = shown(Study.read("csac/table1"), "accuracy")
    assert list(rows) == ["DeepAll", "FedAvg", "FedDG", "CSAC"]
    assert next(iter(rows["FedAvg"].items())) == ("M0", "82.60 ± 0.44")
    assert rows["FedAvg"]["average"] == "92.65 ± 0.08"
    study = Study.read("fedilc/color-mnist")
    assert shown(study, "accuracy")["FedCurv"] == {"target": "78.0 ± 0.4"}
    assert shown(study, "loss")["Fishr+Inter-Geo"] == {"target": "0.542 ± 0.006"}
    assert shown(study, "auroc")["Geometric"] == {"target": "0.781 ± 0.003"}
    assert shown(study, "auprc")["Fishr+Intra-Geo"] == {"target": "0.836 ± 0.001"}
    assert shown(study, "seconds") == {}


def test_figures_of_ones_own_are_a_table_in_the_file() -> None:
    study = Study(published={"loss": {"A": {"target": ("0.5", "0.1"), "average": "0.50"}}})
    assert shown(study, "loss") == {"A": {"target": "0.5 ± 0.1", "average": "0.50"}}
    assert shown(Study(), "loss") == {}


def test_a_reference_to_nothing_is_refused_when_the_study_is_read() -> None:
    with pytest.raises(UnseenError, match="published.*'csac/table9'; did you mean"):
        Study(published="csac/table9")
    with pytest.raises(UnseenError, match="Name one part of it"):
        Study(published=["csac/table4"])


def test_reading_needs_neither_data_nor_model() -> None:
    study = Study(dataset="nowhere", model="nothing")
    assert (study.dataset, study.model) == ("nowhere", "nothing")
    with pytest.raises(UnseenError, match="unknown data set 'nowhere'"):
        resolve("data set", parse(study.dataset)[0], {})


def test_the_folder_of_a_job_holds_any_method_of_the_papers() -> None:
    """Options in brackets, quotes and spaces become names of folders, each its own."""
    for name in PAPERS:
        study = Study.read(name)
        folders = {Job(m, "t", 0).folder(Path()) for m in study.methods}
        assert len(folders) == len(study.methods)
        assert all(len(part) < 256 for folder in folders for part in folder.parts)


@pytest.mark.parametrize(("fold", "trains"), [("A", 13), ("B", 14)])
def test_the_clients_of_povertymap_follow_its_fold(fold: str, trains: int) -> None:
    """26 clients in fold A, as the paper has; WILDS' countries of each fold are 23."""
    own = [f"{c}-{area}" for c in countries(fold)["train"] for area in ("rural", "urban")]
    (task,) = plan(Study.read("ppdg/table2").holdout, ["ood-test", *own[::-1], "ood-validation"])
    assert list(task.sources) == sorted(own) and len(own) == 2 * trains
    assert (task.validation, task.targets) == (("ood-validation",), ("ood-test",))
