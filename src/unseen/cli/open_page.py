"""`unseen open`: a page on this machine alone that runs `unseen choose` and shows its answer."""

from __future__ import annotations

import io
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from email import message_from_bytes
from importlib import resources
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fastapi import FastAPI

#: The largest file that may be dropped, in bytes; name the folder of a larger one.
MOST = 256 * 2**20
#: The command line as a program, and seconds between two of its lines of progress.
COMMAND, SECONDS = (sys.executable, "-c", "from unseen.cli.main import main; main()"), "1"
#: What a browser may do with the page.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "form-action 'self'; frame-src 'self'; frame-ancestors 'self'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


def open_(
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8010,
    keep: Path | None = None,
    no_browser: bool = False,
) -> None:
    """Open a page in the browser that chooses a recipe for your csv file or folder of images.

    The page shows what `unseen data check` sees, runs `unseen choose` and `unseen train`, and lets
    you download the model. It is served to this machine alone, at an address that nobody can guess.
    What it writes is removed when you stop it, unless --keep names a folder.

    Args:
        port: The port; 0 for a free one.
        keep: The folder of the answer, its records and the model (default: a temporary one).
        no_browser: Print the address, and open no browser.
    """
    import socket
    import webbrowser

    from unseen.errors import optional

    uvicorn = optional("uvicorn", "unseen open needs", "serve", "take unseen choose")
    optional("fastapi", "unseen open needs", "serve", "take unseen choose")
    place = keep or Path(tempfile.mkdtemp(prefix="unseen-open-"))
    place.mkdir(parents=True, exist_ok=True)
    session, token = Session(place), secrets.token_urlsafe(24)
    listener = socket.create_server(("127.0.0.1", port))
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/{token}/"
    print(address, flush=True)
    if not no_browser:
        webbrowser.open(address)
    try:
        config = uvicorn.Config(app(session, token), log_level="warning", access_log=False)
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        session.stop()
        if keep is None:
            shutil.rmtree(place, ignore_errors=True)


