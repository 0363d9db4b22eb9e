"""A model for other runtimes, checked against itself on real inputs before it is written."""

import io
import json
import logging
import math
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unseen.core.atomic import write_atomically
from unseen.core.outputs import probabilities
from unseen.core.record_lines import Record
from unseen.core.templates import render
from unseen.errors import UnseenError, optional
from unseen.serving import directory
from unseen.serving.directory import Trained
from unseen.serving.reading.new_rows import Item
from unseen.serving.reading.real_inputs import real_inputs
from unseen.version import __version__

FILE = "model.onnx"
TOLERANCE = 1e-4
#: Roundings of a number by which runtimes, which add in other orders, may come apart.
ROUNDINGS = 16
#: Under this name the export's file says which model it is of.
ABOUT = "unseen"
#: The name of the axis of inputs.
AXIS = "N"


@dataclass(frozen=True)
class Exported:
    """What was written, and how near its numbers are to the model's.

    Attributes:
        path: The file.
        inputs: How many inputs were compared.
        difference: How far the export's numbers are from the model's, for the input that is nearest
            to its bound.
        allowed: The bound for that input.
        rounding: How far the model's numbers in bfloat16 are from those in float32, in which an
            export computes; None for a model that computes in float32 itself.
        unit: The unit of a difference, in words; empty where it has none.
        checked: Which inputs were compared, in words.
        faults: What of the files could not be used.
    """

    path: Path
    inputs: int
    difference: float
    allowed: float
    rounding: float | None = None
    unit: str = ""
    checked: str = ""
    faults: tuple[Item, ...] = ()


class Served(nn.Module):
    """What is exported: inputs to outputs and, for classes, probabilities."""

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self.network, self.trunk, self.trained = trained.model.module, trained.trunk, trained

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return _results(self.trained, self.trained.answered(x))


def _results(trained: Trained, outputs: Tensor) -> tuple[Tensor, ...]:
    return (outputs,) if trained.classes is None else (outputs, probabilities(outputs))


class OnnxModel:
    """An ONNX export, run by onnxruntime on the CPU."""

    def __init__(self, path: Path) -> None:
        instead = "leave out --runtime onnx"
        onnxruntime = optional("onnxruntime", "--runtime onnx needs", "onnx", instead)
        if not path.is_file():
            remedy = "`unseen export MODEL_DIR` writes one."
            raise UnseenError(f"there is no ONNX file {path}:", remedy=remedy)
        try:
            providers = ["CPUExecutionProvider"]
            self.session = onnxruntime.InferenceSession(str(path), providers=providers)
        except Exception as error:  # onnxruntime's own kinds share no base
            raise UnseenError(f"{path} cannot be run: {str(error).splitlines()[0]}") from None
        self.path = path
        about = self.session.get_modelmeta().custom_metadata_map.get(ABOUT, "{}")
        self.about: Record = json.loads(about)

    def __str__(self) -> str:
        return f"onnxruntime from {self.path.name}"

    def run(self, x: Tensor) -> list[Tensor]:
        """Return all results for inputs [N, ...]: outputs, and probabilities of classes."""
        return [torch.from_numpy(array) for array in self.session.run(None, {"x": x.numpy()})]

    def outputs(self, x: Tensor) -> Tensor:
        return self.run(x)[0]


def of_model(trained: Trained, path: Path | None = None) -> OnnxModel:
    """Open the ONNX export of a model; refuse one of another model."""
    exported = OnnxModel(path or trained.folder / FILE)
    if exported.about.get("tensors", trained.spec["tensors"]) != trained.spec["tensors"]:
        raise UnseenError(
            f"{exported.path} is of another model than {trained.folder}:", remedy="export it again."
        )
    return exported


