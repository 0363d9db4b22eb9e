"""DP-SGD and noise on whole replies: against loops, closed forms and the plain gradient."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from support.bounds import gamma, roundings
from support.remote import Remote
from support.sites import federation, images

from unseen import Model, Training, UnseenError, method, play, start
from unseen.core.client import Client, Split
from unseen.core.losses import CrossEntropy, SquaredError
from unseen.core.optimiser import SGD
from unseen.core.rows import gram
from unseen.core.survival import Cox, Hazards, hazard_losses
from unseen.core.turn import Turn, keyed
from unseen.core.vector import Layout
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.combine import PPDG, PCGrad, SemanticDivergence
from unseen.privacy.dp import (
    Clients,
    Denoised,
    Examples,
    Noised,
    Poisson,
    private,
    rate_of,
    read,
    steps_of,
)
from unseen.privacy.dp.examples import check_layers, clipped_sum, linear, output_loss
from unseen.privacy.dp.noise import KEY, SECRET, Stream, keyed_memory

TRAINING = Training(SGD(0.05), batch_size=8)
TURN = Turn(0, 0, 3, "train", "site-a", roster=("site-a", "site-b"))
KEYED = {KEY: torch.arange(32, dtype=torch.uint8)}


def net(kind: str, dtype=torch.float32) -> tuple[Model, torch.Tensor, torch.Tensor]:
    if kind == "mlp":
        model = Model(build("mlp(widths=[12])", (6,), 3, keyed("net")).to(dtype))
        client = federation(1)["site-a"]
    else:
        network = build("domainbed-cnn(width=8)", (1, 8, 8), 3, keyed("net"))
        model = Model(network.to(dtype, memory_format=torch.channels_last))
        client = images(1)["site-a"]
    x, y = client.split("train").batch(slice(0, 13))
    return model, x.to(dtype), y


def looped(kind: str, clip: float) -> tuple[torch.Tensor, float]:
    """One backward pass for each example, clipped, in float64; and the sum of their lengths."""
    model, x, y = net(kind, torch.float64)
    total, length = torch.zeros(len(model.gradient), dtype=torch.float64), 0.0
    for i in range(len(y)):
        model.gradient.zero_()
        torch.nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        g = model.gradient * min(1.0, clip / float(model.gradient.norm()))
        total, length = total + g, length + float(g.norm())
    return total, length


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("clip", [0.3, 2.0, math.inf])
def test_clipped_sums_are_those_of_a_loop_over_examples(kind, clip, dtype):
    model, x, y = net(kind, dtype)
    expected, length = looped(kind, clip)
    value = clipped_sum(model, output_loss(CrossEntropy(), "t"), x, y, clip, 5, linear(model))
    assert linear(model) == (kind == "mlp")
    # As if every rounding behind a gradient, the sum and, for clipping, a length pushed one way.
    n = roundings(model.module, x[:1]) + len(y) + (0 if clip == math.inf else len(model.gradient))
    assert float((model.gradient.double() - expected).norm()) <= gamma(n, dtype) * length
    exact, x, y = net(kind, torch.float64)
    expected_loss = float(torch.nn.functional.cross_entropy(exact(x), y))
    assert float(value) == pytest.approx(expected_loss, rel=gamma(n, value.dtype))


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_a_gradient_beyond_floats_counts_as_none(kind):
    """A reply that is not finite would say, past all noise, that there is such an example."""
    model, x, y = net(kind)
    loss, algebra = output_loss(CrossEntropy(), "t"), linear(model)
    with_it = x.clone()
    with_it[3] *= 1e30
    clipped_sum(model, loss, with_it, y, 0.3, 5, algebra)
    found = model.gradient.clone()
    assert torch.isfinite(found).all()
    rest = torch.arange(len(y)) != 3
    clipped_sum(model, loss, x[rest], y[rest], 0.3, 5, algebra)
    torch.testing.assert_close(found, model.gradient)


def test_clipped_sums_in_bfloat16_are_those_of_a_loop_as_far_as_it_is_precise():
    """bfloat16 has 8 bits of precision: 2^-8 for each product."""
    model, x, y = net("mlp")
    expected = looped("mlp", 0.3)[0]
    model.precision = "bf16"
    clipped_sum(model, output_loss(CrossEntropy(), "t"), x, y, 0.3, 5, True)
    away = (model.gradient.double() - expected).norm() / expected.norm()
    assert 0 < float(away) < 4 * 2**-8


def test_clipped_sum_agrees_with_opacus():
    opacus = pytest.importorskip("opacus", reason="the extra dp is not installed")
    model, x, y = net("mlp")
    clipped_sum(model, output_loss(CrossEntropy(), "t"), x, y, 0.7, 5, True)
    ours = model.gradient.clone()
    copied = build("mlp(widths=[12])", (6,), 3, keyed("net"))
    wrapped = opacus.GradSampleModule(copied)
    torch.nn.functional.cross_entropy(wrapped(x), y).backward()
    each = torch.cat([p.grad_sample.flatten(1) for p in copied.parameters()], dim=1)
    theirs = (each * (0.7 / each.norm(dim=1)).clamp(max=1)[:, None]).sum(0)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_both_ways_agree_for_numbers():
    model = Model(build("mlp(widths=[5])", (4,), 1, keyed("net")))
    x, y = torch.randn(9, 4, generator=keyed("x")), torch.randn(9, generator=keyed("y"))
    loss = output_loss(SquaredError(), "t")
    clipped_sum(model, loss, x, y, 0.5, 4, True)
    algebra = model.gradient.clone()
    clipped_sum(model, loss, x, y, 0.5, 4, False)
    torch.testing.assert_close(model.gradient, algebra, rtol=1e-4, atol=1e-6)


def test_hazards_are_of_each_example_alone_and_cox_is_not():
    model = Model(build("mlp(widths=[5])", (4,), 3, keyed("net")))
    x = torch.randn(9, 4, generator=keyed("x"))
    y = torch.stack([4 * torch.rand(9, generator=keyed("t")), (torch.arange(9) % 2).float()], 1)
    loss = output_loss(Hazards(3), "t")
    clipped_sum(model, loss, x, y, 0.5, 4, True)
    found = model.gradient.clone()
    total = torch.zeros_like(found)
    for i in range(9):
        model.gradient.zero_()
        hazard_losses(model(x[i : i + 1]), y[i : i + 1]).mean().backward()
        total += model.gradient * min(1.0, 0.5 / float(model.gradient.norm()))
    torch.testing.assert_close(found, total, rtol=1e-4, atol=1e-6)
    clipped_sum(model, loss, x, y, 0.5, 4, False)
    torch.testing.assert_close(model.gradient, found, rtol=1e-4, atol=1e-6)
    with pytest.raises(UnseenError, match="Cox is not known to be a mean of single examples"):
        output_loss(Cox(), "t")


def noised(model: Model, x, y, dp: Examples, expected: int | None) -> torch.Tensor:
    client = Client("site-a", Split(x, y), None, 3)
    with Noised(CrossEntropy(), dp, expected).open(model, {}, client, KEYED, TURN) as step:
        step(x, y)
    return model.gradient.clone()


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_without_noise_and_clip_it_is_the_plain_gradient(kind):
    model, x, y = net(kind)
    model.gradient.zero_()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    plain = model.gradient.clone()
    found = noised(model, x, y, Examples(math.inf, 0.0, 1e-5), len(y))
    n = roundings(model.module, x[:1]) + len(y)
    length = looped(kind, math.inf)[1] / len(y)
    assert float((found - plain).norm()) <= 2 * gamma(n, found.dtype) * length


def test_noise_has_the_variance_it_should_and_is_of_this_exchange():
    model = Model(torch.nn.Linear(400, 100))
    x, y = torch.randn(4, 400, generator=keyed("x")), torch.zeros(4, dtype=torch.long)
    dp = Examples(clip=0.5, noise=3.0, delta=1e-5)
    quiet = noised(model, x, y, Examples(0.5, 0.0, 1e-5), 20)
    noise = (noised(model, x, y, dp, 20) - quiet).double()
    assert float(noise.std()) == pytest.approx(3.0 * 0.5 / 20, rel=0.02)
    assert abs(float(noise.mean())) < 4 * 3.0 * 0.5 / 20 / len(noise) ** 0.5
    assert torch.equal((noised(model, x, y, dp, 20) - quiet).double(), noise)


def test_an_empty_batch_is_noise_alone():
    model, x, y = net("mlp")
    client = Client("site-a", Split(x, y), None, 3)
    dp = Examples(1.0, 1.0, 1e-5)
    with Noised(CrossEntropy(), dp, 8).open(model, {}, client, KEYED, TURN) as step:
        assert float(step(x[:0], y[:0])) == 0.0
    assert float(model.gradient.std()) == pytest.approx(1 / 8, rel=0.2)


def test_normal_numbers_are_normal():
    from scipy.stats import kstest

    found = Stream(b"key", "test").normal(200_000).numpy()
    assert kstest(found, "norm").pvalue > 1e-3
    halves = found[:100_000], found[100_000:]
    assert abs(float((halves[0] * halves[1]).mean())) < 4 / 100_000**0.5


def test_numbers_follow_from_all_of_the_key_and_of_the_message():
    inbox = {"model": torch.zeros(3)}

    def key(memory, inbox=inbox, turn=TURN, seed=None):
        return bytes(keyed_memory(memory, inbox, turn, seed)[KEY].tolist())

    secret = {SECRET: torch.arange(32, dtype=torch.uint8)}
    again = {SECRET: torch.arange(32, dtype=torch.uint8)}
    assert key(secret) == key(again)  # the same message, the same noise
    assert key(secret) != key({SECRET: torch.arange(32, dtype=torch.uint8) + 1})
    assert key(secret) != key(secret, {"model": torch.tensor([0.0, 0.0, 1e-30])})
    assert key(secret) != key({**secret, "optimiser.momentum": torch.ones(3)})
    assert key(secret) != key(secret, turn=Turn(0, 1, 3, "train", "site-a"))
    assert key({}) != key({})  # a secret of its own each time
    assert key({}, seed=1) == key({}, seed=1)


def test_poisson_batches_draw_every_example_by_itself():
    recipe = Training(SGD(0.1), epochs=200, batch_size=10)
    batches = list(Poisson()(40, recipe, KEYED, TURN))
    assert len(batches) == steps_of(40, recipe) == 800
    assert rate_of(40, recipe) == 0.25
    sizes = torch.tensor([len(b) for b in batches], dtype=torch.float64)
    assert float(sizes.mean()) == pytest.approx(10, abs=4 * (7.5 / 800) ** 0.5)
    assert float(sizes.var()) == pytest.approx(40 * 0.25 * 0.75, rel=0.25)  # binomial
    counts = torch.bincount(torch.cat(batches), minlength=40).double()
    assert float((counts - 200).abs().max()) < 5 * (800 * 0.25 * 0.75) ** 0.5


@pytest.mark.parametrize(
    ("recipe", "count", "steps"),
    [
        (Training(SGD(0.1), epochs=2, batch_size=8), 20, 6),
        (Training(SGD(0.1), epochs=2, batch_size=8, drop_last=True), 20, 4),
        (Training(SGD(0.1), epochs=None, steps=5, batch_size=8), 20, 5),
    ],
)
def test_as_many_steps_as_shuffled_batches(recipe, count, steps):
    assert steps_of(count, recipe) == steps


def run(expression: str, rounds: int = 2, **noise) -> tuple[torch.Tensor, list]:
    clients = federation(3)
    federated = private(method(expression, TRAINING), **noise)
    pickle.loads(pickle.dumps(federated))
    model = Model(build("mlp(widths=[12])", (6,), 3, keyed("net")))
    state = start(federated, model, sorted(clients), seed=0)
    state, outcomes = play(federated, state, InProcess(model, clients), sorted(clients), rounds)
    return state.inbox["model"], outcomes


EXAMPLES = Examples(clip=1.0, noise=0.5, delta=1e-3)


@pytest.mark.parametrize(
    "expression",
    ["fedavg", "fedsgd", "fedprox", "ppdg", "scaffold", "fednova", "fedgala", "pcgrad", "median"],
)
def test_methods_train_with_noise_on_examples(expression):
    vector, outcomes = run(expression, examples=EXAMPLES)
    assert bool(vector.isfinite().all())
    assert "loss" not in outcomes[0].table  # a mean over the data, on which there is no noise
    assert set(outcomes[0].table) <= {"client", "progress", "rounds", "examples", "steps",
                                      "accumulated"}  # fmt: skip


def test_a_run_is_its_own_unless_a_test_asks_otherwise():
    assert not torch.equal(run("fedavg", examples=EXAMPLES)[0], run("fedavg", examples=EXAMPLES)[0])
    seeded = Examples(1.0, 0.5, 1e-3, seed=4)
    assert torch.equal(run("fedavg", examples=seeded)[0], run("fedavg", examples=seeded)[0])


def test_a_site_behind_bytes_gives_the_same_noise_for_the_same_secret():
    clients = federation(3)
    noise = Examples(1.0, 0.5, 1e-3, seed=4), Clients(1.0, 0.5, 1e-3, seed=5)
    federated = private(method("ppdg", TRAINING), *noise)
    names = sorted(clients)

    def run(make):
        network = build("mlp(widths=[12])", (6,), 3, keyed("net"))
        model = Model(network)
        state = start(federated, model, names, seed=0)
        return play(federated, state, make(network, model), names, 2)[0].inbox["model"]

    here = run(lambda _, model: InProcess(model, clients))
    assert torch.equal(run(lambda network, _: Remote(network, clients)), here)


def test_a_message_that_comes_twice_has_the_same_answer():
    clients = federation(2)
    federated = private(method("fedavg", TRAINING), EXAMPLES)
    model = Model(build("mlp(widths=[12])", (6,), 3, keyed("net")))
    state = start(federated, model, sorted(clients), seed=0)
    backend = InProcess(model, clients)
    state, _ = play(federated, state, backend, sorted(clients), 1)
    (exchange,) = federated.exchanges
    turn = Turn(0, 1, 3, "train", roster=tuple(sorted(clients)))
    first = [
        r.rows["model"].clone() for r in backend.map(exchange, state.inbox, sorted(clients), turn)
    ]
    again = [
        r.rows["model"].clone() for r in backend.map(exchange, state.inbox, sorted(clients), turn)
    ]
    other = {**state.inbox, "model": state.inbox["model"] + 1e-6}
    moved = [r.rows["model"].clone() for r in backend.map(exchange, other, sorted(clients), turn)]
    assert all(map(torch.equal, first, again))
    # Another message has other noise: the difference is noise twice, not the data's answer.
    assert all(float((a - b).norm()) > 0.01 for a, b in zip(first, moved, strict=True))


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("fedavg+ga", "report"),
        ("fediir", "outside the clipped"),
        ("feddg", "outside the clipped"),
        ("fedcsa", "report"),
        ("arfl", "report"),
        ("fedsam", "Perturbed"),
        ("scaffold(option=1)", "option 1"),
        ("fedcurv", "outside the clipped"),
        ("fishr", "outside the clipped"),
    ],
)
def test_what_looks_at_the_data_outside_the_step_is_refused(expression, reason):
    with pytest.raises(UnseenError, match="cannot be: ") as refusal:
        private(method(expression, TRAINING), EXAMPLES)
    assert reason in str(refusal.value)


def test_batchnorm_and_balanced_losses_are_refused_with_the_fix():
    network = build("bn-cnn", (1, 8, 8), 3, keyed("net"))
    with pytest.raises(UnseenError, match="GroupNorm"):
        check_layers(network, "fedavg+dp")
    check_layers(build("domainbed-cnn(width=8)", (1, 8, 8), 3, keyed("net")), "fedavg+dp")
    balanced = Training(SGD(0.1), loss=CrossEntropy(balanced=True))
    with pytest.raises(UnseenError, match="Leave balanced out"):
        private(method("fedavg", balanced), EXAMPLES)


UNIFORM = "fedavg(weights='uniform')"


def test_rows_leave_clipped_and_with_the_noise_asked_for():
    clients = federation(2)
    model = Model(build("mlp(widths=[400])", (6,), 3, keyed("net")))
    for trust, share in (("nobody", 1.0), ("sum", 2**-0.5)):
        quiet, loud = Clients(0.05, 0.0, 1e-3, trust), Clients(0.05, 2.0, 1e-3, trust)
        rows = {}
        for dp in (quiet, loud):
            federated = private(method(UNIFORM, TRAINING), clients=dp, summed=True)
            (exchange,) = federated.exchanges
            state = start(federated, model, sorted(clients), seed=0)
            turn = Turn(0, 0, 3, "train", roster=tuple(sorted(clients)))
            replies = InProcess(model, clients).map(exchange, state.inbox, sorted(clients), turn)
            assert not replies[0].scalars
            rows[dp.noise] = torch.stack([r.rows["model"] for r in replies]).double()
        assert rows[0.0].norm(dim=1).tolist() == pytest.approx([0.05, 0.05], rel=1e-5)
        noise = rows[2.0] - rows[0.0]
        # The deviation of n numbers is known to 1 / √(2n).
        near = 8 / (2 * noise.numel()) ** 0.5
        assert float(noise.std()) == pytest.approx(2.0 * 0.05 * share, rel=near)


@pytest.mark.parametrize("expression", [UNIFORM, "ppdg", "pcgrad", "median", "fedsgd"])
def test_every_rule_works_on_rows_that_are_private_already(expression):
    vector, _ = run(expression, clients=Clients(1.0, 0.1, 1e-3))
    assert bool(vector.isfinite().all())


@pytest.mark.parametrize(
    ("expression", "dp", "summed", "reason"),
    [
        ("fedavg", Clients(1.0, 1.0, 1e-3), False, "weights='uniform'"),
        ("scaffold", Clients(1.0, 1.0, 1e-3), False, "control"),
        ("feddg", Clients(1.0, 1.0, 1e-3), False, "cannot be"),
        (UNIFORM, Clients(1.0, 1.0, 1e-3, "sum"), False, "sees each row"),
        ("pcgrad", Clients(1.0, 1.0, 1e-3, "sum"), True, "depend on single ones"),
    ],
)
def test_refusals_for_whole_clients(expression, dp, summed, reason):
    with pytest.raises(UnseenError, match="cannot be: ") as refusal:
        private(method(expression, TRAINING), clients=dp, summed=summed)
    assert reason in str(refusal.value)


def test_gram_rules_take_the_known_noise_off_the_diagonal():
    K, P, s = 4, 20_000, 0.05
    generator = keyed("rows")
    clean = torch.randn(K, P, generator=generator) * 0.03 + 0.02
    noisy = clean + s * torch.randn(K, P, generator=generator)
    seen: list[torch.Tensor] = []

    class Spy(PCGrad):
        def mix(self, gram, table, state, generator):
            seen.append(gram)
            return super().mix(gram, table, state, generator)

    rule = Denoised(Spy("fixed"), s)
    rule(noisy, {}, rule.init(K, P))
    truth, raw = gram(clean).diagonal(), gram(noisy).diagonal()
    assert bool((raw > truth + 40).all())
    torch.testing.assert_close(seen[0].diagonal(), truth, rtol=0.05, atol=1.5)
    off = ~torch.eye(K, dtype=torch.bool)
    torch.testing.assert_close(seen[0][off], gram(noisy)[off])
    # Where only noise is left, a squared norm is never below what the noise hides.
    rule(s * torch.randn(K, P, generator=generator) * 0.5, {}, rule.init(K, P))
    assert bool((seen[1].diagonal() >= s**2 * (2 * P) ** 0.5 * 0.999).all())


def test_distances_between_noised_rows_are_those_without_noise():
    """CSAC's weights by distance, layer by layer: the noise alone would make all of them equal."""
    K, s = 3, 0.02
    layout = Layout.of({"a": torch.zeros(30_000), "b": torch.zeros(10_000)})
    generator = keyed("rows")
    clean = 0.05 * torch.randn(1, layout.size, generator=generator).repeat(K, 1)
    clean[2, :30_000] += 0.05
    clean[0, 30_000:] -= 0.05
    noisy = clean + s * torch.randn(K, layout.size, generator=generator)
    rule = SemanticDivergence(blocks="tensor")
    (exchange,) = private(
        method(f"{UNIFORM}+csac(blocks='tensor')", TRAINING), clients=Clients(1.0, s, 1e-3)
    ).exchanges
    denoised = exchange.slots["model"].combine
    assert isinstance(denoised, Denoised) and denoised.deviation == s
    right = rule(clean, {}, rule.init(K, layout.size, layout))[2]
    drowned = rule(noisy, {}, rule.init(K, layout.size, layout))[2]
    found = denoised(noisy, {}, denoised.init(K, layout.size, layout))[2]
    assert float((drowned - right).abs().max()) > 0.03
    torch.testing.assert_close(found, right, atol=0.02, rtol=0)


