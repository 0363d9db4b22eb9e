"""Values that few rows of a site have stay there, if its rules say so."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import OPEN, Hall, kits
from test_hall import SITES, _quick, written

from unseen.data import DataSet, Domain
from unseen.data.tables.encoding import Schema
from unseen.sites.flower import server_run
from unseen.sites.flower.site import Site, load
from unseen.sites.policy.approvals import Proposal
from unseen.sites.policy.few_rows import rare, without_rare
from unseen.sites.policy.study_review import review
from unseen.studies.settings.study import StudySpec

__all__ = ["_quick"]  # the fixture of test_hall
EXAMPLES = OPEN.replace("examples = 1", "examples = 2")
SCHEMA = Schema(("age", "cd4", "ward", "smokes"), {"ward": ("a", "b", "psych")}, ("smokes",))


def site() -> DataSet:
    """Six rows: one has a value of cd4, one is of ward psych, one smokes."""
    x = torch.tensor(
        [
            [50.0, nan, 0, 0],
            [51.0, nan, 0, 0],
            [52.0, 431.17, 2, 0],
            [53.0, nan, 1, 1],
            [54.0, nan, 1, 0],
            [nan, nan, 1, 0],
        ],
        dtype=torch.float64,
    )
    domain = Domain("va", x, torch.tensor([0, 1, 0, 1, 0, 1]))
    return DataSet("table", (domain,), ("no", "yes"), "", "", "", SCHEMA, {})


def test_values_of_few_rows_count_as_missing_and_have_no_name() -> None:
    data = without_rare(site(), 2)
    (domain,) = data.domains
    assert data.schema is not None and data.schema.categories == {"ward": ("a", "b")}
    assert domain.x[:, 1].isnan().all()  # cd4: known in one row
    assert domain.x[:, 2].nan_to_num(-1).tolist() == [0, 0, -1, 1, 1, 1]
    assert domain.x[:, 3].nan_to_num(-1).tolist() == [0, 0, 0, -1, 0, 0]
    assert torch.equal(domain.x[:5, 0], site().domains[0].x[:5, 0])
    assert without_rare(data, 2).domains[0].x.nan_to_num(-1).equal(domain.x.nan_to_num(-1))


def test_they_are_named_for_who_approves() -> None:
    assert rare(site(), 2) == ["cd4 (known in 1)", "ward (psych in 1)", "smokes (1 in 1)"]
    assert rare(site(), 1) == [] and rare(without_rare(site(), 2), 2) == []


def test_no_sum_of_a_single_row_leaves_a_site_with_the_rule(tmp_path: Path) -> None:
    """A column that one row alone has, of which Σx would be this row's value."""
    study = written(tmp_path, "glm")
    lines = (tmp_path / "visits.csv").read_text().splitlines()
    lines = [f"{lines[0]},cd4", *(f"{line}," for line in lines[1:])]
    row = next(i for i, line in enumerate(lines) if line.startswith("0,"))
    lines[row] += "431.17"
    other = next(i for i, line in enumerate(lines) if line.startswith("15,"))
    lines[other : other + 20] = [f"{line}{400 + i}" for i, line in enumerate(lines[other:][:20])]
    (tmp_path / "visits.csv").write_text("\n".join(lines) + "\n")
    values = {}
    rule = "rows_per_value = 2\n"
    for policy in (EXAMPLES, EXAMPLES + rule):
        places = kits(tmp_path / f"{len(values)}", SITES, tmp_path, policy)
        own = Site.read(next(kit for kit in places.values() if kit.name == "0"))
        spec = StudySpec.read(study)
        named = "cd4 (known in 1)" in "".join(review(own, Proposal(spec)))
        assert named == (rule not in policy)
        answers: list[tuple[str, dict[str, Any]]] = []

        def kept(site, question, answer, answers=answers):
            answers.append((site, dict(answer)))
            return [answer]

        hall = Hall(places, tamper=kept)
        server_run.run(str(study), str(tmp_path / f"out-{len(values)}"), hall, list(SITES))
        sums = [a["row/statistics"] for n, a in answers if n == "0" and "row/statistics" in a]
        values[policy] = any(bool((abs(s - 431.17) < 1e-3).any()) for s in sums)
        assert sums and load(own, spec).names == ("0",)
    assert list(values.values()) == [True, False]
