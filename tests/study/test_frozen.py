"""A frozen part of the network: features computed once, kept by digest, the same training."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.federations import CLASSES, write_photos
from torch import nn

from unseen.core.client import Stored
from unseen.core.turn import keyed
from unseen.data.image_files import cache
from unseen.data.networks import build
from unseen.data.networks.stages import cut
from unseen.errors import UnseenError
from unseen.methods.images.augment import build as build_augment
from unseen.studies.execution import Study, frozen, runtime
from unseen.studies.execution.plan import Plan, prepare_study
from unseen.studies.execution.prepare import prepare
from unseen.studies.execution.runtime import first_network
from unseen.studies.results.study_folder import StudyFolder
from unseen.studies.settings import default_network
from unseen.studies.settings.study import StudySpec, recorded

SIDE, MODEL = 16, "resnet18"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of three sites, and a file of weights of a small ResNet with statistics."""
    folder = tmp_path_factory.mktemp("place")
    write_photos(folder / "photos", each=8)
    network = build(MODEL, (3, SIDE, SIDE), 2, keyed("weights"))
    with torch.no_grad():
        network.train()(torch.rand(16, 3, SIDE, SIDE, generator=keyed("images")))
    torch.save(network.state_dict(), folder / "net.pth")
    return folder


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def study(place: Path, **settings: object) -> Study:
    base: dict[str, object] = {
        "dataset": f"folder(path='photos', size={SIDE})", "model": MODEL,
        "weights": str(place / "net.pth"), "freeze": "trunk", "methods": ["fedavg"], "rounds": 1,
        "seeds": 1, "targets": ["west"], "training": {"batch_size": 4},
    }  # fmt: skip
    return Study(**base | settings)


def planned(place: Path, out: Path, **settings: object) -> Plan:
    return prepare_study(study(place, **settings), out, place)


def entries(kept: Path) -> list[str]:
    return sorted(path.name for path in kept.glob("features-*"))


def images(place: Path) -> torch.Tensor:
    plain = study(place, freeze="none", weights=None)
    return prepare_study(plain, place / "none", place).data["north"].x


@pytest.mark.parametrize("freeze", ["trunk", "blocks[:3]"])
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_features_are_what_the_frozen_part_makes(
    place: Path, kept: Path, tmp_path: Path, freeze: str, kind: str
) -> None:
    plan = planned(place, tmp_path / "out", freeze=freeze, features=kind)
    network = build(MODEL, (3, SIDE, SIDE), 2, keyed("another"))
    network.load_state_dict(torch.load(place / "net.pth", weights_only=True))
    trunk, _ = cut(network, freeze)
    expected = trunk(images(place).float() / 255)
    found = plan.data["north"].x
    assert found.dtype == getattr(torch, kind) and plan.data.whole == (3, SIDE, SIDE)
    relative = 1e-3 if kind == "float16" else 1e-4
    torch.testing.assert_close(found.float(), expected, rtol=relative, atol=relative)
    assert len(entries(kept)) == 3


@pytest.mark.parametrize(("freeze", "kind"), [("trunk", torch.Tensor), ("blocks[:3]", Stored)])
def test_a_head_reads_its_features_from_memory(
    place: Path, kept: Path, tmp_path: Path, freeze: str, kind: type
) -> None:
    """Features of the whole trunk are small; maps of a part stay on disk."""
    plan = planned(place, tmp_path / "out", freeze=freeze)
    prepared = prepare(plan.data, plan.tasks[0], study(place, freeze=freeze), 0)
    split = prepared.sources["north"].split("train")
    assert isinstance(split.x, kind)
    rows = [plan.data["north"].x[i] for i in range(len(plan.data["north"].x))]
    assert all(any(torch.equal(x, row) for row in rows) for x in split.batch(slice(0, 4))[0])


