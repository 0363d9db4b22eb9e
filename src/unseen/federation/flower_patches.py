"""All that is replaced inside Flower 1.41, in places that it does not promise to keep.

Note:
    A replacement that protects ends the process where its place is gone, so that nothing starts
    without it; `unseen federation` therefore asks for flwr>=1.41,<1.42.
"""

import sys
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any

GONE = "this release of Flower has no place for the {what}; install flwr 1.41."
#: Milliseconds that a request waits for the database.
BUSY = 60_000
#: Seconds that a message's process has to start, beyond Flower's own 30.
LONGER = 150


def put_before_superlink(guard: Any) -> None:
    """Let an ASGI middleware see every request first, or end the process."""
    from flwr.superlink import extensions
    from starlette.middleware import Middleware

    if not callable(getattr(extensions, "get_middleware", None)):
        sys.exit(GONE.format(what="guard"))
    before = extensions.get_middleware
    extensions.get_middleware = lambda: (Middleware(guard), *before())


def serve_by(run: Callable[..., None]) -> None:
    """Let the SuperLink be served by `run` instead of `uvicorn.run`, or end the process."""
    # The package gives the function the name of its module.
    module = import_module("flwr.superlink.cli.flower_superlink")
    if not callable(getattr(getattr(module, "uvicorn", None), "run", None)):
        sys.exit(GONE.format(what="bounds of the port"))
    vars(module)["uvicorn"] = SimpleNamespace(run=run)


def wait_for_database() -> None:
    """Let requests wait for each other longer than SQLite's own 5 s, after which they fail.

    Note:
        One that fails may be the only answer of a site, or end the process that starts runs.
    """
    from flwr.supercore import sql_mixin

    before = getattr(sql_mixin, "SQLITE_PRAGMAS", ())
    vars(sql_mixin)["SQLITE_PRAGMAS"] = (*before, ("busy_timeout", str(BUSY)))


def check_senders() -> None:
    """Let a site answer in its own name alone, or end the process.

    Note:
        Flower checks that a request's node is the one whose key signed it, and then believes what
        the message in it says of its sender.
    """
    from flwr.superlink.servicer.fleet import fleet_handlers

    if not callable(push := vars(fleet_handlers).get("push_messages")):
        sys.exit(GONE.format(what="check of senders"))
    vars(fleet_handlers)["push_messages"] = with_sender(push)


def with_sender(push: Callable[..., Any]) -> Callable[..., Any]:
    """Return Flower's own function, which takes no message that says it is of another node."""

    def push_own(request: Any, *rest: Any, **named: Any) -> Any:
        from flwr.supercore.error import ApiErrorCode, FlowerError

        own = request.node.node_id
        senders = {message.metadata.src_node_id for message in request.messages_list}
        if senders - {own}:
            what = f"SuperNode {own} sent a message in the name of {sorted(senders - {own})}"
            raise FlowerError(ApiErrorCode.FLEET_RUN_STATUS_NOT_ALLOWED, what)
        return push(request, *rest, **named)

    return push_own


def compare_apps(same: Callable[[bytes], bool]) -> None:
    """Let a SuperNode run an app only if `same` says so of its bytes, or end the process."""
    from flwr.supernode import start_client_internal as flower

    names = ("_verify_fab", "_pull_and_store_message")
    if not all(callable(getattr(flower, name, None)) for name in names):
        sys.exit(GONE.format(what="check of apps"))
    pull = with_check(flower._pull_and_store_message)
    vars(flower).update(_verify_fab=lambda fab, _: same(fab.content), _pull_and_store_message=pull)


def with_check(pull: Callable[..., Any]) -> Callable[..., Any]:
    """Return Flower's own function with its check of apps switched on."""

    def pull_checked(*arguments: Any, get_fab: Callable[[str, int], Any], **named: Any) -> Any:
        def licensed(digest: str, run: int) -> Any:
            fab = get_fab(digest, run)
            fab.verifications["valid_license"] = "compared"
            return fab

        named["trusted_entities"] = {"own": ""}
        return pull(*arguments, get_fab=licensed, **named)

    return pull_checked


def wait_for_start() -> None:
    """Give a message's process longer to start; after 30 s Flower would start another."""
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

    state: Any = InMemoryNodeState
    state.claim_task = patient(state.claim_task)


def patient(claim: Callable[[Any, int], str | None]) -> Callable[[Any, int], str | None]:
    """Return Flower's own function, by which a process is started, with more time to start."""

    def claim_longer(state: Any, task: int) -> str | None:
        token = claim(state, task)
        if token is not None:
            state.task_token_store[task].active_until += timedelta(seconds=LONGER)
        return token

    return claim_longer


def bound_answers(counted: Callable[..., Any]) -> None:
    """Let the server's app fetch no more of an answer than it has room for, or end the process."""
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
    from flwr.superlink.grid import http_grid

    name = "make_pull_object_fn_protobuf"
    if not callable(make := vars(http_grid).get(name)):
        sys.exit(GONE.format(what="bound of answers"))
    vars(http_grid)[name] = counted(make, ObjectPullError)
