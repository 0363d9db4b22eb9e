"""Several federations in one are each what they are alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.alone import RECIPE, played
from support.sites import federation, images

from unseen import UnseenError, method
from unseen.core import Exchange
from unseen.engine.inprocess import InProcess


@pytest.mark.parametrize(
    "expression", ["fedavg", "ppdg+ga", "scaffold", "fedprox+shift", "fedavg+ema", "fishr"]
)
def test_each_member_of_an_ensemble_is_the_method_with_another_seed(expression):
    clients = federation(4)
    whole = played(f"{expression}+ensemble(members=2)", clients)
    for m in range(2):
        alone = played(expression, clients, seed=1000 * m)
        part = whole.model.layout.part(f"members.{m}")
        # A matrix product of a part of the columns may sum in another order.
        torch.testing.assert_close(
            whole.state.inbox["model"][part], alone.state.inbox["model"], rtol=1e-5, atol=1e-6
        )


def test_an_ensemble_of_one_is_the_method_bit_for_bit():
    clients = federation(3)
    one, alone = (played(e, clients).state.inbox for e in ("fedavg+ensemble(members=1)", "fedavg"))
    assert all(torch.equal(one[name], alone[name]) for name in alone)


@pytest.mark.parametrize("expression", ["fedavg", "csac"])
def test_batch_normalisation_goes_along(expression):
    clients = images(3)
    whole = played(f"{expression}+ensemble(members=2)", clients, net="bn-cnn", rounds=2)
    alone = played(expression, clients, net="bn-cnn", rounds=2)
    part = slice(*whole.model.buffer_layout.span("members.0"))
    torch.testing.assert_close(whole.state.inbox["buffers"][part], alone.state.inbox["buffers"])


def test_predictions_are_mean_probabilities():
    clients = federation(3)
    model = played("fedavg+ensemble(members=3)", clients).model
    x = clients["site-a"].train.x
    with torch.no_grad():
        p = torch.stack([m(x).softmax(-1) for m in model.module.members]).mean(0)
        torch.testing.assert_close(model(x).softmax(-1), p)


@pytest.mark.parametrize("expression", ["deepall+ensemble", "copa+ensemble", "fedavg+ensemble+ga"])
def test_what_does_not_go_together_is_refused(expression):
    with pytest.raises(UnseenError):
        method(expression)


def literal_average(expression, weigh):
    """The mean along the trajectory, by a loop over rounds played one after the other."""
    clients, mean, states = federation(3), None, []
    for rounds in range(1, 7):
        states.append(played(expression, clients, rounds=rounds).state.inbox["model"])
    for r, state in enumerate(states):
        mean = weigh(r, len(states), mean, state)
    return mean


def test_the_tail_mean_by_a_loop():
    expected = literal_average(
        "fedavg", lambda r, R, m, x: x / (R - R // 2) * (r >= R // 2) + (0 if m is None else m)
    )
    run = played("fedavg+tail(start=0.5)", federation(3), rounds=6)
    part = run.model.layout.part("average")
    torch.testing.assert_close(run.state.inbox["model"][part], expected)
    trained = run.model.layout.part("trained")
    alone = played("fedavg", federation(3), rounds=6).state.inbox["model"]
    torch.testing.assert_close(run.state.inbox["model"][trained], alone)


def test_the_moving_average_by_a_loop():
    expected = literal_average("fedavg", lambda r, R, m, x: x if m is None else 0.8 * m + 0.2 * x)
    run = played("fedavg+ema(decay=0.8)", federation(3), rounds=6)
    part = run.model.layout.part("average")
    torch.testing.assert_close(run.state.inbox["model"][part], expected)


def test_the_average_predicts():
    clients = federation(3)
    run = played("fedavg+tail", clients)
    x = clients["site-a"].train.x
    with torch.no_grad():
        torch.testing.assert_close(run.model(x), run.model.module.average(x))


def test_the_training_may_ask_for_an_average_and_an_ensemble_of_all_methods():
    recipe = replace(RECIPE, average="ema(decay=0.5)", ensemble=2)
    clients = federation(3)
    asked = played("fedavg", clients, training=recipe)
    written = played("fedavg+ema(decay=0.5)+ensemble(members=2)", clients)
    assert asked.method.name == "fedavg"
    assert torch.equal(asked.state.inbox["model"], written.state.inbox["model"])
    exact, alone = (played("glm", clients, training=t) for t in (recipe, RECIPE))
    assert torch.equal(exact.state.inbox["model"], alone.state.inbox["model"])
    with pytest.raises(UnseenError, match="one average"):
        method("fedavg", replace(RECIPE, average="ga"))


class Narrow(InProcess):
    """Clients that are sent what an exchange reads, and count the numbers."""

    numbers = 0

    def map(self, exchange, inbox, clients, turn):
        entries = exchange.outgoing(inbox)
        Narrow.numbers += sum(entry.numel() for entry in entries.values())
        whole = exchange.incoming(entries, len(self.model.vector))
        return super().map(exchange, whole, clients, turn)


@pytest.mark.parametrize(
    "expression",
    [
        "fedavg+ensemble(members=2)", "scaffold+ga+ensemble(members=2)", "fedavg+ema",
        "stack(members=['glm', 'boost(trees=2)', 'forest(trees=3, depth=3)', 'fedavg+shift'])",
        "portfolio(members=['glm', 'fedavg+shift'], ensemble=2, groups=2)",
    ],
)  # fmt: skip
def test_clients_need_no_more_than_they_are_sent(expression):
    clients = federation(4)
    Narrow.numbers = 0
    narrow, whole = (played(expression, clients, backend=b) for b in (Narrow, InProcess))
    assert narrow.state.inbox.keys() == whole.state.inbox.keys()
    assert all(torch.equal(whole.state.inbox[n], e) for n, e in narrow.state.inbox.items())
    exchanges = len(narrow.outcomes)
    sizes = sum(entry.numel() for entry in whole.state.inbox.values())
    if "members=[" in expression:
        assert Narrow.numbers < exchanges * sizes / 2


def test_parts_of_a_model_are_sent_one_after_the_other():
    exchange = Exchange("e", None, reads=((1, 3), (5, 6)), keys=("@a", "rate"))  # type: ignore[arg-type]
    zero = torch.zeros(1)
    inbox = {"model": torch.arange(7.0), "buffers": zero, "m@a": zero, "m@b": zero, "rate": zero}
    entries = exchange.outgoing(inbox)
    assert entries["model"].tolist() == [1, 2, 5] and set(entries) == set(inbox) - {"m@b"}
    assert exchange.incoming(entries, 7)["model"].tolist() == [0, 1, 2, 0, 0, 5, 0]
    other = exchange.incoming({"model": torch.zeros(4)}, 7)
    assert other["model"].shape == (4,)  # refused by whoever checks the model


@pytest.mark.parametrize("holder", ["ema", "tail", "ensemble(members=2)"])
@pytest.mark.parametrize(
    "modifier", ["ga", "fedprox(mu=0.1)", "rsc", "shift", "compress", "fedadg"]
)
def test_what_changes_one_model_comes_before_what_holds_several(holder: str, modifier: str) -> None:
    name = modifier.partition("(")[0]
    with pytest.raises(UnseenError) as caught:
        method(f"fedavg+{holder}+{modifier}")
    assert str(caught.value).startswith(f"fedavg+{holder}+{name} cannot be: fedavg+{holder} holds")
    assert "Put it before what holds them, as in fedavg+ga+ema" in str(caught.value)
    assert method(f"fedavg+{modifier}+{holder}").name == f"fedavg+{modifier}+{holder}"


def test_a_refusal_names_the_expression_so_far() -> None:
    with pytest.raises(UnseenError, match=r"^fedprox\(mu=0.5\)\+ga\+ga cannot be: GA already"):
        method("fedprox(mu=0.5)+ga+ga")
