"""A model's directory: what is written, and what is checked when it is read."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from unseen.core.atomic import write_atomically
from unseen.core.exchange import Blueprint, Method
from unseen.core.label_scale import Scale
from unseen.core.labels import kind_of
from unseen.core.record_lines import Record
from unseen.core.turn import keyed
from unseen.core.types import Inbox
from unseen.core.vector import Model
from unseen.data.networks import build
from unseen.data.networks.mixture import lean
from unseen.data.networks.stages import cut
from unseen.errors import UnseenError
from unseen.methods.compose import method as compose
from unseen.serving import event_times, foreign_code
from unseen.serving.decisions import KEY, Decisions
from unseen.serving.event_times import Times
from unseen.serving.reading.bounds import Bounds, bounds_of
from unseen.serving.reading.inputs import Inputs, from_json
from unseen.studies.execution.frozen import TRUNK, Trunk
from unseen.studies.execution.runtime import adapted, as_model, formed
from unseen.studies.execution.watcher import INBOX, SITES
from unseen.studies.settings.study import StudySpec, recorded

SPEC, TENSORS = "model.json", "model.safetensors"
COPY = "copy the directory again, or train the model again."
FORMAT = 1
#: The format of a model whose outputs need conversion into the label's units, and of one whose
#: outputs are calibrated.
SCALED, CALIBRATED = 2, 3
#: What `task` says of a model of masks.
SEGMENTATION = "segmentation"
#: The format of a model of times until an event.
TIMED = 4


@dataclass(frozen=True)
class Trained:
    """A model in use: what its directory says, and all that its predictions need.

    Attributes:
        folder: The directory.
        spec: The content of `model.json`.
        inputs: What the model takes.
        method: The method that trained it and says how it predicts.
        model: The network with its weights.
        inbox: The entries that the method's prediction reads.
        buffers: BatchNorm statistics for everyone but `sites`.
        sites: Training site -> BatchNorm statistics that it kept for itself.
        bounds: What training's inputs were like.
        decisions: What is kept of the sources to act by.
        trunk: The frozen part of the network, which makes features of images, if there is one.
    """

    folder: Path
    spec: Record
    inputs: Inputs
    method: Method
    model: Model
    inbox: Inbox
    buffers: Tensor
    sites: Mapping[str, Tensor]
    bounds: Bounds
    decisions: Decisions
    trunk: nn.Module | None = None

    def __repr__(self) -> str:
        what = self.classes or ("times" if self.times else "numbers",)
        return (
            f"<Trained {self.spec['name']}: {self.method.name}, {', '.join(what)}; {self.folder}>"
        )

    @property
    def scale(self) -> Scale | None:
        """What the numbers to predict were standardised by; None where they were not."""
        label = self.spec.get("label")
        return Scale(label["mean"], label["deviation"]) if label is not None else None

    @property
    def times(self) -> Times | None:
        """What a model of times until an event says; None for other models."""
        return Times.read(self.spec)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes, or None for a model that predicts a number, or times."""
        return tuple(self.spec["classes"]) if self.spec["classes"] is not None else None

    @property
    def masks(self) -> bool:
        """Whether it predicts a class for every pixel."""
        return self.spec.get("task") == SEGMENTATION

    def at(self, site: str | None) -> None:
        """Use a training site's own BatchNorm statistics, or those for everyone else."""
        if site is not None and site not in self.sites:
            raise UnseenError(
                f"the model has no statistics of the site {site!r} alone (it has those of: "
                f"{', '.join(sorted(self.sites)) or 'none'}).",
                remedy="Train with training.buffers = 'local', which keeps each site's.",
            )
        self.model.buffers.copy_(self.sites.get(site or "", self.buffers))

    def outputs(self, x: Tensor) -> Tensor:
        """Return outputs [N, C], or [N, C, H, W], for inputs [N, ...]; numbers in their units."""
        self.model.module.eval()
        with torch.no_grad():
            return self.answered(x.to(self.model.device)).cpu()

    def answered(self, x: Tensor) -> Tensor:
        """Return the outputs [N, C] where the model is; exports are made of this function."""
        features = x if self.trunk is None else self.trunk(x)
        return self.calibrated(self.method.predict(self.model, self.inbox, features))

    def calibrated(self, outputs: Tensor) -> Tensor:
        """Return the network's outputs [N, C] calibrated, or in the label's units."""
        if self.decisions.calibration is not None:
            return self.decisions.calibration(outputs)
        if self.scale is None:
            return outputs
        restored = self.scale.restored(outputs)
        return restored if self.scale.far else restored.to(outputs.dtype)


def write(folder: Path, spec: Record, tensors: bytes) -> None:
    """Write the tensors, then the description with their digest; each in one step."""
    form = SCALED if spec.get("label") is not None else FORMAT
    form = CALIBRATED if "calibration" in spec.get(KEY, {}) else form
    form = TIMED if event_times.KEY in spec else form
    full = {"format": form, **spec, "tensors": hashlib.sha256(tensors).hexdigest()}
    full["fingerprint"] = fingerprint(full)
    write_atomically(folder / TENSORS, tensors)
    text = json.dumps(full, indent=1, ensure_ascii=False) + "\n"
    write_atomically(folder / SPEC, text.encode())


