"""`unseen table` of a study by name prints what its records say where its data are not."""

from __future__ import annotations

from pathlib import Path

from support.command_line import Command
from support.small_studies import expression, rows, write


def test_records_print_without_the_data(tmp_path: Path, unseen: Command) -> None:
    data = write(tmp_path / "sites.csv", rows("abc"))
    file = tmp_path / "one.toml"
    file.write_text(
        f"dataset = '''{expression(data)}'''\nmethods = ['glm']\nseeds = 1\nrounds = 1\n"
    )
    out = ("--out", str(tmp_path / "out"))
    assert unseen("study", str(file), *out).code == 0
    before = unseen("table", str(file), *out, "--format", "csv")
    data.unlink()
    after = unseen("table", str(file), *out, "--format", "csv")
    assert after.code == 0, after.err
    assert after.out == before.out
    other = unseen("table", str(file), "rounds=2", *out)
    assert other.code == 2 and "sites.csv" in other.err
    empty = unseen("table", str(file), "--out", str(tmp_path / "nothing"))
    assert empty.code == 2 and "sites.csv" in empty.err
