"""`unseen serve`: a server process answers over HTTP as `unseen predict` and onnxruntime do."""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.command_line import Command
from support.federations import write_photos, write_table

from unseen.errors import UnseenError
from unseen.serving.directory import Trained
from unseen.serving.export import export
from unseen.serving.http_app import app
from unseen.serving.http_service import Service, rows_of_json
from unseen.serving.policy import policy_of
from unseen.serving.reading.new_rows import from_mappings, stacked

httpx = pytest.importorskip("httpx", reason="the extra serve is not installed")
pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

MAIN = "from unseen.cli.main import main; main()"
HEAD = "age,dose,drug\n"
ROWS = HEAD + "61,0.5,a\n70,,b\nold,1,a\n55.25,-1.5,a\n61,1,zz\n"


def served(model: Path, log: Path, *options: str) -> Iterator[str]:
    """The address of a server process, which ends afterwards."""
    command = [sys.executable, "-c", MAIN, "serve", str(model), "--port", "0"]
    with log.open("wb") as file:
        process = subprocess.Popen([*command, *options], stderr=file, stdout=file, env=os.environ)
    try:
        for _ in range(600):
            if match := re.search(r"running on (http://127\.0\.0\.1:\d+)", log.read_text()):
                break
            assert process.poll() is None, log.read_text()
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.1)
        assert match, log.read_text()
        yield match[1]
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def address(of_rows: Trained, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("server") / "log"
    limits = ("--max-rows", "50", "--max-megabytes", "1")
    yield from served(of_rows.folder, log, "--threshold", "0.4", "--abstain", "0.55", *limits)


def predicted(unseen: Command, model: Path, path: Path, *options: str) -> str:
    ran = unseen("predict", model, path, "--threshold", "0.4", "--abstain", "0.55", *options)
    assert ran.code in (0, 1)
    return ran.out


def test_a_csv_file_is_answered_with_the_file_of_predict(
    address: str, of_rows: Trained, tmp_path: Path, unseen: Command
) -> None:
    (tmp_path / "rows.csv").write_text(ROWS)
    found = httpx.post(f"{address}/predict/csv", content=ROWS.encode())
    expected = predicted(unseen, of_rows.folder, tmp_path / "rows.csv")
    assert found.status_code == 200 and found.headers["content-type"].startswith("text/csv")
    assert found.text == expected.replace(f"{tmp_path}/", "")
    kept = httpx.post(f"{address}/predict/csv?keep=age", content=ROWS.encode())
    assert next(csv.DictReader(io.StringIO(kept.text)))["age"] == "61"


def test_rows_as_json_and_parquet_have_the_same_numbers(
    address: str, of_rows: Trained, tmp_path: Path, unseen: Command
) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    from pyarrow import parquet

    (tmp_path / "rows.csv").write_text(HEAD + "61,0.5,a\n70,,b\n55.25,-1.5,a\n")
    lines = csv.DictReader(io.StringIO(predicted(unseen, of_rows.folder, tmp_path / "rows.csv")))
    shares = [[float(line["p(no)"]), float(line["p(yes)"])] for line in lines]
    rows = [
        {"age": 61, "dose": 0.5, "drug": "a"},
        {"age": 70, "dose": None, "drug": "b"},
        {"age": 55.25, "dose": -1.5, "drug": "a"},
    ]
    answer = httpx.post(f"{address}/predict", json={"rows": rows}).json()
    found = [[*entry["probabilities"].values()] for entry in answer["predictions"]]
    assert found == shares and answer["answered"] == 3
    abstained = [entry["abstained"] == "yes" for entry in answer["predictions"]]
    assert abstained == [share[int(share[1] >= 0.4)] < 0.55 for share in shares]
    content = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), content)
    replied = httpx.post(f"{address}/predict/parquet", content=content.getvalue())
    table = parquet.read_table(io.BytesIO(replied.content)).to_pylist()
    assert [[line["p(no)"], line["p(yes)"]] for line in table] == pytest.approx(
        np.array(shares), rel=1e-8
    )