def fingerprint(spec: Record) -> str:
    """Return 16 hexadecimal digits that differ whenever two models or their descriptions do."""
    rest = {key: value for key, value in spec.items() if key != "fingerprint"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


def read_spec(folder: Path) -> Record:
    """Read the description, if it is whole."""
    path = folder / SPEC
    try:
        spec = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UnseenError(
            f"{folder} is not a model's directory: it has no {SPEC}.",
            remedy="`unseen train FILE.toml --out DIR` makes one.",
        ) from None
    except (OSError, ValueError) as error:
        raise UnseenError(f"{path} is damaged ({error}):", remedy=COPY) from None
    if not isinstance(spec, dict) or spec.get("format") not in range(FORMAT, TIMED + 1):
        form = spec.get("format") if isinstance(spec, dict) else None
        raise UnseenError(
            f"{path} is of format {form!r}; this version reads formats {FORMAT} to {TIMED}.",
            remedy="Train the model again, or take the version of unseen that wrote it.",
        )
    if spec.get("fingerprint") != fingerprint(spec):
        raise UnseenError(
            f"{path} was changed after it was written: its fingerprint differs;", remedy=COPY
        )
    return spec


def read(folder: str | Path, device: str = "cpu", allow_code: bool = False) -> Trained:
    """Read the model of a directory. Only JSON and safetensors are read; nothing is unpickled.

    Args:
        folder: The directory.
        device: `cpu` or `cuda`.
        allow_code: Whether parts of the user's own (`module:factory`) may be imported, from the
            current directory as in training. Without it nothing but `unseen` runs.
    """
    from unseen.studies.execution.plan import check_device

    check_device(device)
    folder = Path(folder)
    spec = read_spec(folder)
    try:
        foreign_code.check(spec, allow_code)
        return _opened(folder, spec, _tensors(folder, spec), device)
    except UnseenError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RuntimeError) as e:
        # Its fingerprint is right: it was written like this.
        what = f"{folder / SPEC} lacks what it must say, or says it otherwise"
        raise UnseenError(f"{what} ({type(e).__name__}: {e});", remedy=COPY) from e


def _opened(folder: Path, spec: Record, tensors: Mapping[str, Tensor], device: str) -> Trained:
    study = StudySpec(**recorded(spec["study"]))
    classes = spec["classes"]
    kind = kind_of(classes, spec.get("task") == SEGMENTATION, event_times.KEY in spec)
    method = compose(spec["method"], study.training.build(kind))
    trunk, shape = trunk_of(spec, study, tensors), tuple(spec["input"]["shape"])
    inputs_shape = shape if trunk is None else trunk.shape

    def another(m: int) -> nn.Module:
        return formed(build(spec["model"], shape, spec["outputs"], keyed(f"{m}/model")), study)

    plan = Blueprint(
        another(0),
        inputs_shape,
        spec["outputs"],
        another,
        None if classes is None else len(classes),
        study.rounds,
        len(spec["sites"]["sources"]),
        study.frozen,
    )
    weights, network = {n: t for n, t in tensors.items() if "/" not in n}, adapted(method, plan)
    if not network.state_dict().keys() <= weights.keys():
        network = lean(network)
    model = as_model(network, study, inputs_shape, device)
    _fits(spec, weights, model.module.state_dict())
    model.module.load_state_dict(weights)
    inbox, sites = (
        {n.removeprefix(kind): t.to(device) for n, t in tensors.items() if n.startswith(kind)}
        for kind in (INBOX, SITES)
    )
    inbox |= {"model": model.vector, "buffers": model.buffers}
    inputs = from_json(spec["input"])
    buffers, bounds = model.buffers.clone(), bounds_of(spec, inputs)
    decisions = Decisions.read(spec, tensors)
    trunk = trunk.to(device) if trunk is not None else None
    return Trained(
        folder, spec, inputs, method, model, inbox, buffers, sites, bounds, decisions, trunk
    )


def trunk_of(spec: Record, study: StudySpec, tensors: Mapping[str, Tensor]) -> Trunk | None:
    """Return the frozen part of a model's network, whose tensors its directory has."""
    if not study.frozen:
        return None
    shape = tuple(spec["input"]["shape"])
    network = build(spec["model"], shape, spec["outputs"], keyed("0/model"))
    frozen, _ = cut(network, study.freeze)
    own = {n.removeprefix(TRUNK): t for n, t in tensors.items() if n.startswith(TRUNK)}
    _fits(spec, own, frozen.state_dict())
    frozen.load_state_dict(own)
    return Trunk(frozen, shape, study.features == "float16")


def _tensors(folder: Path, spec: Record) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = folder / TENSORS
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UnseenError(
            f"the model's tensors cannot be read from {path} ({error.strerror}):", remedy=COPY
        ) from None
    if hashlib.sha256(content).hexdigest() != spec["tensors"]:
        raise UnseenError(
            f"{path} is not the file that {SPEC} describes: its digest is another;", remedy=COPY
        )
    try:
        return load(content)
    except SafetensorError as error:
        raise UnseenError(f"{path} is not a safetensors file: {error}.") from None


def _fits(spec: Record, tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    faults = [f"{name} is missing" for name in expected.keys() - tensors.keys()]
    faults += [f"{name} has no place" for name in tensors.keys() - expected.keys()]
    faults += [
        f"{name} is {list(tensors[name].shape)} where {list(expected[name].shape)} was expected"
        for name in tensors.keys() & expected.keys()
        if tensors[name].shape != expected[name].shape
    ]
    if faults:
        raise UnseenError(
            f"{TENSORS} does not fit the model {spec['model']}: {'; '.join(sorted(faults)[:5])}.",
            remedy="Use the code that trained it, or train it again.",
        )
