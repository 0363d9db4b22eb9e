"""DICOM files as images of 8 bits: what a viewer shows of them first."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from unseen.errors import UnseenError, optional

if TYPE_CHECKING:
    from PIL.Image import Image

#: Suffixes of files that are taken as DICOM; many archives write none, which need one first.
SUFFIXES = (".dcm", ".dicom")
Array = np.ndarray[Any, np.dtype[Any]]


def is_dicom(content: bytes) -> bool:
    """Return whether a file begins as DICOM's do: 128 bytes of anything, then four letters."""
    return content[128:132] == b"DICM"


def image_of(content: bytes, where: str) -> Image:
    """Return a DICOM file's picture, in 8 bits of grey or of three colours.

    Stored values become those of the modality (rescale slope and intercept, or a table). Grey ones
    then become brightness by the file's first window, or table of values of interest; without
    either the least value of the picture is black and the largest white. Where small values mean
    bright (MONOCHROME1) it is turned over. Padding is black.

    Args:
        content: The file.
        where: What an error calls it.
    """
    from PIL import Image

    data = _read(content, where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values = data.pixel_array
            colour = int(data.SamplesPerPixel) == 3
            if data.PhotometricInterpretation == "PALETTE COLOR":
                values = _pixels().apply_color_lut(values, data)
                values, colour = values >> (8 if values.dtype == np.uint16 else 0), True
    except Exception as error:  # decoders of compressed data share no base
        raise UnseenError(
            f"the DICOM image {where} cannot be decoded ({_first(error)}):",
            remedy="convert it to an uncompressed one, or to PNG.",
        ) from error
    if values.ndim != (3 if colour else 2):
        frames = f"{len(values)} frames" if values.ndim == (4 if colour else 3) else "another form"
        raise UnseenError(
            f"the DICOM image {where} has {frames}; one picture is taken from a file:",
            remedy="write the frames as files of their own.",
        )
    if colour:
        if values.max(initial=0) > 255:
            raise UnseenError(
                f"the DICOM image {where} has colours of more than 8 bits:",
                remedy="convert it to 8 bits.",
            )
        return Image.fromarray(np.ascontiguousarray(values.astype(np.uint8)), "RGB")
    return Image.fromarray(np.ascontiguousarray(grey(values, data)), "L")


def size_of(content: bytes) -> tuple[int, int]:
    """Return width and height, by the head alone."""
    data = _read(content, "", head=True)
    return int(data.Columns), int(data.Rows)


def grey(stored: Array, data: Any) -> Array:
    """Return stored values [H, W] as brightness, uint8; see `image_of`."""
    padding = data.get("PixelPaddingValue")
    empty = np.zeros(stored.shape, bool) if padding is None else stored == padding
    values = _pixels().apply_modality_lut(stored, data)
    table = data.get("VOILUTSequence")
    if table:
        looks = _pixels().apply_voi(np.rint(values).astype(np.int64), data)
        share = looks.astype(np.float64) / (2.0 ** int(table[0].LUTDescriptor[2]) - 1)
    elif data.get("WindowCenter") is not None and data.get("WindowWidth") is not None:
        centre, width = (_first_of(data[name].value) for name in ("WindowCenter", "WindowWidth"))
        share = window(values, centre, width, str(data.get("VOILUTFunction", "LINEAR")))
    else:
        inside = values[~empty].astype(np.float64)
        low, high = (inside.min(), inside.max()) if inside.size else (0.0, 0.0)
        share = (values - low) / (high - low or 1.0)
    share = np.clip(share, 0, 1)
    if data.PhotometricInterpretation == "MONOCHROME1":
        share = 1 - share
    brightness: Array = np.rint(255 * np.where(empty, 0.0, share)).astype(np.uint8)
    return brightness


def window(values: Array, centre: float, width: float, function: str = "LINEAR") -> Array:
    """Return values as shares of a window, 0 to 1 inside.

    Source:
        DICOM PS3.3, C.11.2.1.2 and C.11.2.1.3.
    """
    x = values.astype(np.float64)
    if function == "SIGMOID":
        share: Array = 1 / (1 + np.exp(-4 * (x - centre) / width))
        return share
    if function == "LINEAR_EXACT":
        return (x - centre) / width + 0.5
    if width <= 1:  # a threshold
        return (x > centre - 0.5).astype(np.float64)
    return (x - (centre - 0.5)) / (width - 1) + 0.5


def _read(content: bytes, where: str, head: bool = False) -> Any:
    pydicom = optional("pydicom", "a DICOM image needs", "dicom", "convert the images to PNG")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = pydicom.dcmread(io.BytesIO(content), stop_before_pixels=head)
    except Exception as error:
        raise UnseenError(
            f"the DICOM image {where} cannot be read ({_first(error)}):",
            remedy="remove or replace it.",
        ) from error
    if not head and "PixelData" not in data:
        raise UnseenError(
            f"the DICOM file {where} holds no picture:", remedy="remove it from the folder."
        )
    return data


def _pixels() -> Any:
    return optional("pydicom.pixels", "a DICOM image needs", "dicom", "convert the images to PNG")


def _first_of(value: Any) -> float:
    return float(value if np.isscalar(value) or not hasattr(value, "__len__") else value[0])


def _first(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
