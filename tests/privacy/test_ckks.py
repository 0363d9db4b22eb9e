"""Encrypted rows: as in the clear, or refused."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.channels import Stack, convolutions, difference, trained, updates
from support.sites import images

pytest.importorskip("tenseal", reason="the extra `he` is not installed")

from unseen import Study, UnseenError, method
from unseen.core.vector import Layout
from unseen.errors import BadReply
from unseen.methods import METHODS
from unseen.methods.combine import PPDG, Mean, PCGrad, SemanticDivergence
from unseen.privacy import channel, ckks, kinds, wire
from unseen.privacy.ckks import arithmetic
from unseen.privacy.wire import pack, unpack

READINGS = [
    f"ppdg(base='{base}', others='{others}')"
    for base, others in itertools.product(("raw", "running", "equation"), ("modified", "raw"))
]
RULES = ["fedavg", "pcgrad", "fedavg+ga", "fednova", "ppdg(when='always')", *READINGS]


@pytest.fixture(scope="module")
def keys() -> tuple[bytes, bytes]:
    return ckks.make_keys()


# --- as in the clear ------------------------------------------------------------------------------


@pytest.mark.parametrize("expression", ["fedavg", "pcgrad", "fedavg+ga", "fednova", *READINGS[::3]])
def test_three_rounds_as_in_the_clear(expression: str) -> None:
    plain, _, _ = trained(expression, 2)
    found, outcomes, backend = trained(expression, 2, "ckks")
    for entry in ("model", "buffers"):
        assert difference(found.inbox[entry], plain.inbox[entry]) < 1e-5
    assert {left.form for left in backend.disclosed() if left.slot == "model"} == {"encrypted"}
    assert len(outcomes) == 3


@pytest.mark.slow
@pytest.mark.parametrize("K", [2, 3, 4, 5])
@pytest.mark.parametrize("expression", RULES)
def test_three_rounds_with_more_clients(expression: str, K: int) -> None:
    clients = images(K)
    plain, _, _ = trained(expression, clients, module=convolutions)
    found, _, _ = trained(expression, clients, "ckks", module=convolutions)
    assert difference(found.inbox["model"], plain.inbox["model"]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("expression", [*RULES[:4], "ppdg", "fedavg+csac(blocks='module')"])
def test_three_rounds_of_a_study_on_digits(expression: str, tmp_path: Path) -> None:
    """Five sites of real digits and the small net of convolutions of the demo studies."""
    ends = []
    for over in ("clear", "ckks"):
        study = Study(
            dataset="rotated-digits", methods=[expression], targets=["0"], seeds=1, rounds=3,
            model="mnist-cnn(channels=[8, 16], hidden=32)", save=["final"],
            privacy={"channel": over},
        )  # fmt: skip
        study.run(out=tmp_path / over)
        (path,) = (tmp_path / over).rglob("final.safetensors")
        ends.append(load_file(path))
    before, after = (torch.cat([v.double().flatten() for v in end.values()]) for end in ends)
    assert difference(after, before) < 1e-5


@pytest.mark.parametrize(
    ("K", "rounds"), [(2, 1), *(pytest.param(K, 3, marks=pytest.mark.slow) for K in (2, 3, 4, 5))]
)
@pytest.mark.parametrize("favour", ["divergent", pytest.param("similar", marks=pytest.mark.slow)])
def test_inner_products_of_every_layer(K: int, rounds: int, favour: str) -> None:
    expression = f"fedavg+csac(favour='{favour}', blocks='module')"
    clients = images(K)
    plain, _, _ = trained(expression, clients, rounds=rounds, module=convolutions)
    found, outcomes, _ = trained(expression, clients, "ckks", rounds=rounds, module=convolutions)
    assert difference(found.inbox["model"], plain.inbox["model"]) < 1e-5
    assert outcomes[0].weights["model"].shape[-1] == K


def test_inner_products_of_layers_that_share_and_span_ciphertexts(
    keys: tuple[bytes, bytes],
) -> None:
    sizes = {"a": 30, "b": 9000, "c": 5, "d": 0, "e": 700}
    layout = Layout.of({n: torch.zeros(size) for n, size in sizes.items()})
    rows = updates(2, layout.size)
    rows[:, 9030:9035] *= 1e-3  # a layer of small numbers beside one of large ones
    rule = SemanticDivergence(blocks="tensor")
    stack = Stack(rows, rule, keys=keys)
    vector, _, weights = stack.combine(rule, layout=layout)
    state = rule.init(2, layout.size, layout)
    expected, _, right = rule(rows, {}, state)
    assert torch.allclose(weights, right, atol=1e-5)
    assert difference(vector, expected) < 1e-6


def test_weights_by_class_columns(keys: tuple[bytes, bytes]) -> None:
    plain, _, _ = trained("fedcsa", 3, rounds=2)
    found, _, _ = trained("fedcsa", 3, "ckks", rounds=2)
    assert difference(found.inbox["model"], plain.inbox["model"]) < 1e-5


def test_rows_of_any_magnitude(keys: tuple[bytes, bytes]) -> None:
    rule = PCGrad(order="fixed")
    for scale in (1e-12, 1e-4, 1.0, 1e6):
        rows = updates(3, 5000) * scale
        rows[1] *= 100
        stack = Stack(rows.double(), rule, keys=keys)
        vector, _, weights = stack.combine(rule)
        expected, _, right = rule(rows.double(), {}, rule.init(3, 5000))
        assert torch.allclose(weights, right, atol=1e-7), scale
        assert difference(vector, expected) < 1e-5, scale


@pytest.mark.parametrize("K", [2, 3, 5])
def test_equation_5_evaluated_on_ciphertexts(K: int, keys: tuple[bytes, bytes]) -> None:
    """Ê(g_i) = E(g_i) ⊖ E(2) ⊗ E(λ) ⊗ (E(g_i) ⊖ E(g_j)), letter by letter, for i and for j ≠ i,
    where the sites found <Ê(g_i), g_j> < 0."""
    lam, P = 0.2, 4096
    g = updates(K, P)
    g[1:] -= 0.5 * g[0]
    g[K - 1] -= 0.4 * g[1] * (K > 2)
    scheme, encryptor, decryptor = ckks.Keys(keys[0], "secret").tools(1)

    def encrypted(x: torch.Tensor) -> object:
        made = encryptor.encrypt_symmetric(scheme.encoded(x.double().numpy(), 2.0**40))
        return scheme.ciphertext(scheme.to_bytes(made), "a row")

    def modified(i: object, j: object) -> object:
        step, total = scheme.api.Ciphertext(scheme.context), scheme.api.Ciphertext(scheme.context)
        scheme.evaluator.sub(i, j, step)
        scheme.evaluator.multiply_plain_inplace(step, scheme.encoded(2 * lam, 2.0**40))
        scheme.evaluator.multiply_plain(i, scheme.encoded(1.0, 2.0**40), total)
        scheme.evaluator.sub_inplace(total, step)
        return total

    rows, literal, conflicts = [encrypted(row) for row in g], [], 0
    for i in range(K):
        found = g[i].double().numpy()
        for j in range(K):
            if j != i and found @ g[j].double().numpy() < 0:
                found, conflicts = (
                    scheme.decoded(decryptor, modified(rows[i], rows[j])),
                    conflicts + 1,
                )
        literal.append(found)
    assert conflicts >= K
    rule = PPDG(lam=lam, base="equation", others="raw", order="fixed")
    vector, _, _ = Stack(g, rule, keys=keys).combine(rule)
    assert difference(vector, torch.from_numpy(np.mean(literal, axis=0))) < 1e-5


@pytest.mark.parametrize("cosine", [1e-3, -1e-3, 1e-5, -1e-5])
def test_signs_near_zero(cosine: float, keys: tuple[bytes, bytes]) -> None:
    a, b = updates(2, 20000).double()
    b -= (a @ b) / (a @ a) * a  # orthogonal up to rounding in float64
    b += cosine * b.norm() / a.norm() * a
    rows = torch.stack([a, b])
    rule = PPDG(lam=0.2, order="fixed")
    stack = Stack(rows, rule, keys=keys)
    _, _, weights = stack.combine(rule)
    conflict = weights[0] != 0.5 or bool((weights != weights.mean()).any())
    expected = rule.weights(rows @ rows.T, {}, rule.init(2, 20000))[0]
    assert torch.allclose(weights, expected, atol=1e-8)
    assert conflict == (cosine < 0)
    assert not stack.server.undecided


def test_a_sign_that_nobody_can_know_is_reported(keys: tuple[bytes, bytes]) -> None:
    a, b = updates(2, 8192).double()
    b -= (a @ b) / (a @ a) * a
    rule = PPDG(lam=0.2, order="fixed")
    stack = Stack(torch.stack([a, b]), rule, keys=keys)
    _, _, weights = stack.combine(rule)
    assert weights.tolist() == [0.5, 0.5]  # no conflict, as for an inner product of 0
    (found,) = stack.server.undecided
    assert (found.first, found.second) == ("site-0", "site-1")


def test_a_row_of_zeros_conflicts_with_nothing(keys: tuple[bytes, bytes]) -> None:
    rows = updates(3, 300)
    rows[1] = 0
    rule = PPDG(lam=0.2, order="fixed")
    _, _, weights = Stack(rows, rule, keys=keys).combine(rule)
    expected = rule(rows, {}, rule.init(3, 300))[2]
    assert torch.allclose(weights, expected, atol=1e-8)


@pytest.mark.parametrize("rule", [PPDG(lam=0.2, order="fixed"), PCGrad(order="fixed")])
def test_rows_of_zeros_conflict_with_nothing_and_not_with_one_another(
    rule: PPDG | PCGrad, keys: tuple[bytes, bytes]
) -> None:
    rows = updates(8, 300)
    rows[2:] = 0
    _, _, weights = Stack(rows, rule, keys=keys).combine(rule)
    expected = rule(rows, {}, rule.init(8, 300))[2]
    assert torch.allclose(weights, expected, atol=1e-7)


def test_the_noise_of_inner_products_is_what_signs_are_decided_by(
    keys: tuple[bytes, bytes],
) -> None:
    """Of rows of zeros and of others: deviations of the errors over what `uncertainty` says."""
    for scale, low in ((0.0, 0.2), (1.0, 0.4)):
        rows = scale * updates(8, 300).double()
        stack = Stack(rows, PPDG(), keys=keys)
        stack.combine(PPDG())
        header, parts = unpack(stack.questions[0]["site-0"], "the question")
        found = arithmetic.inner_products(ckks.Keys(keys[0], "secret"), header, parts)
        spread = arithmetic.uncertainty(found, header["exponents"], header["size"], False)
        ratio = (found[0] - (rows @ rows.T).numpy()) / spread[0]
        assert float(np.abs(ratio).max()) < arithmetic.DECIDED
        # Expected: 0.7 and 1, uncertain by a sixth.
        assert low < float(np.sqrt(np.square(ratio[np.triu_indices(8)]).mean())) < 2.2


def test_a_sketch_decides_clear_signs(keys: tuple[bytes, bytes]) -> None:
    rows = updates(3, 9000)
    rows[1] -= 0.7 * rows[0]
    rows[2] += 0.7 * rows[0]
    rule = PPDG(lam=0.2, order="fixed")
    stack = Stack(rows, rule, "sketch(4096)", keys=keys)
    vector, _, weights = stack.combine(rule)
    expected, _, right = rule(rows, {}, rule.init(3, 9000))
    assert torch.allclose(weights, right, atol=1e-8)
    assert difference(vector, expected) < 1e-6
    small = unpack(stack.messages["site-0"], "a row")[1]
    assert len(small) == 3 + 1  # three ciphertexts of the row, one of its sketch


def test_a_sketch_reports_signs_it_cannot_tell(keys: tuple[bytes, bytes]) -> None:
    stack = Stack(updates(2, 9000), PPDG(lam=0.2), "sketch(64)", keys=keys)
    stack.combine(PPDG(lam=0.2))
    assert len(stack.server.undecided) == 1


# --- what is seen ---------------------------------------------------------------------------------


def test_sites_learn_the_inner_product_and_no_other_coefficient(keys: tuple[bytes, bytes]) -> None:
    """In one chunk a product's slots are u_k²: here they are drowned."""
    rows = updates(2, 4096).double()
    rule = PPDG()
    stack = Stack(rows, rule, keys=keys)
    stack.combine(rule)
    _, parts = unpack(stack.questions[0]["site-0"], "the question")
    scheme, _, decryptor = ckks.Keys(keys[0], "secret").tools(1)
    product = scheme.ciphertext(parts[0], "a product")
    top = float(rows[0].abs().max())
    exponent = 4 * int(np.ceil(np.log2(top) / 4))
    mean = scheme.mean(decryptor, product) * 4096 * 4.0**exponent
    # Each slot errs by σ = 3.2 √(8192 / 2) / 2⁴⁰, so that ⟨u + e, u + e⟩ is 2 ‖u‖ σ off.
    deviation = 2 * float(rows[0].norm()) * 3.2 * 64 / 2**40
    assert abs(mean - float(rows[0] @ rows[0])) < 8 * deviation
    slots = scheme.decoded(decryptor, product) * 4.0**exponent
    assert float(np.abs(slots).min()) > 0 and float(np.abs(slots).max()) > 1.0
    correlation = np.corrcoef(slots, rows[0].square().numpy())[0, 1]
    assert abs(correlation) < 8 / 4096**0.5


