"""Hold-out plans: who trains, who validates, who is never seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.cli.console import names
from unseen.errors import UnseenError
from unseen.studies.execution import Study
from unseen.studies.settings.holdout import Fixed, Growing, Task, plan
from unseen.studies.settings.named import split_list

DOMAINS = ("0", "15", "30", "45")


@given(st.lists(st.text(min_size=1, max_size=4), min_size=2, max_size=8, unique=True))
def test_leave_one_domain_out_partitions_the_domains(domains: list[str]) -> None:
    tasks = plan("leave-one-domain-out", domains)
    assert [task.name for task in tasks] == domains
    for task, target in zip(tasks, domains, strict=True):
        assert task.targets == (target,)
        assert task.validation == ()
        assert sorted((*task.sources, target)) == sorted(domains)
        assert list(task.sources) == [name for name in domains if name != target]


def test_only_the_named_targets_in_the_plans_order() -> None:
    tasks = plan("leave-one-domain-out", DOMAINS, only=["45", "0"])
    assert [task.name for task in tasks] == ["0", "45"]
    assert tasks[0].sources == ("15", "30", "45")  # what is left out still trains


def test_sites_that_are_numbered_may_be_written_as_numbers() -> None:
    assert Study(dataset="rotated-digits", targets=[15]).targets == ("15",)
    assert Study.read("digits", {"holdout": 15}).targets == ("15",)
    table = {"source": [0, 30], "target": [15]}
    (task,) = plan(Study(dataset="rotated-digits", holdout=table).holdout, ["0", "15", "30"])
    assert task.sources == ("0", "30") and task.targets == ("15",)


def test_fixed_lists_are_one_task_and_leave_the_others_out() -> None:
    fixed = Fixed(source=("45", "0"), validation=("15",), target=("30",), name="turned")
    assert plan(fixed, DOMAINS) == (Task("turned", ("45", "0"), ("30",), ("15",)),)
    two = Fixed(source=("0",), target=("30", "45"))
    assert plan(two, DOMAINS) == (Task("target", ("0",), ("30", "45")),)


def test_others_are_all_domains_that_have_no_other_role() -> None:
    fixed = Fixed(source="others", validation=("15",), target=("0",))
    assert plan(fixed, DOMAINS[::-1]) == (Task("target", ("30", "45"), ("0",), ("15",)),)
    with pytest.raises(UnseenError, match="at least one source"):
        plan(Fixed(source="others", target=DOMAINS), DOMAINS)
    study = Study(holdout={"source": "others", "target": ["0"]})
    assert Study(**study.model_dump(mode="json")) == study
    with pytest.raises(UnseenError, match="holdout"):
        Study(holdout={"source": "other", "target": ["0"]})


def test_others_are_the_sites_that_train() -> None:
    """Over real sites: whoever is there, without those that only evaluate."""
    pytest.importorskip("flwr")
    from unseen.sites.flower import site_plan

    study = Study(holdout={"source": "others", "validation": ["v"], "target": ["t"]})
    roles = {"a": "train", "b": "train", "v": "evaluate", "w": "evaluate"}
    assert site_plan.named(study) == ()
    assert site_plan.tasks_of(study, roles) == (Task("target", ("a", "b"), (), ("v",)),)


def test_growing_sources_join_in_the_given_order() -> None:
    growing = Growing(growing=("30", "0", "45"), target=("15",))
    assert plan(growing, DOMAINS) == (
        Task("1", ("30",), ("15",)),
        Task("2", ("30", "0"), ("15",)),
        Task("3", ("30", "0", "45"), ("15",)),
    )
    later = Growing(growing=("30", "0", "45"), target=("15",), first=3)
    assert [task.name for task in plan(later, DOMAINS)] == ["3"]
    assert [task.name for task in plan(growing, DOMAINS, only=["2"])] == ["2"]


@pytest.mark.parametrize("domains", [["hospital"], []])
def test_one_domain_leaves_nothing_unseen(domains: list[str]) -> None:
    with pytest.raises(UnseenError, match="at least two domains") as caught:
        plan("leave-one-domain-out", domains)
    assert str(domains) in str(caught.value)


def test_an_unknown_target_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnseenError, match="unknown target '46'; did you mean '45'"):
        plan("leave-one-domain-out", DOMAINS, only=["46"])


@pytest.mark.parametrize("place", ["source", "validation", "target"])
def test_an_unknown_domain_is_answered_with_the_nearest(place: str) -> None:
    lists = {"source": ("0",), "validation": ("15",), "target": ("30",)} | {place: ("445",)}
    with pytest.raises(UnseenError, match="unknown domain '445'; did you mean '45'"):
        plan(Fixed(**lists), DOMAINS)


@pytest.mark.parametrize(
    "lists",
    [
        {"source": ("0", "15"), "target": ("15",)},
        {"source": ("0", "15"), "target": ("30",), "validation": ("15",)},
        {"source": ("0",), "target": ("15",), "validation": ("15",)},
        {"source": ("0", "15", "15"), "target": ("30",)},
    ],
)
def test_a_domain_has_one_part(lists: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(UnseenError, match="found 15 twice"):
        plan(Fixed(**lists), DOMAINS)


def test_the_target_must_not_grow_into_the_sources() -> None:
    with pytest.raises(UnseenError, match="found 45 twice"):
        plan(Growing(growing=("0", "45"), target=("45",)), DOMAINS)


@pytest.mark.parametrize(
    "lists", [{"source": (), "target": ("0",)}, {"source": ("0",), "target": ()}]
)
def test_a_task_needs_a_source_and_a_target(lists: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(UnseenError, match="at least one source and one target"):
        plan(Fixed(**lists), DOMAINS)


@pytest.mark.parametrize(
    "growing",
    [
        {"growing": ("0", "15"), "target": ("30",), "first": 3},
        {"growing": (), "target": ("30",)},
    ],
)
def test_a_plan_of_no_task_is_refused(growing: dict[str, object]) -> None:
    with pytest.raises(UnseenError):
        plan(Growing(**growing), DOMAINS)  # type: ignore[arg-type]


def test_no_target_at_all_is_refused() -> None:
    with pytest.raises(UnseenError):
        plan("leave-one-domain-out", DOMAINS, only=[])


def test_a_target_with_a_comma_is_named_in_quotes() -> None:
    domains = ("Hospital, North", "O'Hara", "west")
    for text in ("'Hospital, North',west", 'west , "Hospital, North"'):
        tasks = plan("leave-one-domain-out", domains, only=split_list(text))
        assert [task.name for task in tasks] == ["Hospital, North", "west"]
    assert names("O'Hara, 'Hospital, North'") == ("O'Hara", "Hospital, North")
    assert split_list("targets(x=['a,b']),O'Hara,") == ["targets(x=['a,b'])", "O'Hara"]
    with pytest.raises(UnseenError, match="in quotes: --targets \"'Hospital, North'\""):
        plan("leave-one-domain-out", domains, only=split_list("Hospital, North"))
