"""Flower's SuperNode for one app alone: `python -m unseen.sites.supernode`, same options.

A SuperNode runs what the server sends. This one compares it, file by file, with the app in the
folder that UNSEEN_APP names, which `join` writes from this machine's own installation.
"""

import hashlib
import io
import os
import sys
import zipfile
from collections.abc import Set
from functools import partial
from pathlib import Path

from unseen.sites import flower_workarounds, prefork
from unseen.sites.process import die_with_parent

#: The app that this site runs.
APP = "UNSEEN_APP"


def files(bundle: bytes) -> set[tuple[str, str]]:
    """Return name and digest of each file of an app as it is sent; its packing plays no part."""
    with zipfile.ZipFile(io.BytesIO(bundle)) as packed:
        names = [name for name in packed.namelist() if not name.startswith(".info/")]
        return {(name, hashlib.sha256(packed.read(name)).hexdigest()) for name in names}


def same_app(own: Set[tuple[str, str]], other: bytes) -> bool:
    """Return whether the server sent the app that this site has itself, and say if it did not."""
    wrong = sorted({name for name, _ in files(other) ^ own})
    if wrong:
        differ = f"({len(wrong)} files differ: {', '.join(wrong[:5])})"
        what = f"refused: the server asks for another app than this site's own {differ}."
        print(f"{what} Install the same version of unseen on both sides.", file=sys.stderr)
    return not wrong


def main() -> None:
    """Start the SuperNode; if the check cannot be put in place it does not start."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.supernode.cli import flower_supernode

    die_with_parent()
    own = files(build_fab_from_disk(Path(os.environ[APP])))
    flower_workarounds.compare_apps(partial(same_app, own))
    flower_workarounds.wait_for_start()
    prefork.start(Path(os.environ["FLWR_HOME"]) / "warm")
    flower_supernode()


if __name__ == "__main__":
    main()