def test_only_weights_go_back(keys: tuple[bytes, bytes]) -> None:
    rows = updates(3, 100)
    stack = Stack(rows, PPDG(), keys=keys)
    answers: list[bytes] = []
    ask = stack.ask

    def listening(questions: dict[str, bytes]) -> dict[str, bytes]:
        found = ask(questions)
        answers.extend(found.values())
        return found

    stack.ask = listening  # type: ignore[method-assign]
    stack.combine(PPDG())
    said = [unpack(answer, "an answer")[0] for answer in answers]
    assert [header["kind"] for header in said] == ["weights"] * 3 + ["sum"]
    expected = {"kind", "slot", "round", "exchange", "weights", "state", "undecided"}
    assert set(said[0]) - {"lengths"} == expected
    assert all(isinstance(w, int) for w in said[0]["weights"])


def test_a_sum_goes_back_rounded(keys: tuple[bytes, bytes]) -> None:
    rows = updates(2, 100).double()
    vector, _, _ = Stack(rows, Mean("uniform"), keys=keys).combine(Mean("uniform"))
    step = 2.0**-arithmetic.SUM_BITS  # entries lie between 1/16 and 1
    assert torch.equal(vector, (vector / step).round() * step)
    assert float((vector - rows.mean(0)).abs().max()) < step


