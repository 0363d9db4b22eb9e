"""`run` and `status`: start a study over the sites that are connected, and see how it stands."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError
from unseen.federation.control import Control, Run, control
from unseen.federation.kit import Kit
from unseen.federation.process import until_told
from unseen.federation.serve import bundle

#: Written by the app: who is connected, which round and exchange, the last error.
STANDING = "federation.json"
#: Seconds between looks at the file, and how many of them to one question to the server.
LOOK, RARELY = 0.5, 6
#: Seconds after which it is worth saying whom a run waits for.
LONG = 20.0
#: Seconds for which a server may answer that it failed.
FAILING = 60.0
#: Seconds within which the server notices that a run is gone whose process was killed.
GONE = 120.0


def run(
    kit: Kit,
    study: Path,
    out: Path,
    app: Path | None = None,
    insecure: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Start a study at the server of this kit and follow it to its end.

    What the folder of records already has is not run again: the same command resumes it.

    Args:
        kit: The server's kit.
        study: A study's TOML file.
        out: Folder of the records.
        app: The app to run; by default unseen's.
        insecure: Whether to connect in plaintext.
        say: Prints a line.
    """
    path = study.expanduser().absolute()
    if not path.is_file():
        raise UnseenError(
            f"{study} is not a file.",
            remedy="`unseen federation run` takes a study's TOML file; for a study by name, write "
            'a file that says base = "NAME".',
        )
    target = out.expanduser().absolute()
    target.mkdir(parents=True, exist_ok=True)
    with control(kit, insecure) as link:
        await_turn(link, say)
        here = [node.name for node in link.nodes() if node.status == "online"]
        say(f"connected: {', '.join(sorted(filter(None, here))) or len(here) or 'nobody yet'}")
        (target / STANDING).unlink(missing_ok=True)
        folder = app.absolute() if app is not None else bundle(kit.state / "app")
        number = link.start(folder, {"study": str(path), "out": str(target)})
        say(f"run {number} of {path.name}; records: {target}")
        try:
            with until_told():
                ended = follow(link, number, target, say)
        except KeyboardInterrupt:
            link.stop(number)
            say("Stopped. Run the same command to resume from the last finished round.")
            raise
    if not ended.state.endswith("completed"):
        error = str(standing(target).get("error") or ended.details or "see the server's log")
        raise UnseenError(
            f"the run ended as {ended.state}: {error.rstrip('.')}. Log: {kit.logs / 'server.log'}. "
            "When the cause is gone, run the same command to resume from the last finished round."
        )
    table = target / "table.txt"
    if table.is_file():
        say(table.read_text(encoding="utf-8").rstrip())
    say(f"records: {target}")


def await_turn(link: Control, say: Callable[[str], None]) -> None:
    """Wait until the SuperLink lists no active run.

    After a crash it keeps listing the old run until the run's heartbeat times out.
    """
    end, announced = time.monotonic() + GONE, False
    while busy := link.running():
        if time.monotonic() > end:
            raise UnseenError(
                f"run {busy[0]} has not ended: one at a time. `unseen federation status` shows it; "
                "--stop ends it."
            )
        if not announced:
            say(f"run {busy[0]} has not ended; if it was killed the server finds out in a minute")
            announced = True
        time.sleep(LOOK)


def follow(link: Control, number: int, out: Path, say: Callable[[str], None]) -> Run:
    """Say what changes until the run ends."""
    last, waited, since, look = "", "", time.monotonic(), 0
    while True:
        news = standing(out)
        line, waiting = progress(news), str(news.get("waiting", ""))
        if line and line != last:
            say(line)
            last = line
        if waiting != waited:
            waited, since = waiting, time.monotonic()
        elif waiting and time.monotonic() - since > LONG:
            say(f"waiting {waiting}")
            since = float("inf")
        if look % RARELY == 0 and (state := stands(link, number)).over:
            return state
        look += 1
        time.sleep(LOOK)


def stands(link: Control, number: int) -> Run:
    """Return how a run stands; a server that fails to say so is asked again, for a run is long."""
    import httpx

    end = time.monotonic() + FAILING
    while True:
        try:
            return link.run(number)
        except httpx.HTTPStatusError as error:
            if error.response.status_code < 500 or time.monotonic() > end:
                raise
        time.sleep(LOOK)


def stop(kit: Kit, insecure: bool = False, say: Callable[[str], None] = print) -> None:
    """Stop the run that has not ended."""
    with control(kit, insecure) as link:
        busy = link.running()
        for number in busy:
            link.stop(number)
            say(f"run {number} stopped")
        if not busy:
            say("nothing runs")


def status(
    kit: Kit, out: Path | None, insecure: bool = False, say: Callable[[str], None] = print
) -> None:
    """Print who is connected, and how the run stands whose records are in `out`."""
    try:
        with control(kit, insecure) as link:
            for node in sorted(link.nodes(), key=lambda n: n.name):
                say(f"{node.name or node.id}: {node.status}")
            busy = link.running()
            say(f"run {busy[0]}: {link.run(busy[0]).state}" if busy else "no run")
    except UnseenError as error:
        if out is None:
            raise
        say(str(error))  # what the run wrote last is there without it
    if out is None:
        return
    news = standing(out)
    if not news:
        say(f"{out / STANDING}: not written yet")
        return
    say(f"study {news.get('name', '?')}: {'finished' if news.get('finished') else 'not finished'}")
    if line := progress(news):
        say(line)
    if news.get("waiting"):
        say(f"waiting {news['waiting']}")
    if news.get("connected"):
        say(f"last seen by the run: {', '.join(map(str, news['connected']))}")


def standing(out: Path) -> Mapping[str, Any]:
    """Return what the app wrote last; empty before, or in the middle of a write."""
    try:
        news = json.loads((out / STANDING).read_bytes())
    except (OSError, ValueError):
        return {}
    return news if isinstance(news, dict) else {}


def progress(news: Mapping[str, Any]) -> str:
    """One line about it."""
    if not news:
        return ""
    parts = [f"{news['method']} on {news['task']}, seed {news['seed']}"] if "seed" in news else []
    if "round" in news:
        parts.append(f"round {int(news['round']) + 1} of {news.get('rounds', '?')}")
    if news.get("exchange"):
        parts.append(str(news["exchange"]))
    if news.get("error"):
        parts.append(f"error: {news['error']}")
    return "; ".join(parts)
