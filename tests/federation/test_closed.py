"""What a kit keeps is for its own account alone, whatever the umask."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("opacus", reason="needs the extra dp")

from support.hall import OPEN, Hall, kits
from test_hall import SITES, _quick, written
from test_private_sites import RANGES

from unseen.sites.flower import server_run
from unseen.sites.flower.site import Site
from unseen.sites.kits.closed import close, umask
from unseen.sites.policy.approvals import Approvals
from unseen.sites.process import UMASK, Child, environment

__all__ = ["_quick"]  # the fixture of test_hall
#: Without a seed, so that the noise's secret is kept.
NOISE = '[privacy]\nexamples = "dp(clip=1.0, noise=1.0, delta=1e-4)"\n'


@pytest.fixture(autouse=True)
def _careless() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(*folders: Path) -> dict[str, str]:
    paths = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    modes = {str(path): stat.S_IMODE(path.lstat().st_mode) for path in paths}
    return {path: f"{mode:o}" for path, mode in modes.items() if mode & 0o077}


def test_what_a_site_keeps_of_a_study_with_noise(tmp_path: Path) -> None:
    file = written(tmp_path, "fedavg", rounds=1)
    file.write_text(file.read_text() + NOISE + RANGES)
    numbers = kits(tmp_path, SITES, tmp_path, OPEN)
    server_run.run(str(file), str(tmp_path / "out"), Hall(numbers), list(SITES))
    kit = numbers[1]
    approvals = Approvals(Site.read(kit).account)
    approvals.approve(*approvals.every())
    memories = [*(kit / "state").rglob("memory.pt")]
    assert memories and b"dp.secret" in memories[0].read_bytes()
    assert (kit / "account" / "digest.key").is_file()
    assert open_to_others(kit / "state", kit / "account") == {}
    assert umask() == 0  # what lies elsewhere is as the machine's user has it


def test_a_process_of_a_kit_and_its_log(tmp_path: Path) -> None:
    home, log = tmp_path / "home", tmp_path / "logs" / "site.log"
    env, file = environment(home), tmp_path / "state"
    child = Child([sys.executable, "-c", f"open({str(file)!r}, 'w')"], env, log)
    child.wait(interval=0.05)
    assert child.code == 0
    assert open_to_others(tmp_path / "logs") == open_to_others(file) == {}
    assert env[UMASK] == "0"  # by which the server's app writes records


def test_what_is_open_is_closed_and_links_are_left_alone(tmp_path: Path) -> None:
    data, kit = tmp_path / "data", tmp_path / "kit"
    for folder in (data, kit / "state" / "run", kit / "logs"):
        folder.mkdir(parents=True)
        (folder / "file").write_text("")
    (kit / "state" / "images").symlink_to(data)
    (kit / "README.md").write_text("")
    close(kit)
    assert open_to_others(kit / "logs") == {}
    left = open_to_others(kit / "state")
    assert [*left] == [str(kit / "state" / "images")]  # the link itself, which has no mode
    assert stat.S_IMODE((data / "file").stat().st_mode) == 0o666
    assert stat.S_IMODE((kit / "README.md").stat().st_mode) == 0o666