def test_true_and_false_are_1_and_0_as_in_a_data_frame(address: str) -> None:
    rows = [{"age": 61, "dose": dose, "drug": "a"} for dose in (True, 1, False, 0)]
    answer = httpx.post(f"{address}/predict", json={"rows": rows}).json()
    yes, one, no, zero = [entry["probabilities"] for entry in answer["predictions"]]
    assert yes == one != no == zero
    said = httpx.get(f"{address}/openapi.json").json()["paths"]["/predict"]["post"]["requestBody"]
    row = said["content"]["application/json"]["schema"]["properties"]["rows"]["items"]
    assert "boolean" in row["properties"]["dose"]["type"]


def test_faulty_rows_are_named_and_the_others_answered(address: str) -> None:
    rows: list[dict[str, object]] = [
        {"age": "old", "dose": 1, "drug": "a"},
        {"age": 61, "dose": 1, "drug": "zz"},
        {"age": 61, "doze": 1, "drug": "a"},
        {"age": 61, "dose": 1, "drug": "a", "id": "p7"},
    ]
    answer = httpx.post(f"{address}/predict", json={"rows": rows, "keep": ["id"]}).json()
    said = [entry.get("error", "") for entry in answer["predictions"]]
    assert "age = 'old' is not a number" in said[0] and "drug = 'zz'" in said[1]
    assert "lacks the column dose (is 'dose' called 'doze' there?)" in said[2]
    assert (answer["answered"], answer["not answered"]) == (1, 3)
    assert answer["predictions"][3]["id"] == "p7" and answer["predictions"][3]["row"] == 3


