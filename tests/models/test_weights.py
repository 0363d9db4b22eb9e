"""Initial weights from files: what fits, what starts afresh and is named, what is refused."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from unseen.core.turn import keyed
from unseen.data.networks import build
from unseen.data.networks.weight_files import Report, Source, fill, read
from unseen.errors import UnseenError

State = dict[str, Tensor]
SHAPE = (3, 32, 32)


def cnn(outputs: int = 4, key: str = "mine", shape: tuple[int, ...] = (3, 8, 8)) -> nn.Module:
    """conv1, norm1, conv2, norm2, head."""
    return build("bn-cnn(channels=[4, 6])", shape, outputs, keyed(key))


def published(outputs: int = 4, **options: Any) -> State:
    """The state of another such net, with statistics that are no beginner's."""
    made = cnn(outputs, "published", **options)
    for name, tensor in made.state_dict().items():
        if tensor.is_floating_point() and "running" in name:
            tensor.add_(torch.rand(tensor.shape, generator=keyed(name)))
    return made.state_dict()


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> list[str]:
    """The names that both have, of equal content."""
    return [name for name in a if name in b and torch.equal(a[name], b[name])]


def copied(module: nn.Module) -> State:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


# --- what fits -----------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
def test_a_round_trip(tmp_path: Path, suffix: str) -> None:
    state, path = published(), tmp_path / f"net{suffix}"
    if suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    net = cnn()
    report = fill(net, read(path), origin=path.name)
    assert same(net.state_dict(), state) == list(state)
    assert report == Report(f"net{suffix}", len(state), len(state))
    assert str(report) == f"weights net{suffix}: 14 of 14 tensors taken."


