"""Initial weights from a file: what fits is taken, and what differs is refused by name."""

from __future__ import annotations

import hashlib
import pickle
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from unseen.errors import UnseenError, choice

#: What becomes of a first convolution for another number of bands; None: it is refused.
Bands = Literal["fresh", "mean"]
#: Keys under which training scripts keep the tensors, and what they put before the names.
WRAPPERS = ("state_dict", "model_state_dict", "model")
PREFIXES = ("module.", "model.")
#: How many differing tensors an error names, of each kind.
NAMED = 20
#: DenseNet files of 2017 name norm.1 what is norm1 since.
_DOTTED = re.compile(r"(\bdenselayer\d+\.(?:norm|conv))\.(\d\.)")


@dataclass(frozen=True)
class Report:
    """What became of a file's tensors.

    Attributes:
        origin: The file.
        count: How many of the module's tensors came from the file.
        total: How many the module has.
        missing: The module's that the file lacks.
        unexpected: The file's that the module lacks.
        wrong: Those of another shape.
        notes: Why these differences were let pass.
    """

    origin: str
    count: int
    total: int
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = f"weights {self.origin}: {self.count} of {self.total} tensors taken"
        return "; ".join((head, *self.notes)) + "."


@dataclass(frozen=True)
class Source:
    """A file of weights as it was when the study was planned.

    Attributes:
        path: Where it lies.
        digest: 16 digits of the SHA-256 of its bytes.
        bands: See `fill`.
    """

    path: Path
    digest: str
    bands: Bands | None = None

    @classmethod
    def of(cls, path: str | Path, folder: Path | None, bands: Bands | None = None) -> Source:
        """Find the file at `path`: absolute, or below the current folder, or below `folder`."""
        places = [Path(path).expanduser(), *([folder / path] if folder is not None else [])]
        for place in places:
            if place.is_file():
                return cls(place.absolute(), _digest(place), bands)
        raise UnseenError(
            f"no file of weights at {' nor at '.join(map(str, places))}.",
            remedy="Name a .pth or .safetensors file, absolute or relative to the current or the "
            "data folder. Nothing is downloaded: torchvision's documentation of its models names "
            "the file of each and says where it lies. weights = '' begins at random.",
        )

    def load(self, module: nn.Module) -> Report:
        """Load the file into a module; refuse it if it is no longer what it was."""
        if _digest(self.path) != self.digest:
            what = f"{self.path} changed while the study was running."
            raise UnseenError(what, remedy="Run it again, into another folder.")
        return fill(module, read(self.path), self.bands, self.path.name)

    def __str__(self) -> str:
        return f"{self.path.name} (sha256 {self.digest})"


def read(path: str | Path) -> dict[str, Tensor]:
    """Read the named tensors of a file, on the CPU. No code in it is run: pickles are refused."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UnseenError(
            f"{path} holds more than tensors (a pickled object, which could run code when it is "
            "read) or is damaged, and is not loaded.",
            remedy="Where you trust it, save the tensors alone: "
            "torch.save(model.state_dict(), ...), or as safetensors.",
        ) from None
    except (OSError, EOFError, RuntimeError, KeyError, ValueError, SafetensorError) as error:
        why = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
        what = f"{path} cannot be read as a whole .pth or .safetensors file of weights ({why})."
        raise UnseenError(what, remedy="Fetch or save it again.") from None
    return _tensors(content, path)


def fill(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    bands: Bands | None = None,
    origin: str = "the file",
) -> Report:
    """Copy tensors into a module by their names in its state dict.

    Args:
        module: What is filled. Its head (the last linear layer, and a part called `bottleneck`
            before it) keeps the weights it has where it is made for other outputs or the file has
            none of its name. Whatever else is missing, unexpected or of another shape is refused.
        tensors: By name; prefixes `module.` and `model.` are cut off.
        bands: What becomes of a first convolution for another number of bands: it keeps its weights
            ("fresh") or each of its bands takes the mean over the file's, scaled so that equal
            bands give what they gave ("mean"); None: it is refused.
        origin: The file, as errors name it.

    Raises:
        UnseenError: The tensors do not fit; the module is left as it was.
    """
    if bands is not None:
        choice("bands", bands, ("fresh", "mean"))
    own = module.state_dict()
    file = _renamed(tensors, own)
    different = _Difference(own, file)
    notes = (*_head(module, different), *_first(module, different, bands, origin))
    different.refuse(origin)
    names = [name for name in own if name in file and name not in different.stay]
    for name in names:
        if not bool(torch.isfinite(file[name]).all()):
            what = f"{origin}: {name!r} holds NaN or infinite values."
            raise UnseenError(what, remedy="Take another file.")
    with torch.no_grad():
        for name in names:
            own[name].copy_(file[name])
    total = sum(name in file or not _counts(name) for name in own)
    differences = different.missing, different.unexpected, different.wrong
    return Report(origin, len(names), total, *differences, notes)


class _Difference:
    """Where names and shapes differ; BatchNorm's counts of batches, which old files lack, do not.

    Attributes:
        own: The module's tensors.
        file: The file's.
        missing: Names of the module's that the file lacks.
        unexpected: Names of the file's that the module lacks.
        wrong: Names of those of another shape.
        stay: Names of the module's that stay as they are.
        excused: Names whose difference is let pass.
    """

    def __init__(self, own: dict[str, Tensor], file: dict[str, Tensor]) -> None:
        self.own, self.file = own, file
        self.missing = tuple(n for n in own if n not in file and not _counts(n))
        self.unexpected = tuple(n for n in file if n not in own and not _counts(n))
        self.wrong = tuple(n for n in own if n in file and file[n].shape != own[n].shape)
        self.stay, self.excused = set[str](), set[str]()

    def refuse(self, origin: str) -> None:
        """Refuse what is not excused, up to `NAMED` of each kind by name."""
        kinds = ("the file lacks", "the model has no", "of another shape")
        faults = []
        for what, names in zip(kinds, (self.missing, self.unexpected, self.wrong), strict=True):
            if rest := [name for name in names if name not in self.excused]:
                few = ", ".join(map(self._describe, rest[:NAMED]))
                more = f" and {len(rest) - NAMED} more" if len(rest) > NAMED else ""
                faults.append(f"{what}: {few}{more}")
        if faults:
            raise UnseenError(
                f"{origin} does not fit the model; {'; '.join(faults)}.",
                remedy="Take the model that the file is of, or rename its tensors to the model's "
                "names; only the last linear layer may differ, which then begins at random.",
            )

    def _describe(self, name: str) -> str:
        if name not in self.wrong:
            return repr(name)
        return f"{name!r} ({list(self.file[name].shape)}, here {list(self.own[name].shape)})"


def _head(module: nn.Module, different: _Difference) -> list[str]:
    """Keep a head that is made for other outputs, or that the file does not have, and say so."""
    linear = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    head, own, file = linear[-1] if linear else "", different.own, different.file
    weight = f"{head}.weight"
    before = [name for name in own if name.startswith("bottleneck.") and not _counts(name)]
    added = bool(before) and not any(name in file for name in before)
    renamed = _lone_layer(different) if weight in different.missing else ()
    if weight in different.wrong:
        (theirs, *inputs), (ours, *expected) = file[weight].shape, own[weight].shape
        if not added and (inputs != expected or theirs == ours):
            return []
        shapes = f"{theirs} outputs" if theirs != ours else f"{inputs[0]} inputs"
        reason = f"since the file's has {shapes}"
    elif weight in different.missing:
        other = renamed[0].rpartition(".")[0] if renamed else ""
        reason = f"since the file's is called {other!r}" if other else "which the file lacks"
    else:
        return []
    parts = (f"{head}.", "bottleneck.") if added else (f"{head}.",)
    different.stay.update(name for name in own if name.startswith(parts))
    different.excused.update(different.stay, renamed)
    begins = "and the bottleneck before it begin" if added else "begins"
    return [f"the head {head!r} {begins} with random weights, {reason}"]


def _lone_layer(different: _Difference) -> tuple[str, ...]:
    """The file's tensors that the module lacks, if they are one linear layer."""
    names = different.unexpected
    layers = {name.rpartition(".")[0] for name in names}
    flat = all(different.file[name].ndim <= 2 for name in names)
    return names if len(layers) == 1 and len(names) <= 2 and flat else ()