@pytest.mark.slow  # an export and a server of its own
def test_an_export_answers_with_onnxruntimes_numbers(of_rows: Trained, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    ort = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    model = tmp_path / "model"
    model.mkdir()
    for name in ("model.json", "model.safetensors"):
        (model / name).write_bytes((of_rows.folder / name).read_bytes())
    export(model, [write_table(tmp_path / "visits.csv")])
    rows = [{"age": 61, "dose": 0.5, "drug": "a"}, {"age": 70, "dose": None, "drug": "b"}]
    server = served(model, tmp_path / "log", "--runtime", "onnx")
    answer = httpx.post(f"{next(server)}/predict", json={"rows": rows}).json()
    server.close()
    session = ort.InferenceSession(model / "model.onnx", providers=["CPUExecutionProvider"])
    items = [item for batch in from_mappings(of_rows.inputs, rows, None, False) for item in batch]
    x = stacked(items)
    assert x is not None
    _, expected = session.run(None, {"x": x.numpy()})
    found = [[*entry["probabilities"].values()] for entry in answer["predictions"]]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_what_is_too_large_or_of_another_form_is_refused(address: str) -> None:
    many = HEAD + "61,0.5,a\n" * 51
    refused = httpx.post(f"{address}/predict/csv", content=many.encode())
    assert refused.status_code == 413 and "50 rows" in refused.json()["error"]
    refused = httpx.post(f"{address}/predict", content=b" " * (2**20 + 1))
    assert refused.status_code == 413 and "bytes" in refused.json()["error"]
    for body in (b"{", b"[]", b'{"rows": 3}', b'{"rows": [[1]]}', b'{"rows": [{"age": [1]}]}'):
        assert httpx.post(f"{address}/predict", content=body).status_code == 422, body
    assert httpx.post(f"{address}/predict/parquet", content=b"PAR1").status_code == 422
    refused = httpx.post(f"{address}/predict?times=90", json={"rows": []})
    assert refused.status_code == 422 and "found 'times'" in refused.json()["error"]
    refused = httpx.post(f"{address}/predict/csv?keeps=age", content=ROWS.encode())
    assert refused.status_code == 422 and "takes keep after" in refused.json()["error"]
    stranger = httpx.get(f"{address}/health", headers={"Host": "elsewhere.example"})
    assert stranger.status_code == 400


def test_health_card_and_the_page_need_nothing_from_elsewhere(
    address: str, of_rows: Trained
) -> None:
    health = httpx.get(f"{address}/health").json()
    assert health["status"] == "ok" and health["fingerprint"] == of_rows.spec["fingerprint"]
    assert (health["threshold"], health["abstain"], health["inputs"]) == (
        0.4,
        0.55,
        ["age", "dose", "drug"],
    )
    card = httpx.get(f"{address}/card")
    assert card.text == (of_rows.folder / "README.md").read_text("utf-8")
    page = httpx.get(f"{address}/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert not re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", page.text)
    assert re.findall(r'<input data-column="(\w+)"', page.text) == ["age", "dose"]
    assert re.findall(r'<select data-column="(\w+)"', page.text) == ["drug"]
    paths = httpx.get(f"{address}/openapi.json").json()["paths"]
    assert {"/predict", "/predict/csv", "/predict/parquet", "/health", "/card"} <= paths.keys()
    example = paths["/predict"]["post"]["requestBody"]["content"]["application/json"]["example"]
    answer = httpx.post(f"{address}/predict", json=example).json()
    assert answer["answered"] == 1


async def asked(of_photos: Trained, content: bytes) -> dict[str, object]:
    transport = httpx.ASGITransport(app(Service(of_photos, policy_of(of_photos))))
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        return (await client.post("/predict/images", content=content)).json()


def test_images_are_answered_alone_and_in_an_archive(
    of_photos: Trained, tmp_path: Path, unseen: Command
) -> None:
    import asyncio

    photos = write_photos(tmp_path / "photos", each=2)
    file = photos / "north" / "cat" / "0.png"
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(photos, "photos")
    alone = asyncio.run(asked(of_photos, file.read_bytes()))
    every = asyncio.run(asked(of_photos, (tmp_path / "all.tar").read_bytes()))
    (line,) = csv.DictReader(io.StringIO(unseen("predict", of_photos.folder, file).out))
    (entry,) = alone["predictions"]  # type: ignore[misc]
    assert entry["prediction"] == line["prediction"]
    assert entry["probabilities"]["cat"] == float(line["p(cat)"])
    named = {e["image"]: e["prediction"] for e in every["predictions"]}  # type: ignore[attr-defined]
    assert len(named) == 12 and named["photos/north/cat/0.png"] == line["prediction"]
    (bad,) = asyncio.run(asked(of_photos, b"not an image"))["predictions"]  # type: ignore[misc]
    assert "cannot be read" in bad["error"] and "/unseen-" not in bad["error"]


def test_rows_of_json_are_checked() -> None:
    body = rows_of_json(b'{"rows": [{"a": null}, {"a": true}], "keep": ["a"]}')
    assert body.rows == [{"a": None}, {"a": True}] and body.keep == ["a"]
    with pytest.raises(UnseenError, match="found at threshold: Extra inputs"):
        rows_of_json(b'{"rows": [], "threshold": 0.1}')
    with pytest.raises(UnseenError, match="has 'a' more than once"):
        rows_of_json(b'{"rows": [{"a": 1, "b": 2, "a": 3}]}')
    with pytest.raises(ValueError, match="not JSON"):
        rows_of_json(b"[" * 100_000)


@pytest.mark.parametrize("body", [b"a,b\n1,2\n", b"", b"\xff\xfe\x00junk\x80"])
def test_a_body_that_is_not_a_table_for_the_model_is_refused(address: str, body: bytes) -> None:
    answer = httpx.post(f"{address}/predict/csv", content=body)
    assert answer.status_code == 422
    assert "lacks the columns" in answer.text or "is not a csv file" in answer.text


def test_a_parameter_that_is_written_twice_is_refused(address: str) -> None:
    refused = httpx.post(f"{address}/predict/csv?keep=age&keep=id", content=ROWS.encode())
    assert refused.status_code == 422 and "'keep' more than once" in refused.json()["error"]
