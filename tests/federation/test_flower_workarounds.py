"""What is replaced in Flower is tried by its effect, and a release that goes around it ends us."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from flwr.superlink import extensions
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.supernode import start_client_internal as supernode

from unseen.sites import flower_workarounds
from unseen.sites.superlink import Guard
from unseen.sites.supernode import same_app

OWN = partial(same_app, {("unseen.py", "0")})


@pytest.fixture(autouse=True)
def _untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Flower as it is, again, after each test."""
    superlink = import_module("flwr.superlink.cli.flower_superlink")
    places = [
        (supernode, "_verify_fab"), (supernode, "_pull_and_store_message"),
        (extensions, "get_middleware"), (fleet_handlers, "push_messages"), (superlink, "uvicorn"),
    ]  # fmt: skip
    for module, name in places:
        monkeypatch.setattr(module, name, getattr(module, name))
    yield


def served() -> Any:
    """The SuperLink's app, as Flower makes it."""
    from flwr.superlink.main import create_app

    return create_app()


def test_a_foreign_app_is_refused_on_the_way_that_messages_take() -> None:
    assert not flower_workarounds.refuses_foreign_apps()
    flower_workarounds.compare_apps(OWN)
    assert flower_workarounds.refuses_foreign_apps()


def test_a_supernode_that_does_not_ask_about_apps_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All names are there, and what they name is not asked."""
    pull = supernode._pull_and_store_message

    def inlined(*arguments: Any, trusted_entities: Any, **named: Any) -> Any:
        return pull(*arguments, trusted_entities=None, **named)

    monkeypatch.setattr(supernode, "_pull_and_store_message", inlined)
    with pytest.raises(SystemExit, match="goes around the check of apps"):
        flower_workarounds.compare_apps(OWN)


def test_a_supernode_that_takes_messages_elsewhere_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supernode, "start_client_internal", lambda: None)
    with pytest.raises(SystemExit, match="goes around the check of apps"):
        flower_workarounds.compare_apps(OWN)


def test_other_machines_are_refused_by_what_is_served() -> None:
    assert asyncio.run(flower_workarounds.unguarded(served())).startswith("/")
    flower_workarounds.put_before_superlink(Guard)
    assert asyncio.run(flower_workarounds.unguarded(served())) == ""


def test_foreign_names_are_refused_by_what_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not flower_workarounds.refuses_foreign_names(served())
    flower_workarounds.check_senders()
    assert flower_workarounds.refuses_foreign_names(served())
    # A router that imports the function has the one before.
    before = fleet_handlers.push_messages
    flower_workarounds.check_senders()
    app = served()
    routes = flower_workarounds.routes_of(app)
    (route,) = [r for r in routes if getattr(r, "path", "") == flower_workarounds.PUSH]
    monkeypatch.setattr(route, "endpoint", lambda request, state: None)
    assert not flower_workarounds.refuses_foreign_names(app) and callable(before)


def test_nothing_is_served_without_the_guard() -> None:
    runs: list[Any] = []
    flower_workarounds.serve_by(lambda app, **options: runs.append(app))
    module: Any = import_module("flwr.superlink.cli.flower_superlink")
    with pytest.raises(SystemExit, match="goes around the guard"):
        module.uvicorn.run(app=served(), host="127.0.0.1")
    flower_workarounds.put_before_superlink(Guard)
    with pytest.raises(SystemExit, match="goes around the check of senders"):
        module.uvicorn.run(app=served(), host="127.0.0.1")
    flower_workarounds.check_senders()
    module.uvicorn.run(app=served(), host="127.0.0.1")
    assert len(runs) == 1
