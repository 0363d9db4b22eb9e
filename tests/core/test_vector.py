"""A module as views of one vector: nothing lost, nothing copied, nothing else let in."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.bounds import gamma, roundings
from torch import Tensor, nn
from torch.nn import functional as F

from unseen.core.rows import gram
from unseen.core.turn import keyed
from unseen.core.vector import Blocks, Layout, Model, stack
from unseen.errors import UnseenError

FLOAT_BYTES = 4


@st.composite
def laid_out(draw: st.DrawFn) -> Tensor:
    """A tensor whose numbers are all different, its axes in any order in memory."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    order = draw(st.permutations(range(len(shape))))
    memory = torch.empty([shape[axis] for axis in order])
    tensor = memory.permute([order.index(axis) for axis in range(len(shape))])
    return tensor.copy_(torch.randperm(tensor.numel()).view(shape) + draw(st.integers(0, 99)))


names = st.from_regex(r"[a-c](\.[a-c]){0,2}\.(weight|bias)", fullmatch=True)
tensors = st.dictionaries(names, laid_out(), min_size=1, max_size=5)


def long_axes(tensor: Tensor) -> list[int]:
    """Strides of the axes along which there is anywhere to go."""
    return [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1]


class Net(nn.Module):
    """Convolution, BatchNorm and a linear head; a frozen layer and an integer buffer besides."""

    codes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.frozen = nn.Conv2d(4, 4, 1)
        self.frozen.requires_grad_(False)
        self.register_buffer("codes", torch.arange(5))
        self.head = nn.Linear(4 * 9, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.frozen(F.relu(self.norm(self.conv(x))))
        outputs: Tensor = self.head(hidden.flatten(1))
        return outputs


class Tied(nn.Module):
    """y = W(W x + b) + c with one W."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.second(self.first(x))
        return outputs


def net(channels_last: bool = False) -> Net:
    module = Net()
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.is_floating_point():
            tensor.data = torch.rand(tensor.shape, generator=keyed(name)) - 0.3
    module.get_buffer("norm.running_var").add_(1)
    if channels_last:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module


def descend(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def images(count: int = 6) -> Tensor:
    return torch.rand(count, 3, 5, 5, generator=keyed("images"))


class TestLayout:
    @given(tensors)
    def test_packing_and_viewing_lose_nothing(self, tensors: dict[str, Tensor]) -> None:
        layout = Layout.of(tensors)
        vector = layout.pack(tensors)
        views = layout.views(vector)
        assert list(views) == list(tensors)
        assert sorted(vector.tolist()) == sorted(x for t in tensors.values() for x in t.flatten())
        for name, tensor in tensors.items():
            assert torch.equal(views[name], tensor)
            assert long_axes(views[name]) == long_axes(tensor)
        assert torch.equal(layout.pack(views), vector)

    @given(tensors, st.integers(1, 3))
    def test_rows_of_a_stack_are_viewed_alike(self, tensors: dict[str, Tensor], K: int) -> None:
        layout = Layout.of(tensors)
        matrix = stack(K, layout.pack(tensors))
        for k, row in enumerate(matrix):
            row.copy_(layout.pack(tensors) + k)
        for name, view in layout.views(matrix).items():
            assert view.shape == (K, *tensors[name].shape)
            for k in range(K):
                assert torch.equal(view[k], tensors[name] + k)
                assert torch.equal(view[k], layout.views(matrix[k])[name])

    @given(tensors)
    def test_views_share_the_vectors_memory(self, tensors: dict[str, Tensor]) -> None:
        layout = Layout.of(tensors)
        vector = layout.pack(tensors)
        for i, view in enumerate(layout.views(vector).values()):
            assert view.data_ptr() == vector.data_ptr() + FLOAT_BYTES * layout.offsets[i]
            view.fill_(-1)
        assert bool((vector == -1).all())

    @given(tensors, st.integers(0, 2))
    def test_storage_views_are_the_views_with_every_stride(
        self, tensors: dict[str, Tensor], k: int
    ) -> None:
        layout = Layout.of(tensors)
        matrix = stack(3, layout.pack(tensors)).fill_(-1)
        matrix[k].copy_(layout.pack(tensors))
        for view, tensor in zip(layout.storage_views(matrix[k]), tensors.values(), strict=True):
            assert torch.equal(view, tensor)
            assert view.stride() == tensor.stride()
            view.zero_()
        assert not matrix[k].any()
        assert bool((matrix[[i for i in range(3) if i != k]] == -1).all())

    @given(tensors, st.sampled_from(["whole", "module", "tensor"]))
    def test_blocks_cover_the_vector_without_gaps(
        self, tensors: dict[str, Tensor], by: Blocks
    ) -> None:
        blocks = Layout.of(tensors).blocks(by)
        total = sum(t.numel() for t in tensors.values())
        assert (blocks[0].start, blocks[-1].stop) == (0, total)
        assert all(a.stop == b.start for a, b in pairwise(blocks))
        assert all(b.start < b.stop for b in blocks)
        if by == "tensor":
            assert [b.stop - b.start for b in blocks] == [t.numel() for t in tensors.values()]

    def test_blocks_by_hand(self) -> None:
        """conv 4 · 3 · 9 + 4 = 112, norm 4 + 4, head 2 · 36 + 2 = 74; frozen not at all."""
        layout = Model(net()).layout
        assert layout.size == 112 + 8 + 74
        assert layout.blocks("whole") == (slice(0, 194),)
        assert layout.blocks("module") == (slice(0, 112), slice(112, 120), slice(120, 194))
        ends = [0, 108, 112, 116, 120, 192, 194]
        assert layout.blocks("tensor") == tuple(slice(a, b) for a, b in pairwise(ends))
        with pytest.raises(UnseenError, match="'module'"):
            layout.blocks("modules")  # type: ignore[arg-type]

    def test_part(self) -> None:
        layout = Model(net()).layout
        assert layout.part("head") == slice(120, 194)
        assert layout.part("norm.bias") == slice(116, 120)
        assert layout.part("conv") == slice(0, 112)
        for absent in ("hea", "frozen", "codes", ""):
            with pytest.raises(UnseenError, match="its parts are conv, head, norm"):
                layout.part(absent)

    def test_part_that_lies_apart(self) -> None:
        layout = Layout.of({n: torch.zeros(2) for n in ("a.weight", "b.weight", "a.bias")})
        assert layout.part("b") == slice(2, 4)
        with pytest.raises(UnseenError, match="side by side"):
            layout.part("a")

    def test_a_vector_of_another_length_is_refused(self) -> None:
        layout = Layout.of({"w": torch.zeros(2, 3)})
        for vector in (torch.zeros(5), torch.zeros(7), torch.zeros(6, 5)):
            with pytest.raises(UnseenError, match=f"holds 6 numbers; found .* {vector.shape[-1]}"):
                layout.views(vector)

    def test_tensors_with_gaps_are_packed_without(self) -> None:
        tensor = torch.arange(24.0).view(4, 6)[:, ::2]
        layout = Layout.of({"w": tensor, "b": torch.zeros(3).expand(2, 3)})
        assert (layout.size, layout.offsets) == (18, (0, 12))
        vector = layout.pack({"w": tensor, "b": torch.ones(2, 3)})
        assert vector.tolist() == [*range(0, 24, 2), *[1] * 6]

    def test_packing_copies_and_detaches(self) -> None:
        weight = nn.Parameter(torch.ones(3))
        vector = Layout.of({"w": weight}).pack({"w": weight})
        vector.zero_()
        assert not vector.requires_grad
        assert weight.tolist() == [1, 1, 1]

    def test_equal_layouts_have_equal_fingerprints_and_others_do_not(self) -> None:
        wide, tall = torch.zeros(2, 3), torch.zeros(3, 2)
        layouts = {
            "as it is": Layout.of({"w": wide}),
            "another shape": Layout.of({"w": tall}),
            "one axis": Layout.of({"w": torch.zeros(6)}),
            "another name": Layout.of({"v": wide}),
            "another order in memory": Layout.of({"w": tall.T}),
            "one more": Layout.of({"w": wide, "b": torch.zeros(1)}),
            "the other order": Layout.of({"b": torch.zeros(1), "w": wide}),
            "split": Layout.of({"w": torch.zeros(1, 3), "v": torch.zeros(1, 3)}),
        }
        prints = {layout.fingerprint for layout in layouts.values()}
        assert len(prints) == len(layouts)
        assert all(len(p) == 12 and int(p, 16) >= 0 for p in prints)
        again = Layout.of({"w": torch.ones(2, 3, dtype=torch.float64)})
        assert again.fingerprint == layouts["as it is"].fingerprint


class TestModel:
    def test_what_is_in_and_what_is_not(self) -> None:
        model = Model(net())
        assert model.layout.names == (
            *("conv.weight", "conv.bias", "norm.weight", "norm.bias", "head.weight", "head.bias"),
        )
        assert model.buffer_layout.names == ("norm.running_mean", "norm.running_var")
        assert (model.vector.shape, model.buffers.shape) == ((194,), (8,))
        assert model.gradient.shape == model.vector.shape

    def test_the_module_computes_what_it_did(self) -> None:
        bare, x = net().eval(), images()
        torch.testing.assert_close(Model(copy.deepcopy(bare)).module(x), bare(x), rtol=0, atol=0)

    def test_channels_last_weights_stay_so(self) -> None:
        bare, x = net().eval(), images()
        model = Model(net(channels_last=True).eval())
        weight = model.module.get_parameter("conv.weight")
        assert weight.stride() == (27, 1, 9, 3)  # 4 filters of 3 channels, 3 by 3
        assert weight.grad is not None
        assert weight.grad.stride() == (27, 1, 9, 3)
        assert torch.equal(weight, bare.conv.weight)
        model.bind(model.vector.clone(), model.buffers.clone())
        assert weight.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(weight, bare.conv.weight)
        torch.testing.assert_close(model(x), bare(x))
        torch.testing.assert_close(model.at(model.vector, x), bare(x))
        assert model.layout.fingerprint != Model(net()).layout.fingerprint

    def test_strides_of_axes_of_length_1_stay_too(self) -> None:
        module = nn.Conv2d(1, 4, 3)
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        strides, values = module.weight.stride(), module.weight.detach().clone()
        model = Model(module)
        assert module.weight.stride() == strides
        assert module.weight.grad is not None
        assert module.weight.grad.stride() == strides
        assert torch.equal(module.weight, values)
        assert Model(module).layout.fingerprint == model.layout.fingerprint

    def test_a_tied_tensor_stands_once(self) -> None:
        model = Model(Tied())
        assert model.layout.names == ("first.weight", "first.bias", "second.bias")
        assert model.layout.size == 9 + 3 + 3
        vector = torch.rand(15, generator=keyed("vector"))
        W, b, c = vector[:9].view(3, 3), vector[9:12], vector[12:]
        x = torch.rand(4, 3, generator=keyed("x"))
        model.bind(vector, model.buffers)
        expected = (x @ W.T + b) @ W.T + c
        torch.testing.assert_close(model(x), expected)
        model.bind(torch.zeros(15), model.buffers)
        torch.testing.assert_close(model.at(vector, x), expected)

    def test_a_tied_tensor_gathers_both_gradients(self) -> None:
        model = Model(Tied())
        x = torch.rand(4, 3, generator=keyed("x"))
        vector = model.vector.clone().requires_grad_()
        W, b, c = vector[:9].view(3, 3), vector[9:12], vector[12:]
        (expected,) = torch.autograd.grad(((x @ W.T + b) @ W.T + c).square().sum(), vector)
        descend(model(x).square().sum())
        torch.testing.assert_close(model.gradient, expected)
        again = model.vector.clone().requires_grad_()
        (through,) = torch.autograd.grad(model.at(again, x).square().sum(), again)
        torch.testing.assert_close(through, expected)

    def test_binding_copies_nothing(self) -> None:
        model = Model(net())
        vector, buffers = torch.rand(194), torch.rand(8)
        kept = vector.clone()
        model.bind(vector, buffers)
        assert model.vector is vector
        assert model.buffers is buffers
        for names, offsets, flat, get in (
            (model.layout.names, model.layout.offsets, vector, model.module.get_parameter),
            (
                model.buffer_layout.names,
                model.buffer_layout.offsets,
                buffers,
                model.module.get_buffer,
            ),
        ):
            for name, offset in zip(names, offsets, strict=True):
                assert get(name).data_ptr() == flat.data_ptr() + FLOAT_BYTES * offset
        assert torch.equal(vector, kept)
        vector.zero_()
        assert not model.module.get_parameter("head.weight").any()

    def test_binding_leaves_alone_what_is_not_in_the_vector(self) -> None:
        model = Model(net())
        frozen = model.module.get_parameter("frozen.weight")
        values, place = frozen.clone(), frozen.data_ptr()
        model.bind(torch.zeros(194), torch.ones(8))
        assert frozen.data_ptr() == place
        assert torch.equal(frozen, values)
        assert model.module.get_buffer("codes").tolist() == [0, 1, 2, 3, 4]

    def test_one_module_serves_many_rows(self) -> None:
        model, x = Model(net().eval()), images()
        first, second = model.vector, model.vector * 0.5
        outputs = model(x)
        model.bind(second, model.buffers)
        halved = model(x)
        model.bind(first, model.buffers)
        assert torch.equal(model(x), outputs)
        assert not torch.equal(halved, outputs)

    def test_binding_another_models_vector_is_refused(self) -> None:
        model = Model(net())
        with pytest.raises(UnseenError, match="holds 194 numbers"):
            model.bind(torch.zeros(193), model.buffers)

    def test_running_statistics_are_written_into_the_buffers(self) -> None:
        model, x = Model(net()), images()
        before = model.buffers.clone()
        hidden = model.module.get_submodule("conv")(x).detach()
        model.module.train()(x)
        # BatchNorm's default momentum 0.1, with the unbiased variance.
        mean = 0.9 * before[:4] + 0.1 * hidden.mean((0, 2, 3))
        var = 0.9 * before[4:] + 0.1 * hidden.var((0, 2, 3))
        torch.testing.assert_close(model.buffers, torch.cat([mean, var]))
        assert int(model.module.get_buffer("norm.num_batches_tracked")) == 1

    @pytest.mark.parametrize("channels_last", [False, True])
    def test_a_backward_pass_fills_the_gradient(self, channels_last: bool) -> None:
        bare, x = net().train(), images()
        trained = {n: p for n, p in bare.named_parameters() if p.requires_grad}
        expected = torch.autograd.grad(bare(x).square().mean(), list(trained.values()))
        model = Model(net(channels_last).train())
        descend(model(x).square().mean())
        views = model.layout.views(model.gradient)
        length = float(torch.cat([g.flatten() for g in expected]).norm())
        near = 2 * gamma(roundings(bare, x), torch.float32) * length  # some entries cancel to 0
        for name, gradient in zip(trained, expected, strict=True):
            assert float((views[name] - gradient).norm()) <= near
            assert model.module.get_parameter(name).grad is not None
        first = model.gradient.clone()
        model.bind(model.vector.clone(), model.buffers.clone())
        model.gradient.zero_()
        descend(model(x).square().mean())  # still the same memory after a bind
        torch.testing.assert_close(model.gradient, first)
        assert model.module.get_parameter("frozen.weight").grad is None

    @pytest.mark.parametrize("channels_last", [False, True])
    def test_at_another_vector(self, channels_last: bool) -> None:
        model, x = Model(net(channels_last).eval()), images()
        vector = model.vector * 2 - 0.1
        bare = net().eval()
        with torch.no_grad():
            for name, view in model.layout.views(vector).items():
                bare.get_parameter(name).copy_(view)
        kept = model.vector.clone()
        torch.testing.assert_close(model.at(vector, x), bare(x))
        assert torch.equal(model.vector, kept)
        assert torch.equal(torch.cat([model.gradient, kept]), torch.cat([0 * kept, kept]))

    def test_a_first_access_inside_a_transform_leaves_the_network_alone(self) -> None:
        network = nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3))
        x = torch.randn(5, 4, generator=keyed("transform"))
        plain = network(x).detach()
        model = Model(network)
        sums = torch.func.grad(lambda vector, one: model.at(vector, one[None]).sum())
        assert torch.func.vmap(sums, in_dims=(None, 0))(model.vector, x).shape == (
            5,
            len(model.vector),
        )
        torch.testing.assert_close(model(x), plain)

    def test_at_is_differentiable_twice(self) -> None:
        """For outputs x·w + b and the loss (x·w + b)² / 2 the Hessian is (x, 1)(x, 1)ᵀ."""
        model = Model(nn.Linear(3, 1))
        x = torch.tensor([[1.0, -2.0, 3.0]])

        def loss(vector: Tensor) -> Tensor:
            return model.at(vector, x).square().sum() / 2

        vector = torch.tensor([0.5, 0.25, 1.0, -1.0])
        extended = torch.tensor([1.0, -2.0, 3.0, 1.0])
        leaf = vector.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf), leaf)
        torch.testing.assert_close(gradient, (vector @ extended) * extended)
        hessian = torch.autograd.functional.hessian(loss, vector)  # type: ignore[no-untyped-call]
        torch.testing.assert_close(hessian, torch.outer(extended, extended))
        assert not model.gradient.any()

    def test_a_model_without_parameters_or_buffers(self) -> None:
        model = Model(nn.Sequential(nn.ReLU()))
        assert (model.vector.shape, model.gradient.shape, model.buffers.shape) == ((0,), (0,), (0,))
        assert model.layout.blocks() == (slice(0, 0),)
        assert model(torch.tensor([-1.0, 2.0])).tolist() == [0, 2]

    def test_two_types_in_one_model_are_refused(self) -> None:
        with pytest.raises(UnseenError, match=r"share one type.*float64"):
            Model(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))

    def test_double_precision(self) -> None:
        model = Model(nn.Linear(2, 2).double())
        assert {model.vector.dtype, model.gradient.dtype} == {torch.float64}


class TestStack:
    @pytest.mark.parametrize("size", [1, 15, 16, 17, 194])
    @pytest.mark.parametrize("kind", [torch.float32, torch.float64])
    def test_every_row_starts_on_64_bytes(self, size: int, kind: torch.dtype) -> None:
        matrix = stack(5, torch.zeros(size, dtype=kind))
        assert matrix.shape == (5, size)
        assert matrix.dtype == kind
        assert [row.data_ptr() % 64 for row in matrix] == [0] * 5

    def test_padding_never_leaks(self) -> None:
        """Every number of the stack begins as NaN, its padding included."""
        model, x = Model(net().train()), images()
        start = model.vector
        matrix = stack(3, start)
        width = matrix.stride(0)
        assert width > matrix.shape[1]  # 194 is no multiple of 16, so there is padding
        everything = matrix.as_strided((3, width), (width, 1)).fill_(float("nan"))

        matrix[1].copy_(start)
        model.bind(matrix[1], model.buffers)
        descend(model(x).square().mean())
        matrix[1].sub_(model.gradient, alpha=0.1)
        assert bool(matrix[1].isfinite().all())
        assert bool(model.gradient.isfinite().all())
        assert bool(everything[[0, 2]].isnan().all())
        assert bool(everything[:, 194:].isnan().all())

        matrix[0].copy_(start)
        matrix[2].zero_()
        expected = start.double() @ start.double()
        assert float(gram(matrix)[0, 0]) == pytest.approx(float(expected), rel=1e-5)
        for tensor in (gram(matrix), torch.ones(3) @ matrix, *model.layout.views(matrix).values()):
            assert bool(tensor.isfinite().all())
        assert bool(everything[:, 194:].isnan().all())


class TestFaults:
    """Inputs that `vector` does not yet treat right."""

    def test_a_parameter_without_axes(self) -> None:
        module = nn.Module()
        module.temperature = nn.Parameter(torch.tensor(2.0))
        assert Model(module).vector.tolist() == [2]

    def test_a_tensor_without_elements(self) -> None:
        layout = Layout.of({"w": torch.zeros(0, 3), "b": torch.zeros(2)})
        assert (layout.offsets, layout.size) == ((0, 0), 2)

    @pytest.mark.parametrize("by", ["module", "tensor"])
    def test_blocks_of_an_empty_layout(self, by: Blocks) -> None:
        assert Layout.of({}).blocks(by) == ()

    def test_packing_a_tensor_of_another_shape(self) -> None:
        layout = Layout.of({"w": torch.zeros(2, 3)})
        with pytest.raises(UnseenError):
            layout.pack({"w": torch.ones(3)})

    def test_binding_a_column_of_a_matrix(self) -> None:
        column = torch.arange(12.0).view(6, 2)[:, 0]
        model = Model(nn.Linear(2, 2))
        with pytest.raises(UnseenError):
            model.bind(column, model.buffers)