def test_upward_bytes_are_under_eight_times_those_of_float32(keys: tuple[bytes, bytes]) -> None:
    message = ckks.encrypt(keys[0], updates(1, 40960)[0], {})
    assert len(message) < 8 * 4 * 40960


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["agrsum", "median", "geometric", "copa", "csac-l1"])
def test_rules_that_read_updates_are_refused_before_the_run(name: str) -> None:
    expression = "fedavg+csac(distance='l1')" if name == "csac-l1" else name
    if name not in METHODS and name != "csac-l1":
        expression = f"fedavg+{name}"
    with pytest.raises(UnseenError, match=r"^[^`]+\+ckks cannot be: [^`]+$"):
        channel.check(channel.read("ckks"), method(expression))


def test_a_sketch_of_layers_is_refused_before_the_run() -> None:
    with pytest.raises(UnseenError, match="sketch is of the whole vector"):
        channel.check(channel.read("ckks(gram='sketch(64)')"), method("csac"))


def test_pooled_training_is_refused() -> None:
    with pytest.raises(UnseenError, match="pools all data"):
        channel.check(channel.read("ckks"), method("deepall"))


@pytest.mark.parametrize("expression", ["ckks(gram='some')", "ckks(gram='sketch(3)')", "aes"])
def test_channels_that_are_none(expression: str) -> None:
    with pytest.raises(UnseenError):
        channel.read(expression)


