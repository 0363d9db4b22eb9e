"""FedCSA against loops over the named tensors of a net, row by row."""

from __future__ import annotations

import copy

import pytest
import torch
from support.sites import federation, images

from unseen import Client, Model, Split, Training, UnseenError, method, play, start
from unseen.core.optimiser import SGD
from unseen.core.rows import DenseRows
from unseen.core.turn import Turn, keyed
from unseen.core.vector import Layout
from unseen.data.networks import build
from unseen.engine.inprocess import InProcess
from unseen.methods.combine import ClassShares, GeneralizationAdjustment, Mean
from unseen.methods.combine.fedcsa import class_of_columns

COUNTS = [[10, 0, 5, 0], [20, 30, 5, 0], [0, 10, 20, 0]]


class Loose(torch.nn.Module):
    """A head that lies in the middle of the vector, its weight transposed in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(5, 3)
        self.classifier = torch.nn.Linear(3, 4)
        self.classifier.weight = torch.nn.Parameter(torch.randn(3, 4).t())
        self.tail = torch.nn.LayerNorm(4)

    def forward(self, x):
        return self.tail(self.classifier(self.body(x)))


def literal(updates: list[dict], head: str, counts, p, a=None) -> dict:
    """Row c: Σ_i a_i n_ic u_ic / Σ_j a_j n_jc, by p_i where nobody has class c; else by p_i."""
    a = a if a is not None else [1.0] * len(p)
    result = {}
    for name in updates[0]:
        body = sum(q * u[name].double() for q, u in zip(p, updates, strict=True))
        if name.startswith(head + "."):
            for c in range(len(body)):
                total = sum(x * n[c] for x, n in zip(a, counts, strict=True))
                if total > 0:
                    parts = zip(a, counts, updates, strict=True)
                    body[c] = sum(x * n[c] / total * u[name][c].double() for x, n, u in parts)
        result[name] = body
    return result


def test_every_row_of_the_head_goes_by_its_class_wherever_it_lies():
    layout = Model(Loose()).layout
    assert layout.strides[layout.names.index("classifier.weight")] == (1, 4)
    u = torch.randn(3, layout.size, generator=keyed("fedcsa"))
    table = {"examples": torch.tensor([15.0, 55.0, 30.0]), "counts": torch.tensor(COUNTS)}
    rule = ClassShares()
    vector, _, weights = rule(u, table, rule.init(3, layout.size, layout))
    expected = literal([layout.views(row) for row in u], "classifier", COUNTS, [0.15, 0.55, 0.3])
    for name, view in layout.views(vector).items():
        torch.testing.assert_close(view, expected[name].float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights.sum(1), torch.ones(len(weights), dtype=torch.float64))


@pytest.mark.parametrize("model", ["logistic", "mlp(widths=[7])", "bn-cnn"])
def test_it_needs_nothing_but_sums_over_blocks_of_columns(model: str):
    """A backend that gives linear combinations only, as under masks or encryption."""

    class Sums(DenseRows):
        def gram(self, blocks=None):
            raise AssertionError

        def dense(self):
            raise AssertionError

    layout = Model(build(model, (1, 8, 8), 4, keyed("net"))).layout
    u = torch.randn(3, layout.size, generator=keyed("fedcsa"))
    table = {"examples": torch.tensor([15.0, 55.0, 30.0]), "counts": torch.tensor(COUNTS)}
    rule = ClassShares()
    vector, _, _ = rule(Sums(u), table, rule.init(3, layout.size, layout))
    expected = literal([layout.views(row) for row in u], "head", COUNTS, [0.15, 0.55, 0.3])
    for name, view in layout.views(vector).items():
        torch.testing.assert_close(view, expected[name].float(), rtol=1e-5, atol=1e-6)
    # Twice as many runs as classes, at most one before and one after each tensor of the head.
    assert len(rule.init(3, layout.size, layout)["runs"]) <= 2 * 4 + 3


@pytest.mark.parametrize("weights", ["examples", "uniform"])
@pytest.mark.parametrize("fraction", [1.0, 3])
def test_a_round_is_that_of_the_named_tensors(weights: str, fraction):
    clients = skewed(images(4))
    net = build("bn-cnn", (1, 8, 8), 3, keyed("net"))
    training = Training(SGD(0.05), batch_size=8)
    model, names = Model(copy.deepcopy(net)), sorted(clients)
    chosen = method(f"fedcsa(weights='{weights}')", training)
    begun = start(chosen, model, names, 0)
    state, (outcome,) = play(chosen, begun, InProcess(model, clients), names, 1, fraction)
    present = [clients[n] for n in outcome.names]
    (exchange,) = chosen.exchanges
    replies = InProcess(model, clients).map(
        exchange, begun.inbox, list(outcome.names), Turn(0, 0, 1, exchange.name)
    )
    counts = [[int((c.train.y == k).sum()) for k in range(3)] for c in present]
    sizes = [len(c.train) if weights == "examples" else 1 for c in present]
    p = [n / sum(sizes) for n in sizes]
    updates = [model.layout.views(reply.rows["model"].clone()) for reply in replies]
    expected = literal(updates, "head", counts, p)
    before = model.layout.views(begun.inbox["model"])
    for name, view in model.layout.views(state.inbox["model"]).items():
        torch.testing.assert_close(
            view, before[name] + expected[name].float(), rtol=1e-5, atol=1e-6
        )
    moved = sum(q * reply.rows["buffers"] for q, reply in zip(p, replies, strict=True))
    found = state.inbox["buffers"] - begun.inbox["buffers"]
    torch.testing.assert_close(found, moved, rtol=1e-4, atol=1e-6)
    assert outcome.table["counts"].tolist() == counts


def test_clients_with_the_same_shares_of_classes_are_fedavg():
    """n_ic / Σ_j n_jc is n_i / Σ_j n_j then."""
    clients = {}
    for k, times in enumerate((1, 3, 2)):
        y = torch.tensor([0, 1, 1, 2] * 4 * times)
        x = torch.randn(len(y), 6, generator=keyed(f"same/{k}")) + y[:, None]
        name = f"site-{chr(ord('a') + k)}"
        clients[name] = Client(name, Split(x, y), None, 3)
    a, b = (played(e, clients).inbox["model"] for e in ("fedcsa", "fedavg"))
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    skewed_clients = skewed(federation(3))
    a, b = (played(e, skewed_clients).inbox["model"] for e in ("fedcsa", "fedavg"))
    assert (a - b).abs().max() > 1e-3


def test_gas_weights_enter_the_body_and_with_the_counts_the_rows():
    layout = Model(Loose()).layout
    rule = method("fedcsa+ga").exchanges[0].slots["model"].combine
    assert rule == ClassShares(prior=GeneralizationAdjustment())
    u = torch.randn(3, layout.size, generator=keyed("fedcsa"))
    gaps = {"gap": torch.tensor([0.3, 0.1, 0.2]), "gap_known": torch.ones(3)}
    vector, _, _ = rule(u, {**gaps, "counts": torch.tensor(COUNTS)}, rule.init(3, 1, layout))
    a = [1 / 3 + 0.05, 1 / 3 - 0.05, 1 / 3]  # Eq. 3 of GA, centred
    expected = literal([layout.views(row) for row in u], "classifier", COUNTS, a, a)
    for name, view in layout.views(vector).items():
        torch.testing.assert_close(view, expected[name].float(), rtol=1e-5, atol=1e-6)
    buffers = method("fedcsa+ga").exchanges[0].slots["buffers"].combine
    assert buffers == GeneralizationAdjustment()
    expressions = ("fedcsa+ga(step=0)", "fedcsa(weights='uniform')")
    even, plain = (played(e, skewed(federation(3))).inbox["model"] for e in expressions)
    torch.testing.assert_close(even, plain, rtol=1e-6, atol=1e-6)


def test_the_head_may_be_named_and_must_have_a_row_for_each_class():
    layout = Model(build("mlp(widths=[4])", (6,), 3, keyed("net"))).layout
    rows, owner = class_of_columns(layout, "fc1")
    assert (rows, owner.tolist()[:6]) == (4, [0] * 6)
    assert class_of_columns(layout)[0] == 3
    with pytest.raises(UnseenError, match=r"the head must be a linear layer.*'fc2'.*fc1, head"):
        class_of_columns(layout, "fc2")
    vectors = Layout.of({"a": torch.zeros(3)})
    with pytest.raises(UnseenError, match="found 'none'.*linear layers: none"):
        class_of_columns(vectors)
    two = {n: Client(n, Split(c.train.x, c.train.y % 2), None, 2) for n, c in federation(2).items()}
    with pytest.raises(UnseenError, match="the head has 1 for 2 classes"):
        played("fedcsa", two, "mlp(widths=[], logits=1)", 2)
    with pytest.raises(UnseenError, match="the head has 8 for 3 classes"):
        played("fedcsa(head='fc1')", federation(2))
    numbers = {"site-a": Client("site-a", Split(torch.randn(9, 6), torch.randn(9)), None, None)}
    with pytest.raises(UnseenError, match="counts classes; client 'site-a' has numbers"):
        played("fedcsa", numbers, "logistic", 1)
    with pytest.raises(UnseenError, match="needs the layout"):
        ClassShares().init(2, 10)
    assert method("fedcsa").asks == ("classes",)
    assert method("fedcsa").shares == ("how many examples of each class it has",)


@pytest.mark.parametrize(
    "name", ["ppdg", "pcgrad", "agrsum", "agrrand", "geometric", "csac", "fednova"]
)
def test_other_rules_of_the_whole_vector_are_refused(name: str):
    with pytest.raises(UnseenError, match=rf"^fedcsa\+{name} cannot be: .*already decides"):
        method(f"fedcsa+{name}")


def test_what_acts_on_the_clients_alone_goes_with_it():
    rule = method("fedcsa").exchanges[0].slots["model"].combine
    assert rule == ClassShares(prior=Mean("examples"))
    for modifier in ("fedprox", "fedsam"):
        assert method(f"fedcsa+{modifier}").exchanges[0].slots["model"].combine == rule


def skewed(clients):
    """Each client with fewer of one class, none of it at the first."""
    result = {}
    for k, (name, client) in enumerate(clients.items()):
        keep = (client.train.y != k % 3) | (torch.arange(len(client.train)) % (k + 2) == 1)
        keep &= (client.train.y != 0) | (k > 0)
        split = Split(client.train.x[keep], client.train.y[keep])
        result[name] = Client(name, split, client.validation, client.classes)
    return result


def played(expression, clients, kind="mlp(widths=[8])", outputs=3, rounds=2):
    net, names = build(kind, (6,), outputs, keyed("net")), sorted(clients)
    chosen, model = method(expression, Training(SGD(0.1), batch_size=8)), Model(net)
    state = start(chosen, model, names, 0)
    return play(chosen, state, InProcess(model, clients), names, rounds)[0]
