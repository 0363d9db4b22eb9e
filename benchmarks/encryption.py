"""Encrypted PPDG against PPDG in the clear, exact and by sketch; full ciphertexts against layers.

    python benchmarks/encryption.py [--quick]

Only what encryption adds is timed: rows are there already, every message is bytes, and all sites
run in this process, one after the other, on one core. So the seconds are the sum over all parties.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from harness import Goal, main

from unseen.core.apply import Add
from unseen.core.exchange import Exchange, Method, Reply, Slot
from unseen.core.metrics.evaluation import plain
from unseen.core.turn import Turn, keyed
from unseen.data.networks import build
from unseen.methods.combine import PPDG, DenseRows
from unseen.privacy import channel, ckks, kinds, seal
from unseen.privacy.ckks import arithmetic

#: Without it nothing here runs.
extras = ("he",)
goals = [
    Goal(
        "small",
        "44k parameters, 5 clients: an encrypted PPDG round at most 1.5 CPU seconds more than a "
        "plain one",
        at_most=1.5,
    ),
    Goal(
        "head",
        "the head of a frozen trunk, 8,967 parameters, 3 clients: at most 0.3 CPU seconds more",
        at_most=0.3,
    ),
    Goal(
        "exact",
        "11.7 M, 3 clients: exact inner products, at most 50 CPU s, which are 25 s of two cores",
        at_most=50,
    ),
    Goal("sketch", "11.7 M, 3 clients: by sketch, at most 75 CPU s", at_most=75),
    Goal("bytes", "upward, at most 8 times the bytes of float32", at_most=8),
]
RULE = PPDG(lam=0.2)


class Server(ckks.Server):
    """A server whose sums are decrypted by every site and stay there, as under a blind one."""

    sites: Mapping[str, ckks.Site]
    seconds = 0.0

    def deliver(self, header: dict[str, Any], parts: Any, rows: Any, ask: Any) -> torch.Tensor:
        begun = time.process_time()
        for site in self.sites.values():
            vector = site.combined(header, parts)
        self.seconds = time.process_time() - begun
        return torch.from_numpy(vector)


class Federation:
    """K sites that hold rows [K, P], and their server."""

    def __init__(self, rows: torch.Tensor, gram: str) -> None:
        secret, public = ckks.make_keys()
        self.matrix = rows
        self.exchange = Exchange("train", None, {"model": Slot(RULE, apply=Add())})  # type: ignore[arg-type]
        method, kind = Method("ppdg", (self.exchange,), (), plain), channel.CKKS(gram)
        self.names = [f"site-{k}" for k in range(len(rows))]
        self.server = Server({kinds.PUBLIC: public}, kind.width)
        files = {kinds.SECRET: secret}
        self.sites = {n: ckks.Site(method, n, files, kind.width) for n in self.names}
        self.server.sites = self.sites
        self.up = self.asked = 0
        self.seconds: dict[str, float] = {}

    def round(self) -> torch.Tensor:
        """One exchange after training."""
        turn, self.seconds = Turn(0, 0, 1, "train"), {}
        self.server.begin(self.exchange, turn)
        sealed = []
        for name, row in zip(self.names, self.matrix, strict=True):
            begun = time.process_time()
            own = replace(turn, client=name)
            messages = self.sites[name].seal(self.exchange, Reply({"model": row}), {}, own)
            self.seconds["encrypt"] = self.seconds.get("encrypt", 0) + time.process_time() - begun
            self.up = len(messages["model"])
            sealed.append(self.server.opened(name, messages)["model"])
        rows = self.server.rows("model", sealed, self.ask)
        vector, _, _ = RULE(rows, {}, RULE.init(*rows.shape))
        self.seconds["decrypt"] = self.server.seconds
        return vector

    def ask(self, questions: Mapping[str, bytes]) -> dict[str, bytes]:
        begun = time.process_time()
        self.asked = len(next(iter(questions.values())))
        answers = {n: self.sites[n].answer(q) for n, q in questions.items()}
        self.seconds["weigh"] = time.process_time() - begun
        return answers


def measured(size: int, clients: int, gram: str, repeats: int) -> tuple[dict[str, Any], float]:
    """The row of one setting, and the CPU seconds that it adds to a plain round."""
    rows = 0.01 * torch.randn(clients, size, generator=keyed(f"rows/{size}"))
    federation, times, cpu = Federation(rows, gram), [], []
    begun = time.process_time()
    expected, _, _ = RULE(DenseRows(rows), {}, RULE.init(clients, size))
    clear = time.process_time() - begun
    for _ in range(repeats):
        begun, used = time.perf_counter(), time.process_time()
        found = federation.round()
        times.append(time.perf_counter() - begun)
        cpu.append(time.process_time() - used)
    parts = federation.seconds
    error = float((found - expected).norm() / expected.norm())
    middle = len(times) // 2
    return {
        "what": f"{size:,} parameters, {clients} clients",
        "way": f"gram={gram!r}",
        "s": round(sorted(times)[middle], 2),
        "cpu_s": round(sorted(cpu)[middle], 2),
        "encrypt_s": round(parts["encrypt"], 2),
        "weights_s": round(parts["weigh"], 2),
        "decrypt_s": round(parts["decrypt"], 2),
        "up_by_float32": round(federation.up / (4 * size), 2),
        "question_mb": round(federation.asked / 1e6, 2),
        "error": float(f"{error:.1e}"),
    }, sorted(cpu)[middle] - clear


def packing(name: str, shape: tuple[int, ...]) -> list[dict[str, Any]]:
    """One client's update, encrypted whole and seeded, and layer by layer with the public key."""
    import tenseal

    network = build(name, shape, 10, keyed("net"))
    layers = [p.detach().flatten() * 0.01 for p in network.parameters()]
    vector = torch.cat(layers)
    secret, _ = ckks.make_keys()
    begun = time.process_time()
    whole = len(ckks.encrypt(secret, vector, {}))
    ours = time.process_time() - begun
    context = tenseal.context(
        tenseal.SCHEME_TYPE.CKKS, seal.DEGREE, -1, list(seal.MODULI[1]), n_threads=1
    )
    context.global_scale = arithmetic.SCALE
    begun = time.process_time()
    apart = sum(
        len(tenseal.ckks_vector(context, piece.tolist()).serialize())
        for layer in layers
        for piece in layer.split(seal.SLOTS)
    )
    theirs = time.process_time() - begun
    what, table = f"{name}, {len(vector):,} parameters", "one client's update, encrypted"
    return [
        {"table": table, "what": what, "way": way, "ciphertexts": count, "cpu_s": round(cpu, 2),
         "mb": round(size / 1e6, 2), "by_float32": round(size / (4 * len(vector)), 2)}
        for way, count, cpu, size in (
            ("full ciphertexts across layers, secret key, seeded",
             -(-len(vector) // seal.SLOTS), ours, whole),
            ("every layer its own, public key",
             sum(-(-len(layer) // seal.SLOTS) for layer in layers), theirs, apart),
        )
    ]  # fmt: skip


def equation_5(clients: int, chunks: int = 10) -> list[dict[str, Any]]:
    """PPDG's Eq. 5 letter by letter where every pair conflicts, and the sum by weights."""
    secret, _ = ckks.make_keys()
    scheme, encryptor, _ = ckks.Keys(secret, "secret").tools(1)
    row = scheme.encoded(torch.randn(seal.SLOTS, generator=keyed("row")).double().numpy(), 2.0**40)
    rows = [
        scheme.ciphertext(scheme.to_bytes(encryptor.encrypt_symmetric(row)), "a row")
        for _ in range(clients)
    ]
    factor, one = scheme.encoded(0.4, 2.0**40), scheme.encoded(1.0, 2.0**40)
    new = lambda: scheme.api.Ciphertext(scheme.context)  # noqa: E731
    evaluator = scheme.evaluator

    def letter() -> None:
        total = None
        for i, g in enumerate(rows):
            modified = new()
            evaluator.multiply_plain(g, one, modified)
            for other in rows[:i] + rows[i + 1 :]:
                step = new()
                evaluator.sub(g, other, step)
                evaluator.multiply_plain_inplace(step, factor)
                evaluator.sub_inplace(modified, step)
            total = (
                modified if total is None else (evaluator.add_inplace(total, modified), total)[1]
            )

    def weights() -> None:
        total = None
        for g in rows:
            part = new()
            evaluator.multiply_plain(g, factor, part)
            total = part if total is None else (evaluator.add_inplace(total, part), total)[1]

    found = []
    for way, call in (("Eq. 5, letter by letter", letter), ("by weights", weights)):
        begun = time.process_time()
        for _ in range(chunks):
            call()
        each = (time.process_time() - begun) / chunks
        table, what = "the sum of 4096 numbers, all pairs in conflict", f"{clients} clients"
        found.append({"table": table, "what": what, "way": way, "cpu_ms": round(1000 * each, 2)})
    return found


def run(quick: bool) -> dict[str, Any]:
    torch.set_num_threads(1)
    rows, added = measured(44_000, 5, "exact", 1 if quick else 5)
    head, more = measured(8_967, 3, "exact", 1 if quick else 5)
    found, values = [rows, head], {"small": added, "head": more, "bytes": rows["up_by_float32"]}
    for key, gram in (("exact", "exact"), ("sketch", "sketch(4096)")):
        large, _ = measured(5_000 if quick else 11_700_000, 3, gram, 1)
        values[key] = None if quick else large["cpu_s"]
        found.append(large)
    found += packing("mnist-cnn", (1, 28, 28))
    if not quick:
        found += packing("resnet18", (3, 64, 64))
    found += equation_5(3) + equation_5(5)
    notes = [
        "Seconds are those of all parties together, on one core; real sites work side by side.",
        "Every site decrypts the sum, as under a blind server.",
        "The rows are random and so almost orthogonal: by sketch their signs are a matter of "
        "chance (`sketch.py`), which is all that the error by sketch shows.",
    ]
    return {"measured": found, "goals": values, "notes": notes}


if __name__ == "__main__":
    main(__file__)
