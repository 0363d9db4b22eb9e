"""All that is replaced inside Flower 1.41 and 1.42, in places that it does not promise to keep.

What protects is tried at each start by its effect, on the way that a request takes: a foreign app
at a SuperNode, a message in a foreign name and a request from another machine at the SuperLink.
Where the place of a replacement is gone, or the attempt is not refused, the process ends.

Each waits for something in Flower:

- `put_before_superlink`: a listener of the Control API for this machine alone;
- `check_senders`: a check that a message's source is the node whose key signed the request
  (flwrlabs/flower, pull request 3308, binds the key to the node's number alone);
- `compare_apps`: an app that a SuperNode compares with a file of its own, without Flower's hub;
- `serve_by`: bounds of connections and of silence as options of the SuperLink;
- `bound_answers`: a limit on the size of a message that the ServerApp pulls
  (flwrlabs/flower, issue 3006, is about the limit of one piece);
- `drop_messages`: a SuperNode that forgets a message whose run ended while it came;
- `wait_for_database`: a longer `busy_timeout` of SQLite;
- `wait_for_start`: a start-up time of a task that is longer than 30 s;
- `unseen.sites.prefork`: a warm executor for ClientApps.
"""

import asyncio
import contextlib
import inspect
import io
import logging
import sys
import zipfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any

GONE = "this release of Flower has no place for the {what}; install flwr 1.41 or 1.42."
VOID = "this release of Flower goes around the {what}; install flwr 1.41 or 1.42."
#: Where the SuperLink serves what sites ask, and the path on which they answer.
FLEET, PUSH = "/v1/fleet/", "/v1/fleet/push-messages"
#: Open to every machine: sites, and whoever looks whether the server is up.
OPEN = (FLEET, "/health")
#: An address that no machine has (RFC 5737).
ELSEWHERE = ("203.0.113.1", 1)
#: Milliseconds that a request waits for the database.
BUSY = 60_000
#: Seconds that a message's process has to start, beyond Flower's own 30.
LONGER = 150


def function_of(module: Any, name: str, what: str) -> Callable[..., Any]:
    """Return a function of Flower's that is replaced, or end the process where it is gone."""
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None or not callable(function):
        sys.exit(GONE.format(what=what))
    return function


def put_before_superlink(guard: Any) -> None:
    """Let an ASGI middleware see every request first, or end the process."""
    from flwr.superlink import extensions
    from starlette.middleware import Middleware

    before = function_of(extensions, "get_middleware", "guard")
    extensions.get_middleware = lambda: (Middleware(guard), *before())


def serve_by(run: Callable[..., None]) -> None:
    """Let the SuperLink be served by `run` instead of `uvicorn.run`, or end the process."""
    # The package gives the function the name of its module.
    module = import_module("flwr.superlink.cli.flower_superlink")
    function_of(getattr(module, "uvicorn", None), "run", "bounds of the port")

    def run_guarded(app: Any, **options: Any) -> None:
        if why := asyncio.run(unguarded(app)):
            sys.exit(VOID.format(what=f"guard ({why})"))
        if not refuses_foreign_names(app):
            sys.exit(VOID.format(what="check of senders"))
        run(app, **options)

    vars(module)["uvicorn"] = SimpleNamespace(run=run_guarded)


def routes_of(router: Any) -> Iterator[Any]:
    """Yield the routes of an app, those of the routers in it, too."""
    for route in router.routes:
        inner = getattr(route, "original_router", None)
        yield from (route,) if inner is None else routes_of(inner)


async def unguarded(app: Any) -> str:
    """Return a path that another machine may ask and should not; nothing where there is none."""
    import httpx

    paths = {str(getattr(route, "path", "")) for route in routes_of(app)}
    closed = sorted(path for path in paths if path and not path.startswith(OPEN))
    transport = httpx.ASGITransport(app, client=ELSEWHERE)
    async with httpx.AsyncClient(transport=transport, base_url="https://203.0.113.2") as link:
        for path in (*closed, "/v1/control/start-run", "/v1/anything"):
            status = 0
            with contextlib.suppress(Exception):  # whatever it is, it was not refused
                status = (await link.post(path)).status_code
            if status != 403:
                return path
    return ""


