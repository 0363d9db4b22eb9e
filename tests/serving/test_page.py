"""docs/models.md, then docs/serving.md: files and commands, as they stand there, in one folder."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unseen.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (DOCS / "models.md", DOCS / "serving.md")
#: A file by its name, or commands with what they print.
BLOCK = re.compile(
    r"^`(?P<name>[\w.]+)`:\n\n```\w+\n(?P<content>.*?)^```"
    r"|^```sh\n(?P<commands>.*?)^```\n\n```text\n(?P<printed>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


def run(line: str) -> tuple[int, str]:
    """Exit code and output of one command, in this process."""
    program, *arguments = shlex.split(line, comments=True)
    out = io.StringIO()
    before = sys.argv
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            if program == "python":
                runpy.run_path(arguments[0])
            else:
                sys.argv = [program, *arguments]
                main()
    except SystemExit as ended:
        return int(ended.code or 0), out.getvalue()
    finally:
        sys.argv = before
    return 0, out.getvalue()


def printed(page: str) -> Iterator[tuple[str, str, str]]:
    """Write the page's files where one is, run its commands; (commands, as printed there, now)."""
    for block in BLOCK.finditer(page):
        if block["name"]:
            Path(block["name"]).write_text(block["content"])
            continue
        found = ""
        for line in re.sub(r"\s*\\\n\s*", " ", block["commands"]).splitlines():
            code, out = run(line)
            expected = int(match[1]) if (match := re.search(r"# exit code (\d)", line)) else 0
            assert code == expected, f"{line}: ended with {code}"
            found += out
        yield block["commands"], block["printed"], found


def shape(text: str) -> str:
    """The text without its numbers, which may differ in their last digits, and its spacing."""
    text = re.sub(r"fingerprint \w+", "fingerprint #", text)
    return " ".join(re.sub(r"-?\d[\d.]*(e[+-]?\d+)?|-{2,}", "#", text).split())


@pytest.mark.slow
def test_the_pages_run_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="the extra onnx is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("UNSEEN_DATA", raising=False)
    before = set(sys.modules)
    try:
        for page in PAGES:
            for commands, there, now in printed(page.read_text("utf-8")):
                assert shape(now) == shape(there), commands
    finally:
        for name in set(sys.modules) - before:  # the page's own, which another page may call alike
            if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
    assert os.path.exists("heart-model/model.onnx.md")
