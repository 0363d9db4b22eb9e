"""Where a package of an extra is absent: the error names the extra and what works without it."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from unseen.api.functions import predict
from unseen.cli.model_server import Address, serve
from unseen.cli.model_use import Loading
from unseen.data import load
from unseen.data.image_files.dicom import image_of
from unseen.data.networks.pretrained import PACKAGES, source
from unseen.engine.processes import in_ray
from unseen.errors import UnseenError, optional
from unseen.flower import strategy
from unseen.methods.combine import JacobianDescent
from unseen.privacy.accounting import opacus
from unseen.privacy.masks.shares import split
from unseen.privacy.seal import Scheme
from unseen.privacy.wire import primitives
from unseen.serving.answer_options import PredictOptions
from unseen.serving.export import OnnxModel, export
from unseen.serving.http_app import app
from unseen.serving.http_service import Service
from unseen.sites.control import needs_flower
from unseen.studies.execution.runner import way
from unseen.studies.execution.sampler import needed
from unseen.studies.settings.study import StudySpec
from unseen.studies.tracking.trackers import check

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
CERTIFICATES = "unseen.sites.kits.certificates"


class Case(NamedTuple):
    """A package of an extra, what needs it, and words of what works without it."""

    package: str
    extra: str
    use: Callable[[Path], object]
    instead: str = ""


SERVED = Address(), PredictOptions(), Loading()
CASES = (
    Case("flwr", "flower", lambda _: needs_flower(), "unseen study"),
    Case("flwr", "flower", lambda _: strategy(JacobianDescent("nash-mtl"))),
    Case("flwr", "flower", lambda _: way(StudySpec(), "flower-simulation"), "--backend in-process"),
    Case("ray", "flower", lambda _: [*in_ray([], 1)], "--executor processes"),
    Case("pandas", "pandas", lambda _: predict("model", []), "the command"),
    Case("cryptography", "flower", lambda _: importlib.import_module(CERTIFICATES)),
    Case("cryptography", "he", lambda _: primitives("hashes")),
    Case("tenseal", "he", lambda _: Scheme(1), "masks()"),
    Case("Crypto", "he", lambda _: split(bytes(16), 2, ["a", "b"])),
    Case("opacus", "dp", lambda _: opacus("accountants")),
    Case("lifelines", "survival", lambda _: load("lung"), "lung.csv"),
    Case("pydicom", "dicom", lambda _: image_of(bytes(128) + b"DICM", "a.dcm"), "PNG"),
    Case("optuna", "tune", lambda _: needed()),
    Case("fastapi", "serve", lambda _: app(cast("Service", None)), "unseen predict"),
    Case("uvicorn", "serve", lambda folder: serve(folder, *SERVED), "unseen predict"),
    Case("tensorboard", "tensorboard", lambda _: check(["tensorboard"]), "the bar of the run"),
    *(
        Case(package, "mlflow", lambda _: check(["mlflow"]), "the bar of the run")
        for package in ("mlflow", "sqlalchemy", "alembic")
    ),
    *(Case(package, "onnx", export) for package in ("onnx", "onnxscript", "onnxruntime")),
    Case("onnxruntime", "onnx", OnnxModel, "leave out --runtime onnx"),
    *(
        Case(carried.module, "pretrained", lambda _, name=name: source(name), "bn-cnn")
        for name, carried in PACKAGES.items()
    ),
    *(
        Case(package, "torchjd", lambda _: JacobianDescent("upgrad").init(2, 2), "nash-mtl")
        for package in ("torchjd", "cvxpy", "quadprog")
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.extra}-{case.package}")
def test_an_absent_package_is_named_with_its_extra(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n == case.package or n.startswith(f"{case.package}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, case.package, None)
    monkeypatch.delitem(sys.modules, CERTIFICATES, raising=False)
    with pytest.raises(UnseenError) as caught:
        case.use(tmp_path)
    error = caught.value
    assert f"needs {case.package}, which is not installed." in error.what.replace("need ", "needs ")
    assert (
        f'Run pip install "unseen[{case.extra}]"' in error.remedy and case.instead in error.remedy
    )
    assert (", or " in error.remedy) == bool(case.instead)
    assert (error.expected, error.found) == (case.package, "is not installed")


def test_every_extra_that_something_cannot_do_without_is_above() -> None:
    extras = PROJECT["optional-dependencies"].keys() - {
        "dev",
        "docs",
        "fast",
    }  # boost is slower without
    assert {case.extra for case in CASES} == extras


def test_what_is_named_instead_needs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for case in CASES:
        monkeypatch.setitem(sys.modules, case.package, None)
    assert JacobianDescent("nash-mtl").init(2, 2)
    assert callable(way(StudySpec(), "in-process", "processes"))


def test_a_package_that_is_there_and_fails_is_not_called_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "halfway.py").write_text("raise ImportError('libfoo.so is of another version')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnseenError, match=r"cannot be imported: libfoo\.so is of another"):
        optional("halfway", "this needs", "he")