def wrapped(state: State) -> dict[str, object]:
    return {"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1}}


def prefixed(prefix: str, state: State) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


@pytest.mark.parametrize(
    "change",
    [
        wrapped,
        lambda state: {"model": state},
        lambda state: {"model_state_dict": prefixed("module.", state)},
        lambda state: prefixed("module.", state),
        lambda state: prefixed("model.", state),
        lambda state: prefixed("module.model.", state),
        lambda state: prefixed("model.module.", state),
        lambda state: {n: t for n, t in state.items() if "num_batches" not in n},
        lambda state: {n: t.double() for n, t in state.items()},
        lambda state: {n: nn.Parameter(t) for n, t in state.items() if "num_batches" not in n},
    ],
)
def test_what_training_scripts_save(tmp_path: Path, change: Callable[[State], object]) -> None:
    state = published()
    torch.save(change(state), tmp_path / "net.pth")
    net = cnn()
    fill(net, read(tmp_path / "net.pth"))
    floating = [name for name, tensor in state.items() if tensor.is_floating_point()]
    assert [n for n in same(net.state_dict(), state) if n in floating] == floating
    assert all(t.dtype == torch.float32 for t in net.parameters())


def test_a_prefix_that_is_the_models_own_stays() -> None:
    class Wrapped(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.model = inner

    net = Wrapped(cnn())
    fill(net, prefixed("model.", published()))
    assert same(net.model.state_dict(), published()) == list(published())


def test_old_names_of_densenet() -> None:
    """The published file has norm.1 for norm1."""
    state = build("densenet121", SHAPE, 3, keyed("a")).state_dict()
    old = {
        name.replace("norm1", "norm.1").replace("conv2.", "conv.2.")
        if "denselayer" in name
        else name: tensor
        for name, tensor in state.items()
    }
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    net = build("densenet121", SHAPE, 3, keyed("b"))
    report = fill(net, old)
    assert report.count == report.total == len(state)
    assert same(net.state_dict(), state) == list(state)


# --- heads ---------------------------------------------------------------------------------


def test_a_head_for_other_classes_begins_anew_and_is_named() -> None:
    net, state = cnn(outputs=4), published(outputs=10)
    before = copied(net)
    report = fill(net, state, origin="net.pth")
    assert same(net.state_dict(), before)[-2:] == ["head.weight", "head.bias"]
    assert same(net.state_dict(), state) == [name for name in state if "head" not in name]
    assert (report.count, report.total) == (len(state) - 2, len(state))
    assert report.wrong == ("head.weight", "head.bias")
    assert str(report) == (
        "weights net.pth: 12 of 14 tensors taken; the head 'head' begins with random weights, "
        "since the file's has 10 outputs."
    )


def test_both_tensors_of_a_head_begin_anew() -> None:
    """A bias that fits by chance belongs to other classes all the same."""
    net, state = cnn(outputs=4), published(outputs=10)
    state["head.bias"] = torch.full((4,), 7.0)
    fill(net, state)
    assert not bool((net.state_dict()["head.bias"] == 7).any())


def test_a_renamed_head_begins_anew_and_is_named() -> None:
    net, state = cnn(), published()
    state["classifier.weight"], state["classifier.bias"] = (
        state.pop("head.weight"),
        state.pop("head.bias"),
    )
    before = copied(net)
    report = fill(net, state)
    assert torch.equal(net.state_dict()["head.weight"], before["head.weight"])
    assert report.missing == ("head.weight", "head.bias")
    assert report.unexpected == ("classifier.weight", "classifier.bias")
    assert "the file's is called 'classifier'" in str(report)


def test_a_file_without_a_head() -> None:
    net, state = cnn(), published()
    del state["head.weight"], state["head.bias"]
    report = fill(net, state)
    assert report.count == len(state)
    assert "begins with random weights, which the file lacks" in str(report)


def test_csacs_head_begins_anew_under_a_published_body() -> None:
    state = build("resnet18", SHAPE, 10, keyed("a")).state_dict()
    net = build("resnet18(head='csac')", SHAPE, 7, keyed("b"))
    before = copied(net)
    report = fill(net, state)
    assert "the head 'fc' and the bottleneck before it begin with random weights" in str(report)
    kept = [n for n in same(net.state_dict(), before) if n.startswith(("fc", "bottleneck"))]
    assert kept == [n for n in before if n.startswith(("fc", "bottleneck"))]
    assert len(same(net.state_dict(), state)) == len(state) - 2
    own = build("resnet18(head='csac')", SHAPE, 7, keyed("c")).state_dict()
    assert fill(net, own).notes == ()  # its own file fits as it is
    assert same(net.state_dict(), own) == list(own)


# --- bands ---------------------------------------------------------------------------------


def test_other_bands_are_refused_unless_told_what_to_do() -> None:
    net, state = cnn(shape=(8, 8, 8)), published()
    before = copied(net)
    with pytest.raises(UnseenError, match="'conv1.weight' is for 3 bands, and the images have 8"):
        fill(net, state)
    assert same(net.state_dict(), before) == list(before)
    report = fill(net, state, bands="fresh")
    assert torch.equal(net.state_dict()["conv1.weight"], before["conv1.weight"])
    assert "begins at random" in str(report)
    assert report.count == report.total - 1
    with pytest.raises(UnseenError, match="bands must be one of"):
        fill(net, state, bands="all")  # type: ignore[arg-type]


def test_the_mean_over_bands_answers_grey_images_as_the_file_did() -> None:
    net, theirs = cnn(shape=(8, 8, 8)).eval(), cnn().eval()
    fill(theirs, published())
    report = fill(net, published(), bands="mean")
    assert "begins with their mean" in str(report)
    grey = torch.rand(5, 1, 8, 8, generator=keyed("x"))
    torch.testing.assert_close(
        net(grey.expand(5, 8, 8, 8)), theirs(grey.expand(5, 3, 8, 8)), rtol=1e-5, atol=1e-6
    )


# --- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.pop("conv2.weight"), "the file lacks: 'conv2.weight'"),
        (lambda s: s.update(extra=torch.zeros(2)), "the model has no: 'extra'"),
        (
            lambda s: s.update({"conv2.weight": torch.zeros(6, 4, 5, 5)}),
            r"of another shape: 'conv2.weight' \(\[6, 4, 5, 5\], here \[6, 4, 3, 3\]\)",
        ),
        (lambda s: s.pop("head.bias"), "the file lacks: 'head.bias'"),
        (
            lambda s: s.update({"head.weight": torch.zeros(4, 9)}),
            r"of another shape: 'head.weight' \(\[4, 9\], here \[4, 24\]\)",
        ),
        (lambda s: s["conv1.weight"].fill_(float("nan")), "'conv1.weight' holds NaN"),
    ],
)
def test_other_differences_are_refused_and_nothing_is_changed(
    change: Callable[[State], object], said: str
) -> None:
    net, state = cnn(), published()
    change(state)
    before = copied(net)
    with pytest.raises(UnseenError, match=said):
        fill(net, state, origin="net.pth")
    assert same(net.state_dict(), before) == list(before)