def test_features_are_computed_once(
    place: Path, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = planned(place, tmp_path / "out")
    before = entries(kept)

    def never(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(frozen.Work, "fill", never)
    again = planned(place, tmp_path / "other")
    assert entries(kept) == before and again.setting.data == first.setting.data
    with pytest.raises(AssertionError, match="computed again"):
        planned(place, tmp_path / "more", freeze="blocks[:3]")


def test_other_weights_and_other_images_have_other_features(
    place: Path, kept: Path, tmp_path: Path
) -> None:
    first = planned(place, tmp_path / "out")
    torch.save(build(MODEL, (3, SIDE, SIDE), 2, keyed("b")).state_dict(), tmp_path / "b.pth")
    other = planned(place, tmp_path / "other", weights=str(tmp_path / "b.pth"))
    assert len(entries(kept)) == 6 and other.setting.data != first.setting.data
    shutil.copytree(place / "photos", tmp_path / "photos")
    (tmp_path / "photos" / "south" / CLASSES[0] / "0.png").unlink()
    prepare_study(study(place), tmp_path / "third", tmp_path)
    assert len(entries(kept)) == 7  # the other sites' images are the same


def test_the_bits_do_not_depend_on_the_number_of_threads(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNSEEN_CACHE", "off")
    found = []
    for count in (1, 3):
        monkeypatch.setattr(frozen, "cores", lambda count=count: count)
        found.append(planned(place, tmp_path / "out").data["north"].x)
    assert torch.equal(*found)


def test_training_the_rest_is_training_the_whole_with_the_trunk_held(
    place: Path, kept: Path, tmp_path: Path
) -> None:
    """Gradient steps on features, and on images through the same frozen network."""
    plan = planned(place, tmp_path / "out")
    prepared = prepare(plan.data, plan.tasks[0], plan.setting.study, 0)
    head = first_network(plan.setting, prepared, 0)
    whole = build(MODEL, (3, SIDE, SIDE), 2, keyed("0/model"))
    whole.load_state_dict(torch.load(place / "net.pth", weights_only=True))
    whole.eval().requires_grad_(False)
    whole.get_submodule("fc").requires_grad_(True)
    x, y = images(place).float() / 255, plan.data["north"].y
    features = plan.data["north"].x
    for network, inputs in ((head, features), (whole, x)):
        optimiser = torch.optim.SGD([t for t in network.parameters() if t.requires_grad], 0.05)
        for _ in range(3):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(inputs), y).backward()
            optimiser.step()
    ours, theirs = head.state_dict(), whole.state_dict()
    assert {*ours} == {"fc.weight", "fc.bias"}
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-4)


def test_views_are_examples_of_training_and_of_nothing_else(
    place: Path, kept: Path, tmp_path: Path
) -> None:
    settings = {"views": 2, "training": {"batch_size": 4, "augment": "flip"}}
    plan, plain = planned(place, tmp_path / "out", **settings), planned(place, tmp_path / "plain")
    ours, usual = (prepare(p.data, p.tasks[0], p.setting.study, 0) for p in (plan, plain))
    for name, client in ours.sources.items():
        train, before = client.split("train"), usual.sources[name].split("train")
        n = len(before)
        assert len(train) == 3 * n and torch.equal(train.y, before.y.repeat(3))
        assert torch.equal(train.batch(slice(0, n))[0], before.batch(slice(0, n))[0])
        assert not torch.equal(train.batch(slice(n, 2 * n))[0], before.batch(slice(0, n))[0])
        pair = (split.split("validation").batch(slice(0, 9))[0] for split in (
            client, usual.sources[name]))  # fmt: skip
        assert torch.equal(*pair)
    assert len(entries(kept)) == 9  # three sites, with two views more
    study(place, **settings).run(tmp_path / "run", data_dir=place)


FROZEN = {"batch_size": 4, "buffers": "frozen"}


@pytest.mark.parametrize(
    ("settings", "numbers"),
    [
        ({}, 2 * 512 + 2),
        # The last two blocks have five layers of BatchNorm, with 512 channels each.
        ({"freeze": "blocks[:6]", "train": "norms", "training": FROZEN}, 5 * 1024 + 1026),
        # A ResNet-18 has three 1×1 convolutions, in its shortcuts.
        (
            {"freeze": "none", "train": "adapters(rank=1)", "training": FROZEN},
            (64 + 128) + (128 + 256) + (256 + 512) + 1026,
        ),
    ],
)
def test_the_ledger_has_what_trains_alone(
    place: Path, kept: Path, tmp_path: Path, settings: dict[str, object], numbers: int
) -> None:
    study(place, **settings).run(tmp_path / "out", data_dir=place)
    (job,) = StudyFolder(tmp_path / "out").jobs()
    assert job.rounds[0]["bytes"]["up"] == 2 * 4 * numbers  # of two sites


def test_methods_that_need_images_say_that_they_get_features(
    place: Path, kept: Path, tmp_path: Path
) -> None:
    for freeze in ("trunk", "blocks[:2]"):
        plan = planned(place, tmp_path / freeze[:5], freeze=freeze, methods=["fedavg", "fedavg+am"])
        assert plan.not_applicable == {"fedavg+am": "needs images, and gets features of them"}


def test_a_cache_that_does_not_fit_is_refused_before(
    place: Path, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(place, tmp_path / "decode", freeze="none", weights=None)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: SimpleNamespace(free=5000))
    with pytest.raises(UnseenError, match=r"16 images of 'north' take 32.8 kB and") as error:
        planned(place, tmp_path / "out")
    assert "features = 'float16'" in error.value.remedy and not entries(kept)


REFUSED: Sequence[tuple[dict[str, object], str]] = (
    ({"weights": None}, "keeps weights of the network, and without a file"),
    ({"weights": None, "freeze": "none", "train": "norms"}, "without a file of them"),
    ({"train": "norms"}, "leaves the head alone"),
    ({"views": 2}, "keeps what a frozen part makes of images changed"),
    ({"training": {"augment": "flip"}}, "steps see features that were computed once"),
    ({"freeze": "blocks"}, r"freeze must be 'none', 'trunk' or 'blocks\[:n\]'"),
    ({"freeze": "none", "train": "biases"}, "unknown train 'biases'"),
)


@pytest.mark.parametrize(("settings", "words"), REFUSED)
def test_settings_that_do_not_fit_are_refused(
    tmp_path: Path, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(UnseenError, match=words):
        study(tmp_path, **settings)


def test_a_table_has_no_trunk(tmp_path: Path) -> None:
    torch.save(build(MODEL, (3, 8, 8), 2, keyed("a")).state_dict(), tmp_path / "net.pth")
    table = study(tmp_path, dataset="heart-disease", targets=None)
    with pytest.raises(UnseenError, match="is for images"):
        prepare_study(table, tmp_path / "out")


def test_folders_take_the_trunk_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_network, "installed", lambda _: True)
    usual = StudySpec.read("images")
    assert (usual.model, usual.weights, usual.freeze) == (
        "efficientnet-lite0", "pretrained", "trunk"
    )  # fmt: skip
    assert usual.dataset == "folder(size=224)" and "model=bn-cnn" in usual.first_line
    assert StudySpec.read("images", {"freeze": "none"}).freeze == "none"
    assert StudySpec.read("images", {"dataset": "folder(size=96)"}).dataset == "folder(size=96)"
    scratch = StudySpec.read("images", {"model": "bn-cnn"})
    assert (scratch.weights, scratch.freeze, scratch.dataset) == (None, "none", "folder")
    assert StudySpec(**usual.model_dump()) == usual
    assert StudySpec(**usual.model_dump(exclude_defaults=True)) == usual
    monkeypatch.setattr(default_network, "installed", lambda _: False)
    absent = StudySpec.read("images")
    assert (absent.model, absent.freeze) == ("bn-cnn", "none")
    assert 'pip install "unseen[pretrained]"' in absent.first_line
    assert StudySpec(dataset="rotated-digits").first_line == ""


def test_records_from_before_keep_their_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_network, "installed", lambda _: True)
    old = {"dataset": "folder(size=32)", "model": None, "methods": ["fedavg"]}
    assert StudySpec(**recorded(old)).model == "bn-cnn"