def test_denoised_is_the_rule_itself_where_there_is_no_noise():
    rows = torch.randn(3, 50, generator=keyed("rows"))
    plain, wrapped = PPDG(order="fixed"), Denoised(PPDG(order="fixed"), 0.0)
    a = plain(rows, {}, plain.init(3, 50))
    b = wrapped(rows, {}, wrapped.init(3, 50))
    assert torch.equal(a[0], b[0])
    assert torch.equal(a[2], b[2])


def test_settings_are_read_and_wrong_ones_named():
    examples, clients = read("dp(clip=1.0, noise=1.1, delta=1e-5)", "")
    assert examples == Examples(1.0, 1.1, 1e-5)
    assert clients is None
    with pytest.raises(UnseenError, match="did you mean 'noise'"):
        read("dp(clip=1.0, nois=1.1, delta=1e-5)", "")
    with pytest.raises(UnseenError, match="needs delta"):
        read("dp(clip=1.0, noise=1.1)", "")
    with pytest.raises(UnseenError, match="did you mean 'dp'"):
        read("", "pd(clip=1.0, noise=1.1, delta=1e-5)")
    with pytest.raises(UnseenError, match="in units of clip"):
        Examples(math.inf, 1.0, 1e-5)
    with pytest.raises(UnseenError, match="clip"):
        Examples(0.0, 1.0, 1e-5)
