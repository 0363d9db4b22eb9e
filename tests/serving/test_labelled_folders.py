"""Images with labels in folders: which class a folder is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unseen.serving.fit import study_of, train
from unseen.serving.reading.labelled import LabelledData, Request


@pytest.mark.parametrize("classes", [("HER2+", "HER2-"), ("a", "A"), ("-1", "1")])
def test_classes_that_differ_in_case_or_signs_alone_stay_apart(
    classes: tuple[str, str], tmp_path: Path
) -> None:
    for site in ("north", "south", "west"):
        for i, label in enumerate(classes):
            folder = tmp_path / "photos" / site / label
            folder.mkdir(parents=True)
            for k in range(4):
                grey = np.full((8, 8, 3), 200 * i + 10 * k, dtype=np.uint8)
                Image.fromarray(grey).save(folder / f"{k}.png")
    (tmp_path / "study.toml").write_text(
        f'dataset = "folder(path=\'{tmp_path / "photos"}\', size=8)"\nmodel = "logistic"\n'
        'methods = ["fedavg"]\nrounds = 1\nholdout = "west"\n'
    )
    model = train(study_of(str(tmp_path / "study.toml"), {}), tmp_path / "model")
    data = LabelledData(model, Request(data=tmp_path / "photos"))
    parts = list(data.batches())
    assert not data.faults
    for part in parts:
        bright = part.x.flatten(1).mean(1) > 0.5
        expected = bright.long() if model.classes == classes else 1 - bright.long()
        assert part.y.tolist() == expected.tolist()
    assert sum(len(part.y) for part in parts) == 24
