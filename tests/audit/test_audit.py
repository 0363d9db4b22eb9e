"""Attacks find what they should where there is a leak, and nothing where there is none."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from support.sites import federation, images

from unseen import Model, Training, method
from unseen.core.client import Client, Split
from unseen.core.exchange import Outcome
from unseen.core.losses import CrossEntropy
from unseen.core.optimiser import SGD
from unseen.core.turn import Turn, keyed
from unseen.data import load
from unseen.data.networks import build
from unseen.privacy.dp import Examples, private
from unseen.privacy.dp.examples import output_loss
from unseen.studies.audit import inversion, membership, shared
from unseen.studies.audit.audit_page import sheet
from unseen.studies.audit.inversion import Prior, psnr
from unseen.studies.audit.membership import auc, interval, rate_at

TRAINING = Training(SGD(0.05), batch_size=8)
PLAIN = method("fedsgd", TRAINING)


@pytest.fixture(scope="module")
def digits() -> tuple[Model, dict[str, Client], torch.Tensor, Prior]:
    """A net, eight clients of one real digit each, the digits, and what is known of others."""
    data = load("rotated-digits")
    own, other = data["15"], data["75"]
    client = Client("site", Split(own.x, own.y), None, 10)
    clients = inversion.single(client, list(range(0, 80, 10)))
    truth = torch.cat([c.split("train").batch(slice(None))[0] for c in clients.values()])
    model = Model(build("mlp(widths=[64])", (1, 8, 8), 10, keyed("net")), shape=(1, 8, 8))
    return model, clients, truth, Prior.of(other.x)


def test_a_planted_digit_is_recovered_from_a_plain_update(digits):
    model, clients, truth, prior = digits
    rows = inversion.replies(PLAIN, model, clients)
    found = prior.clipped(inversion.analytic(model, rows).float())
    assert float(psnr(found, truth, prior.span).min()) > 60
    labels = [c.split("train").y for c in clients.values()]
    assert all(
        torch.equal(inversion.read_label(model, -row), y)
        for row, y in zip(rows, labels, strict=True)
    )


def test_gradient_matching_recovers_it_without_the_algebra(digits):
    model, clients, truth, prior = digits
    (row,) = inversion.replies(PLAIN, model, {"victim-00": clients["victim-00"]})
    loss = output_loss(CrossEntropy(), "t")
    found = inversion.matching(model, row, loss, prior, keyed("draws"), steps=150)
    assert float(psnr(found, truth[:1], prior.span)) > 30


def test_gradient_matching_needs_no_linear_first_layer():
    client = images(1)["site-a"]
    clients = inversion.single(client, [3])
    truth = clients["victim-00"].split("train").x
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.Sigmoid(), torch.nn.Flatten(),
        torch.nn.Linear(512, 3),
    )  # fmt: skip
    for layer in (net[0], net[3]):
        torch.nn.init.normal_(layer.weight, std=0.2, generator=keyed("net"))
    model = Model(net, shape=(1, 8, 8))
    assert inversion.entry(model) is None
    prior = Prior.of(client.split("train").x)
    (row,) = inversion.replies(PLAIN, model, clients)
    loss = output_loss(CrossEntropy(), "t")
    found = inversion.matching(model, row, loss, prior, keyed("draws"), steps=150)
    random = psnr(prior.random(50, keyed("random")), truth.expand(50, -1, -1, -1), prior.span)
    assert float(psnr(found, truth, prior.span)) > float(random.max()) + 5


def test_noise_defeats_the_inversion(digits):
    model, clients, truth, prior = digits
    mean = float(psnr(prior.mean.expand_as(truth), truth, prior.span).mean())
    found = []
    for noise in (0.001, 0.01, 0.3):
        dp = Examples(1.0, noise, 1e-5)
        rows = inversion.replies(private(PLAIN, dp), model, clients)
        guess = prior.clipped(inversion.analytic(model, rows, prior, noise).float())
        found.append(float(psnr(guess, truth, prior.span).mean()))
    assert found[0] > found[1] > mean + 2  # in between
    assert found[2] < mean + 1.5  # no more than was known before


def test_bytes_that_are_random_give_a_random_image(digits):
    model, clients, truth, prior = digits
    generator = np.random.default_rng(0)
    guess = torch.cat(
        [inversion.from_bytes(generator.bytes(200_000), model, prior) for _ in clients]
    )
    random = torch.stack(
        [psnr(prior.random(len(truth), keyed(f"r{i}")), truth, prior.span) for i in range(50)]
    ).mean(0)
    _, low, high = interval(psnr(guess, truth, prior.span) - random)
    assert low < 0.5
    assert high > -0.5
    assert abs(low) < 2


def test_ciphertext_gives_no_more_than_a_random_image(digits):
    pytest.importorskip("tenseal", reason="the extra he is not installed")
    channel = pytest.importorskip("unseen.privacy.channel")
    model, clients, truth, prior = digits
    rows = inversion.replies(PLAIN, model, clients)
    held = channel.read("ckks").seen_by_server(rows)
    assert all(isinstance(content, bytes) for content in held)
    guess = torch.cat([inversion.from_bytes(content, model, prior) for content in held])
    random = torch.stack(
        [psnr(prior.random(len(truth), keyed(f"r{i}")), truth, prior.span) for i in range(50)]
    )
    assert float(psnr(guess, truth, prior.span).mean()) < float(random.mean()) + 1.5
    assert float(psnr(guess, truth, prior.span).max()) < 20


def test_single_units_give_away_examples_of_a_sum(digits):
    model, clients, truth, prior = digits
    both = list(clients.values())[:2]
    x = torch.cat([c.split("train").x for c in both])
    y = torch.cat([c.split("train").y for c in both])
    (row,) = inversion.replies(PLAIN, model, {"two": Client("two", Split(x, y), None, 10)})
    found = inversion.nearest(inversion.units(model, row).float(), truth[:2], prior.span)
    assert float(found.min()) > 40


def test_auc_counts_pairs():
    members, others = np.array([1.0, 2.0, 2.0]), np.array([0.0, 2.0])
    pairs = [1.0 if m > o else 0.5 if m == o else 0.0 for m in members for o in others]
    assert auc(members, others) == pytest.approx(np.mean(pairs))
    generator = np.random.default_rng(0)
    a, b = generator.normal(1, 1, 400), generator.normal(0, 1, 400)
    value, low, high = interval(a, b, statistic=auc)
    # Two normals a deviation apart: Φ(1/√2) = 0.7602.
    assert low < 0.7602 < high
    assert high - low < 0.1
    assert value == pytest.approx(0.7602, abs=0.04)
    assert rate_at(np.arange(100.0) + 1000, np.arange(100.0)) == 1.0


def test_membership_is_found_where_a_model_remembers():
    clients = federation(1, n=60)
    noise = {
        name: Client(name, *(_relabelled(c.split(s), s) for s in ("train", "validation")), 3)
        for name, c in clients.items()
    }
    client = noise["site-a"]
    model = Model(build("mlp(widths=[256])", (6,), 3, keyed("net")))
    before = membership.Trained(model, _inbox(model), lambda m, inbox, x: m(x))
    assert membership.by_threshold(before, noise)["auc"] < 0.75
    x, y = client.split("train").batch(slice(None))
    for _ in range(400):
        model.gradient.zero_()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        model.vector.sub_(model.gradient, alpha=0.5)
    after = membership.Trained(model, _inbox(model), lambda m, inbox, x: m(x))
    found = membership.by_threshold(after, noise)
    assert found["auc"] > 0.85
    assert found["interval"][0] > 0.6


def _inbox(model: Model) -> dict[str, torch.Tensor]:
    return {"model": model.vector.clone(), "buffers": model.buffers.clone()}


def _relabelled(split: Split, key: str) -> Split:
    """Labels that only memory can know."""
    return Split(split.x, torch.randint(3, (len(split),), generator=keyed(key)))


def test_the_likelihood_ratio_finds_what_models_remember():
    generator = np.random.default_rng(0)
    kept = generator.random((10, 200)) < 0.5
    hard = generator.normal(0, 3, 200)  # how hard an example is hides membership from a threshold
    confidences = hard + 1.5 * kept + generator.normal(0, 1, (10, 200))
    found = membership.by_shadows(confidences, kept)
    assert found["auc"] > 0.8
    assert auc(confidences[kept], confidences[~kept]) < 0.7
    nothing = membership.by_shadows(hard + generator.normal(0, 1, (10, 200)), kept)
    assert abs(nothing["auc"] - 0.5) < 0.03


def test_confidence_is_the_logit_of_the_right_class():
    z = torch.tensor([[2.0, 1.0, -1.0], [0.0, 0.0, 0.0]])
    p = z.softmax(-1)[torch.arange(2), torch.tensor([0, 2])]
    found = membership.confidence(z, torch.tensor([0, 2]))
    torch.testing.assert_close(found, (p / (1 - p)).log().double(), rtol=1e-5, atol=1e-6)


def test_an_image_in_a_bank_is_known_by_its_spectrum():
    data = load("rotated-digits")
    clients = [Client(d.name, Split(d.x, d.y), None, 10) for d in data.domains]
    model = Model(build("mlp(widths=[8])", (1, 8, 8), 10, keyed("net")), shape=(1, 8, 8))
    found = shared.bank_membership(model, clients[0], clients[1:3], 16, 0)
    whole = found[0]
    assert whole["membership"]["the very image"]["auc"] == 1.0
    assert whole["membership"]["a copy with 5 % noise"]["auc"] > 0.95
    single = found[2]
    assert single["numbers_per_image"] == 1
    assert single["membership"]["a copy with 20 % noise"]["auc"] < 0.75


def test_class_counts_are_read_off_a_gradient():
    clients = federation(2, n=200)
    skewed = {}
    for name, client in clients.items():
        split = client.split("train")
        order = torch.cat([(split.y == 0).nonzero()[:8], (split.y != 0).nonzero()]).flatten()
        skewed[name] = Client(name, split.take(order), None, 3)
    model = Model(build("mlp(widths=[12])", (6,), 3, keyed("net")), shape=(6,))
    rows = inversion.replies(PLAIN, model, skewed)
    found = shared.class_counts(model, skewed, rows, clients["site-a"])
    assert found["misplaced_share"] < found["misplaced_by_uniform_guess"] / 2


def test_the_gram_matrix_tells_the_order_of_sites():
    names = ("0", "15", "30", "45")
    angles = torch.deg2rad(torch.tensor([0.0, 15, 30, 45]).double())
    rows = torch.stack([angles.cos(), angles.sin()], dim=1) * torch.tensor([[3.0], [1], [1], [1]])
    seen = {"gram": {"model": {"inner": (rows @ rows.T).tolist()}}}
    loss = {"loss": torch.tensor([2.0, 1.0, 0.9, 0.8])}
    outcomes = [Outcome(Turn(0, r, 2), names, loss, notes=seen) for r in range(2)]
    found = shared.gram_reveals(outcomes)
    assert found["order"] == 1.0
    assert found["norms"][0] == 3.0
    assert {found["least_alike"][1], found["least_alike"][2]} == {"0", "45"}
    assert found["outlier"] in ("0", "45")
    assert shared.gram_reveals([]) is None


def test_pictures_are_png_and_svg():
    rows = {"true": torch.rand(3, 1, 8, 8), "found": torch.rand(2, 1, 8, 8)}
    assert sheet(rows, {}, "png").startswith(b"\x89PNG")
    svg = sheet(rows, {"found": "9.1 dB"}, "svg").decode()
    assert svg.count("<image") == 5
    assert "9.1 dB" in svg
    assert "<title>Images that attacks recovered</title>" in svg
    assert sheet(rows, {"found": "9.1 dB"}, "svg").decode() == svg
    assert sheet({"colour": torch.rand(2, 3, 8, 8)}, {}, "png").startswith(b"\x89PNG")


def test_the_command_writes_what_it_found(tmp_path):
    from typer.testing import CliRunner

    from unseen.cli.main import app

    asked = ["audit", "digits", "--out", str(tmp_path), "--rounds", "2", "--shadows", "4",
             "--victims", "4", "model=mlp(widths=[16])"]  # fmt: skip
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert done.exit_code == 0
    found = json.loads((tmp_path / "audit.json").read_text())
    by_name = {a["what"]: a for a in found["inversion"]["attacks"]}
    assert by_name["plain, by algebra"]["recovered"] == 4
    assert by_name["noise 1"]["recovered"] == 0
    assert found["membership"]["by_shadows"]["models"] == 4
    text = (tmp_path / "audit.md").read_text()
    for heading in ("Images out of updates", "Who was in", "inner products", "beyond the model"):
        assert heading in text
    assert (tmp_path / "inversion.png").exists()
    assert (tmp_path / "inversion.svg").exists()
