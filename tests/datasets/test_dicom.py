"""DICOM files, as pydicom ships them, in folders of images and in predictions."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from unseen.data import load
from unseen.data.image_files import dicom
from unseen.data.image_files.images import View, pixels
from unseen.errors import UnseenError
from unseen.serving.reading.inputs import ImageInputs
from unseen.serving.reading.new_rows import read

pydicom = pytest.importorskip("pydicom", reason="needs the extra dicom")
FILES = Path(pydicom.__file__).parent / "data" / "test_files"


def content(name: str) -> bytes:
    return (FILES / name).read_bytes()


def changed(name: str, **values: Any) -> bytes:
    """A file with other entries."""
    data = pydicom.dcmread(FILES / name)
    for key, value in values.items():
        setattr(data, key, value)
    buffer = io.BytesIO()
    data.save_as(buffer)
    return buffer.getvalue()


def array(file: bytes) -> np.ndarray:
    return np.asarray(dicom.image_of(file, "x.dcm"))


def test_without_a_window_the_least_value_is_black_and_the_largest_white() -> None:
    stored = pydicom.dcmread(FILES / "CT_small.dcm")
    values = stored.pixel_array * float(stored.RescaleSlope) + float(stored.RescaleIntercept)
    share = (values - values.min()) / (values.max() - values.min())
    assert array(content("CT_small.dcm")).tolist() == np.rint(255 * share).tolist()
    dark = array(changed("CT_small.dcm", PhotometricInterpretation="MONOCHROME1"))
    assert dark.tolist() == np.rint(255 * (1 - share)).tolist()


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
@pytest.mark.parametrize(("centre", "width"), [(40.0, 400.0), ([100.0, 40.0], [900.0, 80.0])])
def test_a_window_is_pydicoms(function: str, centre: Any, width: Any) -> None:
    entries = {"WindowCenter": centre, "WindowWidth": width, "VOILUTFunction": function}
    file = changed("CT_small.dcm", **entries)
    data = pydicom.dcmread(io.BytesIO(file))
    values = pydicom.pixels.apply_modality_lut(data.pixel_array, data)
    theirs = pydicom.pixels.apply_windowing(values, data)
    bits = float(data.BitsStored)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1  # of signed values, as these are
    low, high = (float(data.RescaleSlope) * v + float(data.RescaleIntercept) for v in (low, high))
    expected = 255 * (theirs - low) / (high - low)
    assert np.abs(array(file) - expected).max() <= 0.5 + 1e-6


def test_a_table_of_brightness_is_looked_up() -> None:
    table = pydicom.Dataset()
    table.LUTDescriptor = [4096, 0, 12]
    table.add_new("LUTData", "OW", np.arange(4095, -1, -1).astype("<u2").tobytes())
    table.LUTExplanation = ""
    data = pydicom.dcmread(FILES / "CT_small.dcm")
    data.PixelRepresentation = 0
    data.RescaleIntercept = 0
    data["PixelData"].value = np.clip(data.pixel_array, 0, 4095).astype("<u2").tobytes()
    stored = np.frombuffer(data.PixelData, "<u2").reshape(128, 128)
    data.VOILUTSequence = [table]
    buffer = io.BytesIO()
    data.save_as(buffer)
    assert array(buffer.getvalue()).tolist() == np.rint(255 * (1 - stored / 4095)).tolist()


def test_padding_is_black_and_no_part_of_the_range() -> None:
    data = pydicom.dcmread(FILES / "CT_small.dcm")
    least = int(data.pixel_array.min())
    found = array(changed("CT_small.dcm", PixelPaddingValue=least))
    values = data.pixel_array.astype(float)
    rest = values[values > least]
    share = np.clip((values - rest.min()) / (rest.max() - rest.min()), 0, 1)
    assert found.tolist() == np.rint(255 * np.where(values == least, 0, share)).tolist()


def test_colours_are_red_green_and_blue() -> None:
    rgb = pydicom.dcmread(FILES / "examples_rgb_color.dcm").pixel_array
    assert np.array_equal(array(content("examples_rgb_color.dcm")), rgb)
    palette = pydicom.dcmread(FILES / "examples_palette.dcm")
    looked = pydicom.pixels.apply_color_lut(palette.pixel_array, palette)
    assert np.array_equal(array(content("examples_palette.dcm")), looked >> 8)
    # The same picture stored as luminance and colour differences.
    assert array(content("SC_ybr_full_422_uncompressed.dcm"))[5, 5].tolist() == [254, 0, 0]


@pytest.mark.parametrize("name", ["MR_small_RLE.dcm", "MR_small_bigendian.dcm"])
def test_how_a_file_stores_its_values_changes_nothing(name: str) -> None:
    assert np.array_equal(array(content(name)), array(content("MR_small.dcm")))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SC_rgb_rle_2frame.dcm", "has 2 frames"),
        ("rtdose.dcm", "has 15 frames"),
        ("rtplan.dcm", "holds no picture"),
        ("SC_rgb_rle_16bit.dcm", "colours of more than 8 bits"),
        ("MR_truncated.dcm", "cannot be decoded"),
    ],
)
def test_what_is_no_single_picture_is_refused(name: str, words: str) -> None:
    with pytest.raises(UnseenError, match=rf"DICOM (image|file) a/b\.dcm .*{words}"):
        dicom.image_of(content(name), "a/b.dcm")


def test_a_folder_of_scans_is_a_data_set_and_a_scan_an_input(tmp_path: Path) -> None:
    for site, names in {"a": ("CT_small", "MR_small"), "b": ("MR_small_RLE", "CT_small")}.items():
        for label, name in zip(("ill", "well"), names, strict=True):
            place = tmp_path / "scans" / site / label
            place.mkdir(parents=True)
            shutil.copy(FILES / f"{name}.dcm", place / "1.DCM")
    data = load("folder", tmp_path / "scans", size=64, grey=True)
    assert data.names == ("a", "b") and data.classes == ("ill", "well")
    whole = Image.fromarray(array(content("CT_small.dcm")))
    small = np.asarray(whole.resize((64, 64), Image.Resampling.BILINEAR))
    assert torch.equal(data["a"].x[0, 0], torch.from_numpy(small.copy()))
    assert torch.equal(data["a"].x[1], data["b"].x[0])
    assert pixels(FILES / "CT_small.dcm") == pixels(content("CT_small.dcm")) == (128, 128)
    inputs = ImageInputs(View(64, grey=True))
    (items,) = read(inputs, [tmp_path / "scans" / "a"])
    assert [item.error for item in items] == [None, None]
    assert items[0].x is not None and torch.equal(items[0].x, data["a"].x[0])
    assert items[0].size == (128, 128)
