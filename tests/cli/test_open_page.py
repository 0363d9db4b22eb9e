"""`unseen open` in a real browser: Debian's chromium, driven by playwright; and what it refuses."""

from __future__ import annotations

import http.client
import io
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("fastapi", reason="needs the extra serve")

CHROMIUM = os.environ.get("UNSEEN_CHROMIUM") or shutil.which("chromium") or shutil.which("chrome")
PATIENCE = 240_000  # milliseconds; other programs may have the machine


def faulty(folder: Path, rows: int = 240) -> Path:
    """A csv file with an identifier, a word among numbers and a missing label."""
    draw = np.random.default_rng(0)
    path = folder / "visits & more.csv"
    lines = ["patient,hospital,age,score,died"]
    for i in range(rows):
        age, score = draw.normal(60, 10), draw.normal()
        died = int(score + draw.normal() > 0)
        lines.append(f"P{i:05d},{'abcd'[i % 4]},{age:.1f},{score:.3f},{died if i else ''}")
    lines[5] = lines[5].replace(lines[5].split(",")[2], "unknown", 1)
    path.write_text("\n".join([*lines, ""]))
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path, subprocess.Popen[str]]]:
    """The address of a page, and the folder in which its temporary folder is."""
    place = tmp_path / "temporary"
    place.mkdir()
    script = [sys.executable, "-c", "from unseen.cli.main import main; main()"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(place)}
    process = subprocess.Popen(
        [*script, "open", "--port", "0", "--no-browser"], stdout=subprocess.PIPE, text=True, env=env
    )
    assert process.stdout is not None
    yield process.stdout.readline().strip(), place, process
    process.send_signal(signal.SIGINT)
    process.wait(60)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no chromium here: apt-get install chromium, or set UNSEEN_CHROMIUM")
    with playwright.sync_playwright() as driver:
        # A container's root has no user namespaces to put the sandbox in; the page is our own.
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def asked(address: str, path: str, host: str | None = None, method: str = "GET") -> int:
    """The status of a request."""
    parts = urlsplit(address)
    line = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
    line.request(method, path, headers={"Host": host or f"{parts.hostname}:{parts.port}"})
    return line.getresponse().status


def test_only_who_knows_the_address_is_answered(
    server: tuple[str, Path, subprocess.Popen[str]],
) -> None:
    address, place, process = server
    own = urlsplit(address).path
    assert urlsplit(address).hostname == "127.0.0.1" and len(own) > 30
    assert asked(address, own) == 200
    for path in ("/", "/other/", "/other/act/stop", "/docs", "/openapi.json"):
        assert asked(address, path) == 404
    # A name that somebody else's DNS points to this machine.
    assert asked(address, own, host="attacker.example") == 400
    assert asked(address, f"{own}act/stop", host="attacker.example", method="POST") == 400
    assert asked(address, f"{own}act/stop") == 405
    assert asked(address, f"{own}file/..%2f..%2fetc%2fpasswd") == 404
    assert asked(address, f"{own}file/model.zip") == 404
    assert [*place.iterdir()]
    process.send_signal(signal.SIGINT)
    assert process.wait(60) in (0, 130, -signal.SIGINT)
    assert not [*place.iterdir()]  # nothing is kept


@pytest.mark.slow
def test_a_file_with_faults_becomes_a_model(
    browser: Any, server: tuple[str, Path, subprocess.Popen[str]], tmp_path: Path
) -> None:
    address, _, _ = server
    shots = Path(os.environ.get("UNSEEN_SCREENSHOTS", tmp_path))
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    context.set_default_timeout(PATIENCE)
    page, requests = context.new_page(), []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address)
    page.set_input_files("input[type=file]", faulty(tmp_path))
    page.click("text=Look at it")
    page.select_option("select[name=site]", "hospital")
    page.select_option("select[name=label]", "died")
    page.click("button:text-is('Check')")
    found = page.inner_text("main")
    assert "patient" in found and "missing_label=drop" in found and "missing=" in found
    page.screenshot(path=shots / "open-check.png", full_page=True)
    page.select_option("select[name=budget]", "10min")
    page.click("button:text-is('Choose')")
    page.wait_for_selector("text=trainings of")
    page.screenshot(path=shots / "open-trials.png", full_page=True)

    other = context.new_page()  # a second tab sees the same trials
    other.goto(address)
    assert "trainings of" in other.inner_text("main")
    other.click("button:text-is('Stop')")
    other.wait_for_selector("text=Stopped.")
    assert "Go on" in other.inner_text("main")
    other.close()

    page.goto(address)
    page.select_option("select[name=budget]", "30s")
    page.click("button:text-is('Go on')")
    page.wait_for_selector("text=3. The answer")
    assert "Recommended:" in page.inner_text("main")
    frame = page.frame_locator("iframe")
    assert "visits & more" in frame.locator("h1").inner_text()
    page.locator("iframe").scroll_into_view_if_needed()
    page.screenshot(path=shots / "open-answer.png")
    page.set_viewport_size({"width": 375, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.screenshot(path=shots / "open-answer-375.png", full_page=True)
    page.click("text=Train it at all sites")
    page.wait_for_selector("text=Download the model")
    with page.expect_download() as waiting:
        page.click("text=Download the model")
    with zipfile.ZipFile(io.BytesIO(Path(waiting.value.path()).read_bytes())) as archive:
        assert {"model/README.md", "model/model.json"} <= {*archive.namelist()}
    assert {urlsplit(url).netloc for url in requests} == {urlsplit(address).netloc}
    page.click("text=Start again with other data")
    page.wait_for_selector("text=1. Your data")
    context.close()
