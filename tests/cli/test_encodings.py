"""Standard output in another encoding than UTF-8: what it lacks is replaced, nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.small_studies import expression, rows

SITES = {"a": "Łódź", "b": "北京", "c": "west"}


def run(encoding: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", "from unseen.cli.main import main; main()", *arguments]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    return subprocess.run(command, capture_output=True, env=environment, cwd=folder, check=False)


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "ascii"])
def test_results_are_printed_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    body = [[SITES[row[0]], *row[1:]] for row in rows("abc")]
    path = tmp_path / "sites.csv"
    path.write_text(
        "\n".join(["site,u,v,kind,region,y", *map(",".join, body), ""]), encoding="utf-8"
    )
    data = expression(path)
    ran = run(
        encoding, "study", "table", f"dataset={data}", "rounds=1", "--methods", "glm", "--seeds",
        "1", "--out", "out", folder=tmp_path,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert b"glm" in ran.stdout and b"?" in ran.stdout
    study = f'dataset = """{data}"""\nmethods = ["glm"]\n'
    (tmp_path / "one.toml").write_text(study, encoding="utf-8")
    trained = run(encoding, "train", "one.toml", "--out", "model", folder=tmp_path)
    assert trained.returncode == 0, trained.stderr
    ran = run(encoding, "predict", "model", "sites.csv", "--keep", "site", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 1 + len(body)
    ran = run(
        encoding, "evaluate", "model", "--data", "sites.csv", "--label", "y", "--domain", "site",
        folder=tmp_path,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