def test_jobs_of_a_seed_build_what_is_frozen_once_and_share_nothing(
    place: Path, tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = planned(place, tmp_path / "out").setting
    clients = SimpleNamespace(whole=(3, SIDE, SIDE), outputs=3)  # another head than the file's
    built: list[int] = []
    make = runtime.build
    monkeypatch.setattr(runtime, "build", lambda *recipe: (built.append(1), make(*recipe))[1])
    runtime.rest_of.cache_clear()
    first, second, other = (first_network(setting, clients, seed) for seed in (0, 0, 1))  # type: ignore[arg-type]
    assert len(built) == 2
    whole = make(MODEL, (3, SIDE, SIDE), 3, keyed("0/model"))
    assert setting.weights is not None
    setting.weights.load(whole)
    for name, tensor in cut(whole, "trunk")[1].state_dict().items():
        assert torch.equal(first.state_dict()[name], tensor)
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.zero_()
    assert any(parameter.any() for parameter in second.parameters())
    assert not all(map(torch.equal, second.parameters(), other.parameters()))


@pytest.mark.parametrize(
    ("model", "freeze"), [("resnet18(standardise=True)", "trunk"), (MODEL, "blocks[:8]")]
)
def test_networks_of_the_same_tensors_have_features_of_their_own(
    place: Path, model: str, freeze: str
) -> None:
    """What standardises or pools has no tensors, and changes the features all the same."""

    def trunk(model: str, freeze: str) -> frozen.Trunk:
        network = build(model, (3, SIDE, SIDE), 1, keyed("a network"))
        return frozen.Trunk(cut(network, freeze)[0], (3, SIDE, SIDE), False)

    assert trunk(MODEL, "trunk").digest == trunk(MODEL, "trunk").digest
    assert trunk(model, freeze).digest != trunk(MODEL, "trunk").digest


@pytest.mark.parametrize(
    ("settings", "model", "size"),
    [
        ({"weights": "pretrained"}, "efficientnet-lite0", 224),
        ({"weights": "pretrained", "model": "efficientnet-lite1"}, "efficientnet-lite1", 240),
        ({"weights": "pretrained", "dataset": "folder(size=96)"}, "efficientnet-lite0", 96),
    ],
)
def test_pretrained_weights_have_images_of_their_size(
    settings: dict[str, object], model: str, size: int
) -> None:
    found = default_network.with_network({"dataset": "folder()", **settings})
    assert found["model"] == model and f"size={size}" in found["dataset"]
    assert (
        "size="
        not in default_network.with_network({"dataset": "folder()", "model": model})["dataset"]
    )
    before = default_network.as_recorded({"dataset": "folder()", "model": model, **settings})
    assert f"size={96 if size == 96 else 64}" in before["dataset"]


def test_a_digest_holds_plain_values_alone() -> None:
    """An object shows where it lies, which differs from process to process."""

    class Layer(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale, self.other, self.names = scale, object(), [object()]

    assert frozen.form_of(Layer(1.0)) == frozen.form_of(Layer(1.0)) != frozen.form_of(Layer(50.0))


def test_views_are_drawn_alike_however_many_images_pass_at_a_time() -> None:
    """A processor passes four at a time, a GPU 128."""
    trunk = nn.Identity()
    augment = build_augment("flip")
    work = frozen.Work(trunk, "cpu", augment, "view 0")  # type: ignore[arg-type]
    images = torch.randint(256, (19, 3, SIDE, SIDE), generator=keyed("x"), dtype=torch.uint8)
    parts = [work(images[k : k + frozen.FEW], k) for k in range(0, 19, frozen.FEW)]
    assert torch.equal(work(images, 0), torch.cat(parts))
    assert torch.equal(torch.cat([work(images[:8], 0), work(images[8:], 8)]), torch.cat(parts))
    assert not torch.equal(work(images, 0), images.float() / 255)
