"""Ghifary's views, from an npz file and from a pickle that must not be trusted."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from unseen.data import load
from unseen.errors import UnseenError

Pair = tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]


def views(count: int = 6, n: int = 7) -> list[Pair]:
    rng = np.random.default_rng(0)
    return [(rng.random((n, 256)), rng.integers(0, 10, n)) for _ in range(count)]


def packed(folder: Path, content: bytes) -> None:
    (folder / "MNIST_6rot.pkl.gz").write_bytes(gzip.compress(content))


def python2(pairs: list[Pair]) -> bytes:
    """The pickle that Python 2 and numpy 1 write in protocol 2: bytes as plain strings."""

    def array(a: npt.NDArray[np.generic]) -> bytes:
        kind = a.dtype.str[1:].encode()
        sizes = b"".join(b"J" + struct.pack("<i", n) for n in a.shape)
        rebuild = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
        dtype = b"cnumpy\ndtype\n(U\x02" + kind + b"K\x00K\x01tR"
        dtype += b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        raw = a.tobytes()
        state = b"(K\x01(" + sizes + b"t" + dtype + b"\x89T" + struct.pack("<i", len(raw)) + raw
        return rebuild + state + b"tb"

    return b"\x80\x02](" + b"".join(array(x) + array(y) + b"\x86" for x, y in pairs) + b"e."


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("writer", ["python 2", "python 3, protocol 2", "python 3, newest"])
@pytest.mark.parametrize("folder", [".", "rotated_mnist_mtae", "rotated-mnist"])
def test_the_original_pickle_is_read(tmp_path: Path, writer: str, folder: str) -> None:
    pairs = views()
    (tmp_path / folder).mkdir(exist_ok=True)
    content = {
        "python 2": python2(pairs),
        "python 3, protocol 2": pickle.dumps(pairs, protocol=2),
        "python 3, newest": pickle.dumps(pairs),
    }[writer]
    packed(tmp_path / folder, content)
    data = load("rotated-mnist", tmp_path, protocol="ghifary")
    assert data.names == ("M0", "M15", "M30", "M45", "M60", "M75")
    for domain, (x, y) in zip(data.domains, pairs, strict=True):
        assert domain.x.dtype == torch.float32 and domain.x.shape == (7, 1, 16, 16)
        assert np.array_equal(domain.x.numpy().reshape(7, 256), x.astype(np.float32))
        assert domain.y.tolist() == y.tolist()


class Evil:
    """Runs a shell command when it is unpickled by a reader that lets it."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "was-run"
    content = pickle.dumps([*views(5), Evil(marker)], protocol=protocol)
    packed(tmp_path, content)
    with pytest.raises(UnseenError, match=r"system, which no array needs"):
        load("rotated-mnist", tmp_path, protocol="ghifary")
    assert not marker.exists()
    pickle.loads(content)  # the trap is real: an ordinary reader springs it
    assert marker.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"c_codecs\nencode\n(Vx\nVrot13\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"not a pickle",
        b"",
        pickle.dumps({"x": 1}),
        pickle.dumps([1, 2, 3]),
        pickle.dumps(["ab", "cd"]),
    ],
)
def test_other_pickles_are_refused_with_the_files_name(tmp_path: Path, content: bytes) -> None:
    packed(tmp_path, content)
    with pytest.raises(UnseenError, match=r"MNIST_6rot\.pkl\.gz"):
        load("rotated-mnist", tmp_path, protocol="ghifary")


def test_too_few_views_are_refused(tmp_path: Path) -> None:
    packed(tmp_path, pickle.dumps(views(5), protocol=2))
    with pytest.raises(UnseenError, match="5 views"):
        load("rotated-mnist", tmp_path, protocol="ghifary")


def test_an_npz_file_is_read_and_objects_in_it_are_not(tmp_path: Path) -> None:
    pairs = views()
    file = tmp_path / "mnist_6rot_16x16_float32.npz"
    x = np.stack([x for x, _ in pairs]).reshape(6, 7, 16, 16).astype(np.float32)
    np.savez(file, x=x, y=np.stack([y for _, y in pairs]).astype(np.uint8))
    data = load("rotated-mnist", tmp_path, protocol="ghifary")
    assert np.array_equal(data["M30"].x.numpy().squeeze(1), x[2])
    np.savez(file, x=x)
    with pytest.raises(UnseenError, match="y is not a file in the archive"):
        load("rotated-mnist", tmp_path, protocol="ghifary")
    np.savez(file, x=np.array([None], dtype=object), y=np.zeros(1))
    with pytest.raises(UnseenError, match="npz"):
        load("rotated-mnist", tmp_path, protocol="ghifary")


def test_the_real_views_are_the_same_1000_digits(real_data: Path) -> None:
    data = load("rotated-mnist", real_data, protocol="ghifary")
    for domain in data.domains:
        assert domain.x.shape == (1000, 1, 16, 16)
        assert domain.y.bincount().tolist() == [100] * 10
        assert torch.equal(domain.y, data["M0"].y)
        assert float(domain.x.min()) >= 0 and float(domain.x.max()) <= 1
