"""Compressed updates against Stich et al. 2018, Algorithm 1, written in numpy for K clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.alone import played
from support.sites import federation

from unseen import Training, UnseenError, method
from unseen.core.optimiser import SGD
from unseen.core.row_codes import Code

STEP, ROUNDS = 0.3, 6
WHOLE = Training(SGD(STEP), epochs=None, steps=1, batch_size=1000, weights="uniform")


def rounded(values: np.ndarray) -> np.ndarray:
    """Round to eight binary digits, ties to even: bfloat16 by its definition."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    return np.ldexp(np.round(mantissa * 256) / 256, exponent)


def largest(values: np.ndarray, count: int) -> np.ndarray:
    kept = np.zeros_like(values)
    for place in np.argsort(-np.abs(values), kind="stable")[:count]:
        kept[place] = values[place]
    return kept


def gradient(x: np.ndarray, y: np.ndarray, vector: np.ndarray, classes: int) -> np.ndarray:
    """That of softmax regression's mean loss; the vector is W [C, D], then b [C]."""
    weight, bias = vector[:-classes].reshape(classes, -1), vector[-classes:]
    logits = x @ weight.T + bias
    shares = np.exp(logits - logits.max(1, keepdims=True))
    residual = shares / shares.sum(1, keepdims=True) - np.eye(classes)[y]
    return np.concatenate([(residual.T @ x).ravel(), residual.sum(0)]) / len(x)


@pytest.mark.parametrize(("share", "digits"), [(0.2, "float32"), (1.0, "bfloat16")])
def test_the_model_is_that_of_sparsified_sgd_with_memory(share: float, digits: str) -> None:
    clients = federation(3)
    ours = played(
        f"fedavg+compress(share={share}, digits='{digits}')", clients, ROUNDS, net="logistic",
        training=WHOLE,
    )  # fmt: skip
    data = [
        (c.train.x.double().numpy(), c.train.y.numpy())
        for c in map(clients.__getitem__, sorted(clients))
    ]
    start = played("fedavg", clients, 0, net="logistic", training=WHOLE).model.vector
    vector = start.double().numpy()
    count = int(np.ceil(share * len(vector)))
    error = [np.zeros_like(vector) for _ in data]
    for _ in range(ROUNDS):
        sent = []
        for k, (x, y) in enumerate(data):
            wanted = -STEP * gradient(x, y, vector, 3) + error[k]
            coded = rounded(wanted) if digits == "bfloat16" else largest(wanted, count)
            error[k] = wanted - coded
            sent.append(coded)
        vector = vector + sum(sent) / len(sent)
    # A float32's rounding can move a number to the neighbour among numbers of eight digits; the
    # memory makes up for it, so that the models stay as near as one such step.
    bound = 1e-5 if digits == "float32" else 2**-8 * STEP
    np.testing.assert_allclose(ours.model.vector.double().numpy(), vector, atol=bound)


def test_all_numbers_in_full_are_plain_federated_averaging() -> None:
    clients = federation(3)
    plain = played("fedavg", clients).model.vector
    coded = played("fedavg+compress(share=1.0, digits='float32')", clients).model.vector
    torch.testing.assert_close(coded, plain, rtol=1e-5, atol=1e-6)


def test_two_bytes_are_rounded_as_bfloat16_is_defined() -> None:
    values = torch.randn(5000, generator=torch.Generator().manual_seed(3)) * 100
    expected = torch.from_numpy(rounded(values.numpy())).float()
    assert torch.equal(Code(1.0, "bfloat16")(values), expected)


def test_what_is_kept_are_the_largest_numbers() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(4))
    expected = largest(values.numpy(), 30)
    assert np.array_equal(Code(0.0295, "float32")(values).numpy(), expected)


@pytest.mark.parametrize(
    "expression", ["glm+compress", "fedavg+compress+compress", "boost+compress"]
)
def test_what_sends_no_update_is_refused(expression: str) -> None:
    with pytest.raises(UnseenError, match="compress"):
        method(expression)


@pytest.mark.parametrize("base", ["agrrand", "median", "geometric", "fedgma"])
def test_rules_that_compare_each_coordinate_are_for_whole_rows(base: str) -> None:
    with pytest.raises(UnseenError, match="most of them would send 0"):
        method(f"{base}+compress")
    method(f"{base}+compress(share=1.0)")


def test_the_share_is_rounded_up_to_whole_numbers_and_no_further() -> None:
    """⌈h P / 100⌉ in whole numbers; the product of floats is above 7 for 0.07 · 100."""
    for h in range(1, 101):
        for P in (1, 99, 100, 1000, 10_000):
            assert Code(h / 100).count_of(P) == -(-h * P // 100)


@pytest.mark.parametrize(
    "expression",
    ["fedbn+compress", "gperxan+compress", "fedavg+intercepts+compress",
     "fedavg+compress+intercepts"],
)  # fmt: skip
def test_what_a_client_has_for_itself_is_no_update(expression: str) -> None:
    """Memory of what was not sent is of steps; of values it would be sent again and again."""
    with pytest.raises(UnseenError, match="for itself as a value|site's own is not an update"):
        method(expression)
    method(expression.replace("compress", "compress(share=1)"))