def _first(
    module: nn.Module, different: _Difference, bands: Bands | None, origin: str
) -> list[str]:
    """Deal with a first convolution whose number of bands is another, as `bands` says."""
    first = next((n for n, m in module.named_modules() if isinstance(m, nn.Conv2d)), None)
    name = f"{first}.weight"
    if name not in different.wrong:
        return []
    kernel, own = different.file[name], different.own[name]
    if kernel.ndim != 4 or kernel[:, 0].shape != own[:, 0].shape:
        return []
    theirs, ours = kernel.shape[1], own.shape[1]
    if bands is None:
        raise UnseenError(
            f"{origin}: {name!r} is for {theirs} bands, and the images have {ours}.",
            remedy="Set weights_bands = 'mean' to begin each band with the mean over the file's, "
            "or 'fresh' to begin this convolution at random.",
        )
    different.excused.add(name)
    if bands == "fresh":
        different.stay.add(name)
        return [f"{name!r}, for {theirs} bands in the file and {ours} here, begins at random"]
    scale = theirs / ours
    different.file[name] = scale * kernel.float().mean(1, keepdim=True).expand_as(own)
    return [f"{name!r}, for {theirs} bands in the file and {ours} here, begins with their mean"]


def _renamed(tensors: Mapping[str, Tensor], own: Collection[str]) -> dict[str, Tensor]:
    """The tensors under the module's names, where a prefix or an old spelling hides them."""
    file = dict(tensors)
    foreign = [prefix for prefix in PREFIXES if not any(n.startswith(prefix) for n in own)]
    while prefix := next((p for p in foreign if file and all(n.startswith(p) for n in file)), ""):
        file = {name.removeprefix(prefix): tensor for name, tensor in file.items()}
    dotless = {name: _DOTTED.sub(r"\1\2", name) for name in file}
    return {
        dotless[name] if name not in own and dotless[name] in own else name: tensor
        for name, tensor in file.items()
    }


def _tensors(content: object, path: Path) -> dict[str, Tensor]:
    """The tensors by name, also where a training script keeps them under another key."""
    for key in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        what = f"it is of type {type(content).__name__}"
    elif odd := [(k, type(v)) for k, v in content.items() if not isinstance(v, Tensor)]:
        what = f"{odd[0][0]!r} is not a tensor but of type {odd[0][1].__name__}"
    elif content:
        return {str(name): tensor for name, tensor in content.items()}
    else:
        what = "it is empty"
    raise UnseenError(
        f"{path} must hold tensors by name, as model.state_dict() gives them, alone or under one "
        f"of the keys {', '.join(WRAPPERS)}; {what}."
    )


def _counts(name: str) -> bool:
    return name.endswith("num_batches_tracked")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