def test_the_weights_of_another_net_are_refused_with_the_first_names() -> None:
    other = build("resnet18", SHAPE, 4, keyed("a")).state_dict()
    with pytest.raises(UnseenError) as caught:
        fill(cnn(), other, origin="resnet18.pth")
    message = str(caught.value)
    counted = {name for name, tensor in other.items() if tensor.is_floating_point()}
    unknown = counted - {*cnn().state_dict()}
    assert message.startswith("resnet18.pth does not fit the model; the file lacks: ")
    lacked = message.split("; the model has no: ")[0]
    assert lacked.count("'") == 2 * 9 and "'norm1.running_mean'" in lacked and "more" not in lacked
    assert "the model has no: 'bn1.weight', 'bn1.bias', 'bn1.running_mean', " in message
    assert f" and {len(unknown) - 20} more" in message
    assert "Take the model that the file is of" in message


class Harmful:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("plain", [True, False])
def test_a_pickle_that_runs_code_is_refused(tmp_path: Path, plain: bool) -> None:
    path, trace = tmp_path / "net.pth", tmp_path / "trace"
    content = {"conv1.weight": Harmful(str(trace))}
    if plain:
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path)
    with pytest.raises(UnseenError, match="which could run code.*is not loaded"):
        fill(cnn(), read(path))
    assert not trace.exists()


def test_a_pickled_module_is_refused(tmp_path: Path) -> None:
    torch.save(cnn(), tmp_path / "net.pth")
    with pytest.raises(UnseenError, match=r"torch.save\(model.state_dict\(\), ...\)"):
        read(tmp_path / "net.pth")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([torch.zeros(2)], "it is of type list"),
        ({}, "it is empty"),
        ({"epoch": 3}, "'epoch' is not a tensor but of type int"),
        (
            {"state_dict": {"a": torch.zeros(1), "note": "x"}},
            "'note' is not a tensor but of type str",
        ),
    ],
)
def test_files_without_tensors_by_name(tmp_path: Path, content: object, said: str) -> None:
    torch.save(content, tmp_path / "net.pth")
    with pytest.raises(UnseenError, match=f"must hold tensors by name.*{said}"):
        read(tmp_path / "net.pth")


@pytest.mark.parametrize("name", ["net.pth", "net.safetensors"])
def test_damaged_and_absent_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(UnseenError, match=name):
        read(path)
    for content in (b"", b"no weights at all", b"PK\x03\x04 cut short"):
        path.write_bytes(content)
        with pytest.raises(UnseenError, match=name):
            read(path)


# --- the file of a study -------------------------------------------------------------------


def test_a_file_is_looked_for_in_both_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, here = tmp_path / "data", tmp_path / "here"
    for folder, key in ((data, "a"), (here, "b")):
        folder.mkdir()
        torch.save(cnn(key=key).state_dict(), folder / "net.pth")
    monkeypatch.chdir(here)
    assert Source.of("net.pth", data).path == here / "net.pth"
    (here / "net.pth").unlink()
    found = Source.of("net.pth", data)
    assert found.path == data / "net.pth"
    assert str(found) == f"net.pth (sha256 {found.digest})"
    assert len(found.digest) == 16
    assert Source.of(data / "net.pth", None) == found
    with pytest.raises(UnseenError, match=r"no file of weights at absent.pth nor at .*data"):
        Source.of("absent.pth", data)


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.pth"
    torch.save(cnn(key="a").state_dict(), path)
    source = Source.of(path, None)
    assert pickle.loads(pickle.dumps(source)) == source
    source.load(cnn())
    torch.save(cnn(key="b").state_dict(), path)
    with pytest.raises(UnseenError, match="changed while the study was running"):
        source.load(cnn())


def test_what_is_no_pickle_is_refused_with_the_kind_of_error(tmp_path: Path) -> None:
    (tmp_path / "junk.pth").write_bytes(b"hello, here are no weights\n")
    with pytest.raises(UnseenError, match=r"file of weights \(KeyError: 101\)"):
        read(tmp_path / "junk.pth")
