"""A federation of real processes that ends with a model: the weights of one process, everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load

pytest.importorskip("flwr", reason="needs the extra flower")

from support.deployment import SLOWER, Federation
from test_federation import made, three

import unseen
from unseen.serving.answer_options import TrainOptions
from unseen.serving.fit import study_of, train


@pytest.mark.slow
@pytest.mark.timeout(900 * SLOWER)
def test_three_sites_over_tls_end_with_the_model_of_one_process(tmp_path: Path) -> None:
    study, sites = made(tmp_path, "ppdg", deadline=300)
    out = tmp_path / "model"
    with Federation(tmp_path, three(sites)) as federation:
        federation.serve()
        for name in federation.sites:
            federation.join(name)
        kit = federation.kit("server")
        federation.start("run", "train", study, "--kit", kit, "--out", out)
        assert federation.ends(840) == 0, federation.logs()
        said = (tmp_path / "run.log").read_text()
    assert "every site has them, too" in said and "validation split" in said
    rule = {"holdout": "none", "targets": None}
    whole = (tmp_path / "visits.csv").read_text().splitlines()
    (tmp_path / "visits.csv").write_text(
        "\n".join(line for line in whole if not line.startswith("east,")) + "\n"
    )
    one = train(
        study_of(str(study), rule), tmp_path / "one", TrainOptions(False), data_dir=tmp_path
    )
    folders = [next((tmp_path / "kits" / name / "models").iterdir()) for name in three(sites)]
    for folder in (out, *folders):
        found = load((folder / "model.safetensors").read_bytes())
        for name, tensor in one.model.module.state_dict().items():
            assert torch.equal(found[name], tensor), (folder, name)
    rows = unseen.predict(folders[0], sites["north"][1])
    assert len(rows) == 40