def refuses_foreign_names(app: Any) -> bool:
    """Return whether the SuperLink, as it is served, takes no message in another node's name."""
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.error import FlowerError

    routes = [r for r in routes_of(app) if getattr(r, "path", "") == PUSH]
    message = Message(metadata=Metadata(src_node_id=8))
    request = PushMessagesRequest(node=Node(node_id=7), messages_list=[message])
    for route in routes:
        try:
            inspect.unwrap(route.endpoint)(request=request, state=None)
        except FlowerError:
            continue
        except Exception:  # it went on to what needs a state
            return False
        return False
    return bool(routes)


def wait_for_database() -> None:
    """Let requests wait for each other longer than SQLite's own 5 s, after which they fail.

    One that fails may be the only answer of a site, or end the process that starts runs.
    """
    from flwr.supercore import sql_mixin

    before = getattr(sql_mixin, "SQLITE_PRAGMAS", ())
    vars(sql_mixin)["SQLITE_PRAGMAS"] = (*before, ("busy_timeout", str(BUSY)))


def check_senders() -> None:
    """Let a site answer in its own name alone, or end the process.

    Flower checks that a request's node is the one whose key signed it, and then believes what the
    message in it says of its sender.
    """
    from flwr.superlink.servicer.fleet import fleet_handlers

    push = function_of(fleet_handlers, "push_messages", "check of senders")
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

    function_of(flower, "_verify_fab", "check of apps")
    pull = with_check(function_of(flower, "_pull_and_store_message", "check of apps"))
    vars(flower).update(_verify_fab=lambda fab, _: same(fab.content), _pull_and_store_message=pull)
    if not refuses_foreign_apps():
        sys.exit(VOID.format(what="check of apps"))


class _Watched:
    """A SuperNode's state that notes what it is asked to keep."""

    def __init__(self) -> None:
        self.errors, self.others = 0, list[str]()

    def get_run(self, run: int) -> None:
        return None

    def store_message(self, message: Any) -> None:
        self.errors += message.has_error()

    def __getattr__(self, name: str) -> Any:
        self.others.append(name)
        return lambda *arguments, **named: None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Print nothing of an attempt that is to fail."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def refuses_foreign_apps() -> bool:
    """Return whether the function by which this SuperNode takes messages refuses another app."""
    from flwr.common.serde import message_from_proto
    from flwr.proto import message_pb2
    from flwr.supercore.fab import Fab
    from flwr.supernode import start_client_internal as flower

    pull: Any = flower._pull_and_store_message
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as packed:
        packed.writestr("foreign.py", "")
    head = message_pb2.Metadata(
        run_id=1, message_id="0", src_node_id=1, dst_node_id=2, message_type="query", ttl=60.0
    )
    foreign = message_pb2.Message(metadata=head, content=message_pb2.Message().content)
    state, store = _Watched(), _Watched()
    with quiet(), contextlib.suppress(Exception):
        pull(
            state=state, object_store=store, node_config={},
            receive=lambda: (message_from_proto(foreign), None),
            get_run=lambda run: SimpleNamespace(fab_hash="0"),
            get_fab=lambda digest, run: Fab("0", content.getvalue(), {}),
            pull_object=lambda run, id: b"", confirm_message_received=lambda run, id: None,
            trusted_entities=None,
        )  # fmt: skip
    called = "_pull_and_store_message" in flower.start_client_internal.__code__.co_names
    return called and state.errors == 1 and not state.others


def with_check(pull: Callable[..., Any]) -> Callable[..., Any]:
    """Return Flower's own function with its check of apps, and without messages of ended runs."""

    def pull_checked(*, state: Any, get_fab: Callable[[str, int], Any], **named: Any) -> Any:
        def licensed(digest: str, run: int) -> Any:
            fab = get_fab(digest, run)
            fab.verifications["valid_license"] = "compared"
            return fab

        named["trusted_entities"] = {"own": ""}
        run = pull(state=state, get_fab=licensed, **named)
        if run is None:
            drop_messages(state)
        return run

    return pull_checked


def drop_messages(state: Any) -> None:
    """Drop what a SuperNode keeps of a message whose run ended while it came.

    Note:
        Flower starts a process for such a message all the same. Its reply would be sent in the
        place of the reply to the next message, and every later one a message late.
    """
    from flwr.common.constant import SubStatus

    for task in state.get_tasks():
        state.finish_task(task.task_id, SubStatus.STOPPED, "the run ended")
    left = [message.metadata.message_id for message in state.get_messages_legacy()]
    state.delete_messages(message_ids=left)


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
    make = function_of(http_grid, name, "bound of answers")
    vars(http_grid)[name] = counted(make, ObjectPullError)