def export(
    folder: Path,
    check: Sequence[Path] = (),
    data_dir: Path | None = None,
    out: Path | None = None,
    allow_code: bool = False,
) -> Exported:
    """Write `model.onnx`, if it reproduces the model's numbers.

    Args:
        folder: The model's directory.
        check: Real inputs to compare on, files as for `predict`. Without any, the data set of
            training is read again: its held-out domains, or all.
        data_dir: Where the files of the data set are.
        out: The file to write (default: in the model's directory).
        allow_code: See `directory.read`.

    Note:
        The numbers may differ by 1e-4, or by that share of the deviation that labels were
        standardised by, and by a few roundings of the number itself. The first axis of the input is
        free.
    """
    for name in ("onnx", "onnxscript", "onnxruntime"):
        optional(name, "an export needs", "onnx")
    trained, rounding = directory.read(folder, allow_code=allow_code), None
    real = real_inputs(trained, check, data_dir)
    x = real.x
    if trained.model.precision != "float32":
        # bfloat16 differs between runtimes: they round in other places, or lack it.
        before = trained.outputs(x)
        trained.model.precision = "float32"
        rounding = float((trained.outputs(x) - before).abs().max())
    target = out or folder / FILE
    content, results = _onnx(trained, x)
    # All of them, one alone, and two: the first axis is free.
    with _quiet():
        parts = (x, x[:1], x[:2])
        _, difference, allowed = max(_apart(trained, part, results(part)) for part in parts)
    if not difference <= allowed:
        raise UnseenError(
            f"the export's numbers differ from the model's by up to {difference:.1e} on "
            f"{len(x)} inputs, more than {allowed:.0e}: nothing was written."
        )
    write_atomically(target, content)
    label = trained.spec.get("label")
    unit = f" in the units of {label['name']}" if label is not None else ""
    words = real.checked, real.faults
    exported = Exported(target, len(x), difference, allowed, rounding, unit, *words)
    notes = render(
        "unseen.serving",
        "export.md.jinja",
        export=exported,
        spec=trained.spec,
        steps=trained.spec["input"]["steps"],
        version=__version__,
        torch=torch.__version__,
    )
    write_atomically(target.with_name(target.name + ".md"), notes.encode())
    return exported


def tolerance(trained: Trained, outputs: Tensor) -> Tensor:
    """Return how far an export's numbers may be from the model's, for each row [N].

    Returns:
        A share of the unit that the model was trained in, and a few roundings of the row's largest
        number.
    """
    unit = 1.0 if trained.scale is None else trained.scale.deviation
    rounding = (
        ROUNDINGS * torch.finfo(torch.float32).eps * outputs.double().abs().flatten(1).amax(1)
    )
    return TOLERANCE * unit + rounding


def _apart(trained: Trained, x: Tensor, results: Sequence[Tensor]) -> tuple[float, float, float]:
    """Return share of its bound, difference and bound of the row that is nearest to its bound."""
    rows = [(0.0, 0.0, TOLERANCE)]
    for a, b in zip(results, _results(trained, trained.outputs(x)), strict=True):
        differences, bounds = (
            (a.double() - b.double()).abs().flatten(1).amax(1),
            tolerance(trained, b),
        )
        shares = (differences / bounds).nan_to_num(math.inf)  # NaN is beyond all
        rows += zip(shares.tolist(), differences.tolist(), bounds.tolist(), strict=True)
    return max(rows)


def _program(trained: Trained, x: Tensor) -> Any:
    fresh = directory.read(trained.folder, allow_code=True)
    parts = [part for part in (fresh.model.module, fresh.trunk) if part is not None]
    every = (tensor for part in parts for tensor in (*part.parameters(), *part.buffers()))
    for tensor in every:  # with memory of its own
        tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)
        tensor.requires_grad_(False)
        tensor.grad = None
    fresh.model.channels_last, fresh.model.precision = False, "float32"
    served = Served(fresh).eval()
    example = torch.cat([x, x, x])[:3]  # an axis of length 1 would count as fixed
    shapes = {"x": {0: torch.export.Dim("batch", min=1)}}
    return torch.export.export(served, (example,), dynamic_shapes=shapes, strict=False)


def _onnx(trained: Trained, x: Tensor) -> tuple[bytes, Any]:
    names = ["outputs"] if trained.classes is None else ["outputs", "probabilities"]
    with _quiet():
        program = torch.onnx.export(
            _program(trained, x),
            input_names=["x"],
            output_names=names,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        assert program is not None
        proto = program.model_proto
    _name_axis(proto)
    entry = proto.metadata_props.add()
    entry.key, entry.value = ABOUT, about(trained)
    content: bytes = proto.SerializeToString()
    with tempfile.TemporaryDirectory(prefix="unseen-") as place:
        path = Path(place) / FILE
        path.write_bytes(content)
        runtime = OnnxModel(path)
    return content, runtime.run


def _name_axis(proto: Any) -> None:
    """Give the free axis the name that the documents give it, in place of the exporter's."""
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_param = AXIS


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters, and make one sentence of their failures."""
    chatter = io.StringIO()
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(chatter), redirect_stderr(chatter):
            warnings.simplefilter("ignore")
            yield
    except UnseenError:
        raise
    except Exception as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        raise UnseenError(
            f"this model cannot be exported as onnx: {type(error).__name__}: {first.strip()}.",
            remedy="`unseen predict` and `unseen evaluate` use it as it is.",
        ) from error
    finally:
        logging.disable(before)


def about(trained: Trained) -> str:
    """Return the description that an export carries, as JSON."""
    keys = (
        "name",
        "fingerprint",
        "tensors",
        "classes",
        "input",
        "method",
        "model",
        "label",
        "times",
    )
    return json.dumps({key: trained.spec[key] for key in keys if key in trained.spec})
