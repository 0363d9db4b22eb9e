"""A module's tensors as views of one flat vector: parameters apart from buffers."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from unseen.errors import UnseenError, choice

Blocks = Literal["whole", "module", "tensor"]
Precision = Literal["float32", "bf16"]

#: Rows of a stack start on this many elements (64 bytes of float32): a kernel that takes another
#: path for another alignment would otherwise give another client other bits.
ALIGNMENT = 16


@dataclass(frozen=True)
class Layout:
    """Where each tensor of a module lies in its flat vector.

    Note:
        A tied tensor appears once. Integer tensors and frozen parameters have no place, since they
        neither train nor travel.

    Attributes:
        names: The tensors' names.
        shapes: Their shapes.
        strides: Their strides in memory, so that channels-last weights stay channels-last.
        offsets: Where each begins.
        size: The length of the vector, the papers' P.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Layout:
        """Lay out named dense tensors, in their order.

        Example:
            >>> layout = Layout.of({"fc.weight": torch.zeros(2, 3), "fc.bias": torch.zeros(2)})
            >>> layout.offsets, layout.size
            ((0, 6), 8)
        """
        sizes = [tensor.numel() for tensor in tensors.values()]
        ends = list(accumulate(sizes, initial=0))
        shapes = tuple(tuple(tensor.shape) for tensor in tensors.values())
        strides = tuple(_dense_strides(tensor) for tensor in tensors.values())
        return cls(tuple(tensors), shapes, strides, tuple(ends[:-1]), ends[-1])

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the tensors as views of `vector` [P], or of each row of [K, P] as [K, *shape]."""
        self._fits(vector)
        chunks = vector.split([math.prod(shape) for shape in self.shapes], dim=-1)
        views = map(_shaped, chunks, self.shapes, self.strides)
        return dict(zip(self.names, views, strict=True))

    def storage_views(self, vector: Tensor) -> list[Tensor]:
        """Return the views of `vector` [P] to bind a module's tensors to, with their exact strides.

        Note:
            A kernel may take another path, and round otherwise, for another stride even of an axis
            of length 1. Not for autograd: the gradient of such a view costs 40 times as much.

        Raises:
            UnseenError: If the vector is not contiguous or not of the layout's size.
        """
        self.check(vector)
        origin = vector.storage_offset()
        return [
            vector.as_strided(shape, stride, origin + offset)
            for shape, stride, offset in zip(self.shapes, self.strides, self.offsets, strict=True)
        ]

    def check(self, vector: Tensor) -> None:
        """Refuse a vector that tensors cannot be bound to."""
        self._fits(vector)
        if vector.ndim != 1 or not vector.is_contiguous():
            raise UnseenError(
                "tensors are bound to a contiguous vector [P], such as a row of a stack; found "
                f"shape {list(vector.shape)} with strides {list(vector.stride())}."
            )

    def pack(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Copy the named tensors into one fresh vector [P]."""
        if not self.names:
            return torch.zeros(0)
        first = next(iter(tensors.values()), torch.empty(0))
        vector = torch.empty(self.size, dtype=first.dtype, device=first.device)
        for (name, view), shape in zip(self.views(vector).items(), self.shapes, strict=True):
            if name not in tensors or tuple(tensors[name].shape) != shape:
                actual = list(tensors[name].shape) if name in tensors else "nothing"
                raise UnseenError(f"{name!r} must be of shape {list(shape)}; found {actual}.")
            view.copy_(tensors[name].detach())
        return vector

    def blocks(self, by: Blocks = "whole") -> tuple[slice, ...]:
        """Return consecutive column ranges: the whole vector, one per module, or one per tensor.

        Example:
            >>> layout = Layout.of({"fc.weight": torch.zeros(2, 3), "fc.bias": torch.zeros(2)})
            >>> layout.blocks("module"), layout.blocks("tensor")
            ((slice(0, 8, None),), (slice(0, 6, None), slice(6, 8, None)))
        """
        choice("blocks", by, ("whole", "module", "tensor"))
        if by == "whole":
            return (slice(0, self.size),)
        owners = [n.rpartition(".")[0] if by == "module" else n for n in self.names]
        tensors = zip(owners, self.offsets, self._ends(), strict=True)
        blocks = (list(run) for _, run in groupby(tensors, key=itemgetter(0)))
        return tuple(slice(run[0][1], run[-1][2]) for run in blocks)

    def part(self, prefix: str) -> slice:
        """Return the column range of the tensors of one submodule, such as the classifier."""
        inside = self._inside(prefix)
        if not inside:
            parts = ", ".join(sorted({name.split(".")[0] for name in self.names}))
            raise UnseenError(
                f"no tensor of the model lies under {prefix!r}; its parts are {parts}."
            )
        if len(inside) != inside[-1] - inside[0] + 1:
            raise UnseenError(f"the tensors under {prefix!r} do not lie side by side.")
        return slice(self.offsets[inside[0]], self._ends()[inside[-1]])

    def within(self, begin: int, end: int) -> Layout:
        """Return the layout of the tensors that lie in the columns [begin, end)."""
        inside = [i for i, offset in enumerate(self.offsets) if begin <= offset < end]
        return Layout(
            tuple(self.names[i] for i in inside),
            tuple(self.shapes[i] for i in inside),
            tuple(self.strides[i] for i in inside),
            tuple(self.offsets[i] - begin for i in inside),
            end - begin,
        )

    def span(self, prefix: str) -> tuple[int, int]:
        """Return the columns [begin, end) of a submodule's tensors, of none (0, 0)."""
        part = self.part(prefix) if self._inside(prefix) else slice(0, 0)
        return part.start, part.stop

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that differ whenever two layouts do."""
        content = json.dumps([self.names, self.shapes, self.strides])
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    def _inside(self, prefix: str) -> list[int]:
        return [i for i, n in enumerate(self.names) if f"{n}.".startswith(f"{prefix}.")]

    def _ends(self) -> list[int]:
        return [*self.offsets[1:], self.size][: len(self.names)]

    def _fits(self, vector: Tensor) -> None:
        if vector.shape[-1] != self.size:
            raise UnseenError(
                f"the layout holds {self.size} numbers; found a vector of {vector.shape[-1]}.",
                remedy="Use a vector made for this model.",
            )


class Model:
    """A module whose tensors are views of two flat vectors.

    `bind` re-points all views, which is how one module serves every client without a copy.

    Note:
        Move the module to a device or a memory format before, never after; and leave the gradients
        to the loop: `zero_grad()` and `backward(create_graph=True)` would cut them off from
        `gradient`.

    Args:
        module: The network.
        device: Where it computes.
        shape: The shape of one input, where it is known.
        precision: `bf16` computes the products of layers in bfloat16; parameters, gradients,
            outputs and all that is sent stay float32.

    Attributes:
        vector: The parameters [P].
        gradient: Their gradients [P].
        buffers: The floating buffers [B], such as BatchNorm statistics.
        layout: The layout of `vector` and `gradient`.
        buffer_layout: The layout of `buffers`.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device | str = "cpu",
        shape: tuple[int, ...] | None = None,
        precision: Precision = "float32",
    ) -> None:
        choice("precision", precision, ("float32", "bf16"))
        self._module, self.shape, self.precision = module.to(device), shape, precision
        self._parts: dict[str, Model] = {}
        self._bound_parts: set[str] = set()
        self._places: dict[str, dict[str, tuple[int, int]]] = {}
        trainable = {n: p for n, p in module.named_parameters() if p.requires_grad}
        floating = {n: b for n, b in module.named_buffers() if b.is_floating_point()}
        kinds = {t.dtype for t in (*trainable.values(), *floating.values())}
        if len(kinds) > 1:
            raise UnseenError(f"all tensors of a model must share one type; found {kinds}.")
        self.device = torch.device(device)
        self.channels_last = any(t.ndim == 4 and not t.is_contiguous() for t in trainable.values())
        self._parameters, self._buffers = list(trainable.values()), list(floating.values())
        self.layout, self.buffer_layout = Layout.of(trainable), Layout.of(floating)
        vector = self.layout.pack(trainable)
        self.gradient = torch.zeros_like(vector)
        self.bind(vector, self.buffer_layout.pack(floating).to(device))
        gradients = self.layout.storage_views(self.gradient)
        for parameter, view in zip(self._parameters, gradients, strict=True):
            parameter.grad = view

    def bind(self, vector: Tensor, buffers: Tensor) -> None:
        """Make the module's tensors views of `vector` [P] and `buffers` [B], without copying."""
        self.layout.check(vector)
        self.buffer_layout.check(buffers)
        self.vector, self.buffers, self._bound = vector, buffers, False
        self._bound_parts.clear()

    @property
    def module(self) -> nn.Module:
        """The network, its tensors views of the vectors that were bound last.

        They are pointed there now: who only reads the vector does not pay for it.
        """
        if not self._bound:
            views = self.layout.storage_views(self.vector)
            views += self.buffer_layout.storage_views(self.buffers)
            for tensor, view in zip(self._parameters + self._buffers, views, strict=True):
                tensor.data = view
            self._bound = True
        return self._module

    def part(self, name: str) -> Model:
        """Return a submodule as a model of its own, whose vectors are views of this one's."""
        if name not in self._parts:
            module = self._module.get_submodule(name)
            self._parts[name] = Model(module, self.device, self.shape, self.precision)
        own = self._parts[name]
        if name not in self._bound_parts:
            places = self.places(name)
            own.bind(self.vector[slice(*places["model"])], self.buffers[slice(*places["buffers"])])
            self._bound_parts.add(name)
        return own

    def places(self, name: str) -> dict[str, tuple[int, int]]:
        """Return where a submodule's tensors lie in "model" and in "buffers", as [begin, end)."""
        if name not in self._places:
            layouts = {"model": self.layout, "buffers": self.buffer_layout}
            self._places[name] = {entry: lay.span(name) for entry, lay in layouts.items()}
        return self._places[name]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the module's outputs for inputs `x` [N, ...]."""
        with self.rounding():
            return self._rounded(self.module(self._placed(x)))

    def at(self, vector: Tensor, x: Tensor, buffers: Tensor | None = None) -> Tensor:
        """Return the outputs for `x` with other parameters, differentiable in them.

        Args:
            vector: The parameters [P].
            x: The inputs [N, ...].
            buffers: The floating buffers [B]; None: the module's own.
        """
        views = self.layout.views(vector)
        views |= self.buffer_layout.views(self.buffers if buffers is None else buffers)
        # Not `module`, which would point the network's own tensors into what transforms this call.
        with self.rounding():
            return self._rounded(functional_call(self._module, views, (self._placed(x),)))

    def rounding(self) -> AbstractContextManager[object]:
        """Return the context in which the layers' products are computed in `precision`."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def _rounded(self, outputs: Tensor) -> Tensor:
        return outputs if self.precision == "float32" else outputs.to(self.vector.dtype)

    def _placed(self, x: Tensor) -> Tensor:
        if self.channels_last and x.ndim == 4:
            return x.contiguous(memory_format=torch.channels_last)
        return x


def stack(count: int, like: Tensor) -> Tensor:
    """Allocate a [K, P] matrix for vectors like `like` [P], all rows aligned alike."""
    size = like.shape[-1]
    return torch.empty(count, padded(size), dtype=like.dtype, device=like.device)[:, :size]


def padded(size: int) -> int:
    """Return the distance between rows of `size` numbers."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides of a tensor without gaps in memory, else those of a contiguous one."""
    dense = torch.empty_like(tensor, device="meta")
    if dense.stride() != tensor.stride():
        dense = dense.contiguous()
    return tuple(dense.stride())


def _shaped(chunk: Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """View the last axis of `chunk` as `shape`, laid out in memory in the order of `strides`."""
    order = sorted(range(len(shape)), key=lambda axis: (-strides[axis], axis))
    lead = chunk.shape[:-1]
    view = chunk.view((*lead, *(shape[axis] for axis in order)))
    if order == sorted(order):
        return view
    back = [len(lead) + order.index(axis) for axis in range(len(shape))]
    return view.permute(*range(len(lead)), *back)
