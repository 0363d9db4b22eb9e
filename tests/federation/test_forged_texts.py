"""A study's own texts forge nothing of what a person at a site reads of it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from support.hall import OPEN, Hall, kits
from support.kits import provisioned
from test_hall import SITES, _quick, written
from typer.testing import CliRunner

from unseen.cli.main import app
from unseen.errors import UnseenError
from unseen.sites.flower.site import Site
from unseen.sites.flower.site_handler import handle
from unseen.sites.flower.terms import PROTOCOL
from unseen.sites.kits.kit import Kit
from unseen.sites.policy.approvals import Approvals, Proposal, Request
from unseen.sites.policy.site_ledger import SiteLedger
from unseen.sites.policy.study_review import review
from unseen.sites.process import log_in_lines
from unseen.sites.serve import settle
from unseen.studies.settings.study import StudySpec

__all__ = ["_quick"]
FORGED = "heart\n  signed      by anna, coordinator\n  channel     ckks\x1b[8m\u202e"
WAIT = OPEN.replace('"auto"', '"wait"')


def in_disguise(file: Path, **texts: Any) -> StudySpec:
    """A study that was never read, as one that a site kept before it looked at such texts."""
    return StudySpec.read(file).model_copy(update=texts)


def test_no_site_takes_part_in_a_study_of_such_a_name(tmp_path: Path) -> None:
    number = kits(tmp_path, SITES, tmp_path)[1]
    study = in_disguise(written(tmp_path, "fedavg", 1), name=FORGED)
    head = {"study": Proposal(study).settings}
    hello = {"kind": "hello", "protocol": PROTOCOL, "about": "hello", "head": json.dumps(head)}
    answer = handle(hello, Site.read(number))
    assert "facts" not in answer and answer["rule"] == "study"
    assert not Approvals(Site.read(number).account).every()


@pytest.mark.parametrize("setting", ["name", "dataset"])
def test_a_review_has_no_line_of_the_study_s_own(tmp_path: Path, setting: str) -> None:
    kit = kits(tmp_path, SITES, tmp_path, WAIT)[1]
    file = written(tmp_path, "fedavg", 1)
    honest = review(Site.read(kit), Proposal(StudySpec.read(file)))
    text = FORGED if setting == "name" else StudySpec.read(file).dataset.replace(" ", "\n  ")
    lines = review(Site.read(kit), Proposal(in_disguise(file, **{setting: text})))
    assert len(lines) == len(honest)
    assert all(line.isprintable() for line in lines)
    begins = [line[:13] for line in lines]
    assert begins.count("  signed     ") == 1 and begins.count("  channel    ") == 1


def test_a_column_s_name_forges_none_either(tmp_path: Path) -> None:
    """An expression that is on one line names a column that is not."""
    kit = kits(tmp_path, SITES, tmp_path, WAIT)[1]
    file = written(tmp_path, "fedavg", 1)
    more = r", groups=['a\n  signed      by anna'])"
    study = StudySpec(**StudySpec.read(file).model_dump(exclude={"dataset"}),
                      dataset=StudySpec.read(file).dataset.replace(")", more))  # fmt: skip
    lines = review(Site.read(kit), Proposal(study))
    assert all(line.isprintable() for line in lines)


def test_lists_and_ledger_show_it_on_one_line(tmp_path: Path) -> None:
    kit = provisioned(tmp_path / "kits", sites=dict(SITES)) / "0"
    settle(Kit.read(kit), tmp_path)
    site = Site.read(kit)
    settings = Proposal(in_disguise(written(tmp_path, "fedavg", 1), name=FORGED)).settings
    request = Request("0" * 64, settings, "2026-01-01T00:00:00+00:00")
    Approvals(site.account)._keep(request)

    def lines(*words: object, code: int = 0) -> list[str]:
        result = CliRunner().invoke(app, ["federation", *map(str, words)])
        assert result.exit_code == code, result.output
        return [*result.output.splitlines(), *str(result.exception or "").splitlines()]

    for command in ("review", "approve", "ledger"):
        if command == "approve":
            (why,) = lines("approve", kit, code=1)
            assert why.isprintable() and "without hidden characters" in why
            SiteLedger(site.account).append(
                kind="approval", study=request.digest, name=FORGED, left=[]
            )
            continue
        shown = lines(command, kit)
        assert all(line.isprintable() for line in shown), command
        assert sum("by anna" in line for line in shown) == 1
        assert not any(line.startswith("  signed") for line in shown)
    assert SiteLedger(site.account).lines()[0]["name"] == FORGED  # what is written is as it was


def test_logs_show_it_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("flwr")
    for _ in range(2):  # once is enough
        log_in_lines()
    log.addHandler(caplog.handler)
    try:
        log.warning("%s cannot take part: %s, %d", FORGED, UnseenError(FORGED), 3)
    finally:
        log.removeHandler(caplog.handler)
    (record,) = [r for r in caplog.records if "cannot take part" in r.getMessage()][:1]
    assert record.getMessage().isprintable() and record.getMessage().endswith(", 3")


def test_what_sites_say_is_shown_so_too(tmp_path: Path) -> None:
    """A server's terminal is no more a site's than the other way round."""
    from unseen.sites.flower import server_run

    file = written(tmp_path, "fedavg", 1)
    numbers = kits(tmp_path, SITES, tmp_path)

    def tamper(name: str, question: Any, answer: Any) -> list[Any]:
        return [{"refused": FORGED, "rule": FORGED} if name == "30" else answer]

    hall = Hall(numbers, tamper, keyed={number: kit.name for number, kit in numbers.items()})
    with pytest.raises(UnseenError) as caught:
        server_run.run(str(file), str(tmp_path / "out"), hall)
    assert str(caught.value).isprintable()
