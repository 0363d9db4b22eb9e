"""The choice among recipes over real sites is that of one process, approved once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import OPEN, Hall, contents, kits
from test_hall import SITES, _quick, written

from unseen.errors import UnseenError
from unseen.sites.asked_studies import choosing_study, model_study
from unseen.sites.control import standing
from unseen.sites.flower import choice_run
from unseen.sites.flower.site import Site
from unseen.sites.policy import ledger_check
from unseen.sites.policy.approvals import Approvals, Proposal
from unseen.sites.policy.site_ledger import SiteLedger
from unseen.studies.choice import Candidates, choose, play
from unseen.studies.choice.trials import CONSTANT
from unseen.studies.execution.spaces import with_values
from unseen.studies.settings.named import toml
from unseen.studies.settings.study import StudySpec

__all__ = ["_quick"]  # the fixture of test_hall
RECIPES = (
    "fedavg+tail", "glm", "portfolio(members=['glm', 'fedavg'], ensemble=1, groups=2, rates=[1.0])",
)  # fmt: skip
RATES = [0.5, 1.0]
TRAIN = dict.fromkeys(SITES, "train")


def agreed(folder: Path, recipes: tuple[str, ...], rates: list[float] = RATES) -> Path:
    study = choosing_study(written(folder, "fedavg"), recipes, 4, rates, 1)
    file = folder / "choosing.toml"
    file.write_text(toml(study.model_dump(mode="json", exclude_defaults=True, exclude_none=True)))
    assert Proposal(StudySpec.read(file)).digest == Proposal(study).digest
    return file


def options(rates: list[float] = RATES) -> str:
    return json.dumps({"groups": 4, "rates": rates})


@pytest.mark.parametrize(
    ("recipes", "rates"),
    [
        (RECIPES[:2], RATES),
        (RECIPES[2:], RATES),
        pytest.param(RECIPES, [0.2], marks=pytest.mark.slow),
    ],
)
def test_sites_choose_as_one_process_does(
    tmp_path: Path, recipes: tuple[str, ...], rates: list[float]
) -> None:
    file = agreed(tmp_path, recipes, rates)
    base = with_values(StudySpec.read(file), {})
    one = choose(
        play(
            Candidates(base, base.methods, 4, rates, pool=False, alone=False),
            tmp_path / "one", data_dir=tmp_path,
        )
    )  # fmt: skip
    hall = Hall(kits(tmp_path, TRAIN, tmp_path))
    choice_run.run(str(file), str(tmp_path / "out"), hall, options(rates), list(SITES))
    there = json.loads((tmp_path / "out" / "choice.json").read_text())
    # The server of real sites is not told how frequent labels are, and has no constant answer.
    assert there["figures"] == {n: own for n, own in one.figures.items() if n != CONSTANT}
    assert there["constant"] is None
    assert (there["recipe"], there["best"], there["tied"]) == (one.recipe, one.best, [*one.tied])
    expected, found = contents(tmp_path / "one"), contents(tmp_path / "out" / "records")
    numbers = [name for name in expected if name.endswith("target.jsonl")]
    assert numbers and all(expected[name] == found[name] for name in numbers)
    # What `federation train` takes is a study of one model.
    study = model_study(tmp_path / "out" / "recipe.toml")
    assert study.methods == (one.recipe,)
    assert study.federation.patience == 0


def test_sites_approve_a_choice_once(tmp_path: Path) -> None:
    file = agreed(tmp_path, RECIPES[:1])
    folders = kits(
        tmp_path, TRAIN, tmp_path, OPEN.replace('approval = "auto"', 'approval = "wait"')
    )
    digest = Proposal(StudySpec.read(file)).digest
    with pytest.raises(UnseenError, match="waits for the approval"):
        choice_run.run(str(file), str(tmp_path / "out"), Hall(folders), options(), list(SITES))
    for kit in folders.values():
        approvals = Approvals(Site.read(kit).account)
        assert [request.digest for request in approvals.every()] == [digest]
        approvals.approve(approvals.find(digest))
    choice_run.run(str(file), str(tmp_path / "out"), Hall(folders), options(), list(SITES))
    assert (tmp_path / "out" / "choice.md").is_file()
    lines = SiteLedger(Site.read(folders[1]).account).lines()
    assert ledger_check.against(lines, "0", tmp_path / "out") == ([], [])
    assert standing(tmp_path / "out")["finished"]


def test_a_study_with_a_search_of_its_own_is_not_a_choice(tmp_path: Path) -> None:
    file = written(tmp_path, "fedavg")
    file.write_text(file.read_text() + '[tune]\nspace = {"training.batch_size" = "one(8, 16)"}\n')
    with pytest.raises(UnseenError, match="a choice searches by itself"):
        choosing_study(file, RECIPES, 4, RATES, 1)