@dataclass
class Session:
    """What the page is at: the data, what was found in them, and the command at work."""

    place: Path  # of all that is written
    data: Path | None = None  # the csv file or folder
    columns: tuple[str, ...] = ()
    site: str = ""
    label: str = ""
    findings: str = ""  # what `unseen data check` says
    command: tuple[str, ...] = ()  # the `unseen choose` that it recommends
    budget: str = "2min"
    process: subprocess.Popen[bytes] | None = None  # at work, or ended
    doing: str = ""  # choose or train
    stopped: bool = False
    problem: str = ""  # of the last request
    lock: Lock = field(default_factory=Lock)

    @property
    def busy(self) -> bool:
        """Whether a command is at work."""
        return self.process is not None and self.process.poll() is None

    @property
    def failed(self) -> bool:
        """Whether the command ended with an error."""
        ended = self.process is not None and not self.busy and not self.stopped
        return ended and self.process is not None and self.process.returncode != 0

    @property
    def lines(self) -> str:
        """The last lines of progress or of the error, or the answer."""
        file = self.place / ("err" if self.busy or self.failed else "out")
        text = file.read_text("utf-8", "replace") if file.exists() else ""
        return "\n".join(text.splitlines()[-12:])

    def take(self, path: Path) -> None:
        """Take a csv file or a folder of images."""
        from unseen.data.tables.table_files import sheet_of

        if not path.exists():
            self.problem = f"{path} is neither a file nor a folder."
            return
        self.columns = () if path.is_dir() else tuple(sheet_of(None, path).columns)
        self.data, self.findings, self.command, self.doing = path, "", (), ""
        if path.is_dir():
            self.check("", "")

    def check(self, site: str, label: str) -> None:
        """Look at the data as `unseen data check` does."""
        self.site, self.label = site, label
        words = ["data", "check", str(self.data)]
        words += [f"--site={site}", f"--label={label}"] if site else []
        ran = subprocess.run([*COMMAND, *words], capture_output=True, text=True, env=plain())
        *lines, last = (ran.stdout.rstrip() or "\n").split("\n")
        self.findings = "\n".join([*lines, ran.stderr]).strip()
        self.command = tuple(shlex.split(last.removeprefix("next: ")))[1:]
        if not last.startswith("next: "):
            self.findings, self.command = f"{self.findings}\n{last}".strip(), ()

    def start(self, doing: str, words: list[str]) -> None:
        """Run a command of `unseen`."""
        self.stopped, self.doing = False, doing
        with (self.place / "out").open("wb") as out, (self.place / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [*COMMAND, *words], stdout=out, stderr=err, env=plain(), start_new_session=True
            )

    def stop(self) -> None:
        """Stop the command; the next one goes on from there."""
        if self.process is not None and self.busy:
            self.stopped = True
            os.killpg(self.process.pid, signal.SIGINT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


def plain() -> dict[str, str]:
    """Return the environment of a command whose output is read by a program."""
    return os.environ | {"UNSEEN_PROGRESS_SECONDS": SECONDS, "COLUMNS": "100", "NO_COLOR": "1"}


def app(session: Session, token: str) -> FastAPI:
    """Return the application. All its paths begin with the token, which no other page knows."""
    from fastapi import FastAPI, Request
    from fastapi.responses import HTMLResponse, RedirectResponse, Response
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from unseen.errors import UnseenError
    from unseen.serving.http_app import LOCAL

    server = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    server.add_middleware(TrustedHostMiddleware, allowed_hosts=list(LOCAL))

    async def page(request: Request) -> Response:
        return HTMLResponse(html(session), headers=HEADERS)

    async def act(request: Request) -> Response:
        if int(request.headers.get("content-length", MOST + 1)) > MOST:
            return Response("The file is too large: name its folder or path instead.", 413)
        parts = form(request.headers.get("content-type", ""), await request.body())

        def work() -> None:
            with session.lock:
                session.problem = ""
                try:
                    act_on(session, request.path_params["action"], parts)
                except UnseenError as error:
                    session.problem = str(error)

        await run_in_threadpool(work)
        return RedirectResponse(f"/{token}/", 303)

    async def file(request: Request) -> Response:
        content, kind = download(session, request.path_params["name"])
        return Response(content, 200 if content else 404, HEADERS, kind)

    server.add_route(f"/{token}/", page)
    server.add_route(f"/{token}/act/{{action}}", act, methods=["POST"])
    server.add_route(f"/{token}/file/{{name}}", file)
    return server


def act_on(session: Session, action: str, parts: Mapping[str, tuple[str, bytes]]) -> None:
    """Do what a button asks for, with the fields of its form."""
    answer, model = session.place / "answer", session.place / "model"
    texts = {
        name: content.decode("utf-8", "replace").strip() for name, (_, content) in parts.items()
    }
    if action == "stop":
        return session.stop()
    if session.busy:
        session.problem = (
            f"unseen {session.doing} is at work, in this tab or another one: stop it first."
        )
    elif action == "data" and texts.get("path"):
        session.take(Path(texts["path"]).expanduser())
    elif action == "data" and parts.get("file", ("", b""))[0]:
        name, content = parts["file"]
        path = session.place / "data" / Path(name).name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        session.take(path)
    elif action == "check" and session.data is not None:
        session.check(texts.get("site", ""), texts.get("label", ""))
    elif action == "choose" and session.command:
        session.budget = texts.get("budget", session.budget)
        session.start(
            "choose", [*session.command, "--budget", session.budget, "--out", str(answer)]
        )
    elif action == "train" and (answer / "choice.json").exists():
        shutil.rmtree(model, ignore_errors=True)
        recipe = str(answer / "choice.json")
        where = (
            ["--data-dir", str(session.data)]
            if session.data is not None and session.data.is_dir()
            else []
        )
        session.start("train", ["train", "--recipe", recipe, "--out", str(model), *where])
    elif action == "again":
        session.data, session.doing, session.findings, session.command = None, "", "", ()
        shutil.rmtree(answer, ignore_errors=True)
        shutil.rmtree(model, ignore_errors=True)
    return None


def form(kind: str, body: bytes) -> dict[str, tuple[str, bytes]]:
    """Return field -> the name of its file, or "", and its content, of a form with files."""
    message = message_from_bytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body)
    parts: Any = message.get_payload() if message.is_multipart() else []
    return {
        str(part.get_param("name", header="content-disposition")): (
            part.get_filename() or "",
            part.get_payload(decode=True) or b"",
        )
        for part in parts
    }


def download(session: Session, name: str) -> tuple[bytes, str]:
    """Return a file of the answer and its type; empty where the answer lacks it."""
    model = session.place / "model"
    files = {
        "choice.html": (session.place / "answer" / "choice.html", "text/html"),
        "card.md": (model / "README.md", "text/plain"),
    }
    if name == "model.zip" and not session.busy and model.is_dir():
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(model.rglob("*")):
                archive.write(path, path.relative_to(session.place))
        return content.getvalue(), "application/zip"
    path, kind = files.get(name, (Path(), ""))
    return (path.read_bytes(), kind) if path.is_file() else (b"", "text/plain")


def html(session: Session) -> str:
    """Return the page."""
    from unseen.core.templates import render
    from unseen.studies.report import theme

    return render(
        "unseen.cli",
        "templates/open.html.jinja",
        session=session,
        theme=theme,
        chosen=not session.busy and (session.place / "answer" / "choice.json").exists(),
        trained=not session.busy and (session.place / "model" / "README.md").exists(),
        style=(resources.files("unseen.studies.report") / "style.css").read_text("utf-8"),
    )