def test_a_server_refuses_a_secret_key(keys: tuple[bytes, bytes]) -> None:
    import tenseal

    foreign = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, -1, [60, 40, 60])
    for content in (keys[0], keys[1] + keys[0], foreign.serialize(save_secret_key=True), b"x"):
        with pytest.raises(UnseenError, match="server"):
            ckks.check_public(content)
    assert ckks.check_public(keys[1])


def test_keys_are_never_pickled(keys: tuple[bytes, bytes]) -> None:
    stack = Stack(updates(2, 10), Mean("uniform"), keys=keys)
    for thing in (stack.sites["site-0"], stack.sites["site-0"].keys, stack.server.keys):
        with pytest.raises(UnseenError, match="never pickled"):
            pickle.dumps(thing)
    assert "Keys(" in repr(stack.sites["site-0"].keys)


def damaged(message: bytes, how: str, other: bytes) -> bytes:
    if how == "tampered":
        at = len(message) // 2
        return message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]
    if how == "truncated":
        return message[: len(message) // 2]
    if how == "other keys":
        return other
    header, parts = unpack(message, "a row")
    if how == "a ciphertext that is none":
        return pack(header, [bytes(part[:-9]) for part in parts])
    if how == "another round":
        return pack({**header, "round": 7}, parts)
    return pack({**header, "exchange": "0123"}, parts)


@pytest.mark.parametrize(
    "how",
    ["tampered", "truncated", "other keys", "a ciphertext that is none", "another round", "replay"],
)
def test_messages_that_are_not_right_are_refused_by_name(
    how: str, keys: tuple[bytes, bytes]
) -> None:
    rule, rows = Mean("uniform"), updates(2, 100)
    stack = Stack(rows, rule, keys=keys)
    other = Stack(rows, rule).messages["site-1"] if how == "other keys" else b""
    stack.messages["site-1"] = damaged(stack.messages["site-1"], how, other)
    with pytest.raises(BadReply if how != "a ciphertext that is none" else UnseenError) as found:
        stack.combine(rule)
    assert "site-1" in str(found.value)


def test_an_exchange_that_is_over_is_refused(keys: tuple[bytes, bytes]) -> None:
    rule, rows = PPDG(), updates(2, 100)
    stack = Stack(rows, rule, keys=keys)
    old = dict(stack.messages)
    stack.combine(rule)
    asked = stack.questions[0]
    with pytest.raises(BadReply, match="asked before"):
        wire.opened("site-0", stack.ask(asked)["site-0"], ("weights",), {})
    stack.begin(rows)
    with pytest.raises(BadReply, match="another round"):
        wire.opened("site-0", stack.ask(asked)["site-0"], ("weights",), {})
    stack.messages = old
    with pytest.raises(BadReply, match="site-0.*another round"):
        stack.rows()


def test_a_disagreement_stops_the_round_and_is_named(keys: tuple[bytes, bytes]) -> None:
    rule, rows = PPDG(), updates(3, 100)
    stack = Stack(rows, rule, keys=keys)
    ask = stack.ask

    def lying(questions: dict[str, bytes]) -> dict[str, bytes]:
        found = ask(questions)
        header, _ = unpack(found["site-2"], "an answer")
        found["site-2"] = pack({**header, "weights": [1, 2, 3]})
        return found

    stack.ask = lying  # type: ignore[method-assign]
    with pytest.raises(BadReply, match="alone: site-2"):
        stack.combine(rule)


@pytest.mark.parametrize("gram", ["exact", "sketch(4096)"])
def test_a_server_that_multiplies_something_else_is_refused(
    gram: str, keys: tuple[bytes, bytes]
) -> None:
    rule, rows = PPDG(), updates(2, 100)
    rows[1] *= 1.1
    swapped = Stack(rows, rule, gram, keys=keys)
    both = swapped.rows()
    heads = [replaced(both.sealed[1], "site-0"), replaced(both.sealed[0], "site-1")]
    both.sealed = tuple(heads)
    with pytest.raises(BadReply, match="own update came back"):
        both.weigh(rule, None, {}, rule.init(2, 100), None)


def replaced(row: kinds.Sealed, name: str) -> kinds.Sealed:
    return kinds.Sealed(name, row.shape, row.dtype, row.header, row.parts)


def test_a_sum_of_other_weights_or_rows_is_refused(keys: tuple[bytes, bytes]) -> None:
    rule, rows = PPDG(), updates(2, 100)
    stack = Stack(rows, rule, keys=keys)
    sealed = stack.rows()
    sealed.weigh(rule, None, {"client": torch.arange(2.0)}, rule.init(2, 100), None)
    with pytest.raises(BadReply, match="other weights"):
        sealed.linear(torch.tensor([1.0, 0.0], dtype=torch.float64))
    stack = Stack(rows, rule, keys=keys)
    sealed = stack.rows()
    weights, _ = sealed.weigh(rule, None, {}, rule.init(2, 100), None)
    sealed.sealed = (sealed.sealed[0], sealed.sealed[0])
    with pytest.raises(BadReply, match="inner products make"):
        sealed.linear(weights)


def test_weights_that_do_not_fit_are_refused(keys: tuple[bytes, bytes]) -> None:
    stack = Stack(updates(2, 100), Mean("uniform"), keys=keys)
    with pytest.raises(UnseenError, match="add up to 400"):
        stack.rows().linear(torch.tensor([200.0, 200.0], dtype=torch.float64))


@pytest.mark.parametrize("drop", ["stop", "drop"])
def test_a_row_that_is_not_finite_names_its_client(drop: str) -> None:
    from dataclasses import replace

    from support.channels import network
    from support.sites import federation

    from unseen import InProcess, Model, Training, start
    from unseen.core.round import play

    clients = federation(3)
    bad = clients["site-b"]
    train = bad.split("train")
    clients["site-b"] = replace(bad, train=replace(train, x=train.x * torch.inf))
    made, model = method("ppdg", Training(batch_size=8)), Model(network())
    state = start(made, model, sorted(clients), 0)
    backend = channel.wrap(channel.read("ckks"), made, InProcess(model, clients), sorted(clients))
    made = backend.played(made)
    if drop == "stop":
        with pytest.raises(BadReply, match="'site-b'.*NaN or infinite"):
            play(made, state, backend, sorted(clients), 1, on_bad_reply="stop")
        return
    state, outcomes = play(made, state, backend, sorted(clients), 1, on_bad_reply="drop")
    assert list(outcomes[0].dropped) == ["site-b"]
    assert bool(torch.isfinite(state.inbox["model"]).all())


# --- a server that lies ---------------------------------------------------------------------------


def opened(stack: Stack, part: bytes, **said: object) -> str:
    """What site 0 answers to whoever asks it to open a ciphertext as a sum."""
    header = {"kind": "open", "slot": "model", **stack.server.label, **stack.server.mark}
    header |= {"levels": 1, "size": 40, "exponent": 0, "present": [0], "dtype": "float32"}
    answer = stack.sites["site-0"].answer(
        pack({**header, "total": 1.0, "steps": [1], **said}, [part])
    )
    head, _ = unpack(answer, "an answer")
    return str(head.get("why", head["kind"]))


def test_a_row_is_not_opened_as_a_sum(keys: tuple[bytes, bytes]) -> None:
    """A row is at 2^40, a sum at 2^90 over a modulus; a smaller scale would magnify the noise."""
    stack = Stack(updates(3, 40), Mean(), keys=keys)
    row = bytes(stack.rows().sealed[1].parts[0])
    stack.begin(updates(3, 40))
    scheme = stack.server.keys.tools(1)[0]
    content = scheme.ciphertext(row, "a row")
    content.scale = 2.0**20
    assert "not at the scale of sums" in opened(stack, scheme.to_bytes(content))


def test_a_sum_has_the_size_of_the_rows(keys: tuple[bytes, bytes]) -> None:
    stack = Stack(updates(3, 40), Mean(), keys=keys)
    row = bytes(stack.rows().sealed[1].parts[0])
    assert "another size" in opened(stack, row, size=4096)


def test_sums_are_not_opened_before_their_weights(keys: tuple[bytes, bytes]) -> None:
    stack = Stack(updates(3, 40), PPDG(lam=0.1), keys=keys)
    row = bytes(stack.rows().sealed[1].parts[0])
    assert "before its weights" in opened(stack, row)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"names": ["site-0", "x", "y"]}, "take no part"),
        ({"names": ["x", "y", "z"]}, "this one's among them"),
        ({"names": ["site-0", "site-0", "site-1"]}, "this one's among them"),
        ({"exponents": [4, 4, 4]}, "another scale"),
        ({"levels": 2}, "another levels"),
        ({"size": 99}, "another size"),
        ({"width": 16}, "another width"),
        ({"blocks": [[0, 0]]}, "not those of the rule"),
        ("swapped", "the square of the own update"),
        ("empty", "the square of the own update"),
    ],
)
def test_products_of_other_rows_than_the_exchange_has_are_not_decrypted(
    change: Any, why: str, keys: tuple[bytes, bytes]
) -> None:
    """With K, names and products of its own a server read coordinates, and the secret key."""
    stack = Stack(updates(3, 100), PPDG(), keys=keys)
    for site in stack.sites.values():
        site.company = tuple(stack.names)
    rows = stack.rows()
    ask, said = rows.ask, []

    def lie(questions: Mapping[str, bytes]) -> Mapping[str, bytes]:
        head, parts = unpack(questions["site-0"], "a question")
        del head["lengths"]
        pieces = [*map(bytes, parts)]
        if isinstance(change, str):
            pieces[0] = pieces[-1] if change == "swapped" else b""
        else:
            head |= change
        header, _ = unpack(ask({"site-0": pack(head, pieces)})["site-0"], "an answer")
        said.append(header["why"])
        raise UnseenError("enough")

    rows.ask = lie
    with pytest.raises(UnseenError, match="enough"):
        rows.weigh(PPDG(), None, {"client": torch.arange(3)}, PPDG().init(3, 100), None)
    assert why in said[0]
