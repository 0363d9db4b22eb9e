"""Flower's SuperNode for one app alone: `python -m unseen.federation.supernode`, same options.

A SuperNode runs what the server sends. This one compares it, file by file, with the app in the
folder that UNSEEN_APP names, which `join` writes from this machine's own installation. And it
gives a message's process longer to start than Flower's 30 s, after which Flower starts another.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import zipfile
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from unseen.federation import prefork
from unseen.federation.superlink import die_with_parent

#: The app that this site runs.
APP = "UNSEEN_APP"
#: Seconds that a message's process has to start, beyond Flower's own.
LONGER = 150


def files(bundle: bytes) -> dict[str, str]:
    """Name -> digest of the files of an app as it is sent; packing and its date play no part."""
    with zipfile.ZipFile(io.BytesIO(bundle)) as packed:
        names = [name for name in packed.namelist() if not name.startswith(".info/")]
        return {name: hashlib.sha256(packed.read(name)).hexdigest() for name in names}


def differences(sent: Mapping[str, str], own: Mapping[str, str]) -> list[str]:
    """Files that are not the same on both sides."""
    return [name for name in sorted({*sent, *own}) if sent.get(name) != own.get(name)]


class OwnAppOnly:
    """Stands where Flower checks signatures of apps."""

    def __init__(self, own: Mapping[str, str]) -> None:
        self.own = own

    def verify(self, fab: Any, trusted: Mapping[str, str]) -> bool:
        """Whether the server sent the app that this site has itself."""
        wrong = differences(files(fab.content), self.own)
        if wrong:
            print(
                f"refused: the server asks for another app than this site's own ({len(wrong)} "
                f"files differ: {', '.join(wrong[:5])}). Install the same version of unseen on "
                "both sides.",
                file=sys.stderr,
                flush=True,
            )
        return not wrong

    def pull(self, pull: Callable[..., Any]) -> Callable[..., Any]:
        """Flower's own function, with the check switched on."""

        def checked(*arguments: Any, **named: Any) -> Any:
            fetch = named["get_fab"]

            def get_fab(digest: str, run: int) -> Any:
                fab = fetch(digest, run)
                fab.verifications["valid_license"] = "compared"
                return fab

            return pull(
                *arguments, **{**named, "get_fab": get_fab, "trusted_entities": {"own": ""}}
            )

        return checked


def patient(claim: Callable[[Any, int], str | None]) -> Callable[[Any, int], str | None]:
    """Flower's own function, by which a process is started, with more time to start."""

    def claimed(state: Any, task: int) -> str | None:
        token = claim(state, task)
        if token is not None:
            state.task_token_store[task].active_until += timedelta(seconds=LONGER)
        return token

    return claimed


def main() -> None:
    """Start the SuperNode; if the check cannot be put in place it does not start."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.supernode import start_client_internal as flower
    from flwr.supernode.cli import flower_supernode
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

    die_with_parent()
    if not all(
        callable(getattr(flower, n, None)) for n in ("_verify_fab", "_pull_and_store_message")
    ):
        sys.exit("this release of Flower has no place for the check of apps; install flwr 1.41.")
    check = OwnAppOnly(files(build_fab_from_disk(Path(os.environ[APP]))))
    replacements: dict[str, Any] = {
        "_verify_fab": check.verify,
        "_pull_and_store_message": check.pull(flower._pull_and_store_message),
    }
    vars(flower).update(replacements)
    state: Any = InMemoryNodeState
    state.claim_task = patient(state.claim_task)
    prefork.start(Path(os.environ["FLWR_HOME"]) / "warm")
    flower_supernode()


if __name__ == "__main__":
    main()
