"""Encrypted rows: the server adds and multiplies what only the sites can read.

A site packs its whole row into full ciphertexts of 4096 numbers and encrypts it with the secret
key, which all sites share. For weights w the server forms E(Σ w_i u_i). For a rule that goes by
inner products it forms E(<u_i, u_j>); the sites decrypt the K×K numbers, compute the weights by
the rule itself and send those back, rounded; all sites must find the same.

The server needs parameters and a public key, and neither relinearisation nor rotation keys:
products stay of three parts, and the sum over slots is the constant coefficient, the only one that
the sites learn: the others are covered by fresh uniform numbers.

Source of the scheme: Cheon, Kim, Kim, Song 2017, "Homomorphic Encryption for Arithmetic of
Approximate Numbers". Rounding of what goes back: Li, Micciancio 2021, "On the Security of
Homomorphic Encryption on Approximate Numbers".
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.combine.base import Combine, RuleState, Table
from unseen.errors import BadReply, UnseenError
from unseen.exchange import Exchange, Inbox, Method, Reply, Turn, keyed
from unseen.privacy import seal
from unseen.privacy.channel import CKKS, Ask, Sealed, Undecided
from unseen.privacy.seal import SLOTS
from unseen.privacy.wire import (
    accepted,
    decode,
    encode,
    expect,
    generator_of,
    nonce,
    pack,
    randomness,
    refusal,
    type_of,
    unpack,
)
from unseen.replies import NOT_FINITE

Floats = NDArray[np.float64]
#: A number x enters a ciphertext as x · 2^40, a layer's mask as 2^48, a weight w as w · 2^50.
SCALE, MASK_SCALE, WEIGHT_SCALE = 2.0**40, 2.0**48, 2.0**50
#: Standard deviation of a fresh ciphertext's error per number: 3.2 · √(8192 / 2) / 2^40.
SIGMA = 3.2 * 64 / SCALE
#: Error per number of a mask, whose coefficients are rounded to integers: √(8192 / 12) / 2^48.
MASK_ERROR = 26.2 / MASK_SCALE
#: What no |Σ w_i| may exceed: a modulus of 60 bits holds numbers below 2^9 at the weights' scale.
LARGEST = 2.0**8
#: Weights go back as multiples of 2^-30.
WEIGHT_STEP = 2.0**-30
#: A decrypted sum goes to a server that is not blind in multiples of 2^-27 of its power of two.
SUM_BITS = 27
#: How far, in standard deviations, an inner product must lie from 0 for its sign to be told.
DECIDED = 8.0
#: The same for a sketch, whose error is a matter of chance, not of noise.
DECIDED_SKETCH = 3.0


# --- keys ----------------------------------------------------------------------------------------


def make_keys() -> tuple[bytes, bytes]:
    """(secret, public): the one for every site, the other also for the server."""
    secrets, publics = [], []
    for levels in seal.MODULI:
        scheme = seal.scheme(levels)
        generator = scheme.api.KeyGenerator(scheme.context)
        public = scheme.api.PublicKey()
        generator.create_public_key(public)
        secrets.append(scheme.to_bytes(generator.secret_key()))
        publics.append(scheme.to_bytes(public))
    identity = hashlib.sha256(b"".join(publics)).hexdigest()[:16]
    head = {"identity": identity, "levels": list(seal.MODULI)}
    return pack({"kind": "ckks secret", **head}, secrets), pack(
        {"kind": "ckks public", **head}, publics
    )


def check_public(content: bytes) -> str:
    """The identity of public bytes; anything that is, or holds, a secret key is refused."""
    try:
        header, parts = unpack(content, "the public context")
    except BadReply:
        header, parts = {"kind": _foreign(content)}, ()
    if header.get("kind") != "ckks public" or b"ckks secret" in content:
        found = "a secret key" if "secret" in str(header.get("kind")) else "something else"
        raise UnseenError(
            f"the server's context must be the public one of unseen.privacy.ckks.make_keys; found "
            f"{found}. A server that holds the secret key reads every update: take it away from "
            "there, make new keys, and give the server the public part."
        )
    identity = hashlib.sha256(b"".join(parts)).hexdigest()[:16]
    expect(header, "the public context", identity=identity)
    return identity


def _foreign(content: bytes) -> str:
    """What a context of TenSEAL's own is."""
    try:
        import tenseal

        return "secret" if tenseal.context_from(content).has_secret_key() else "tenseal"
    except Exception:  # whatever it is, it is none of ours
        return "unknown"


class Keys:
    """A side's keys as SEAL has them. They are never pickled and show nothing."""

    def __init__(self, content: bytes, kind: str) -> None:
        header, parts = unpack(content, f"the file of the {kind} key")
        expect(header, f"the file of the {kind} key", kind=f"ckks {kind}")
        self.identity: str = header["identity"]
        self.public = kind == "public"
        self._tools: dict[int, Any] = {}
        for levels, part in zip(header["levels"], parts, strict=True):
            scheme = seal.scheme(levels)
            empty = scheme.api.PublicKey() if self.public else scheme.api.SecretKey()
            key = scheme.read(empty, part, f"the {kind} key")
            encryptor = scheme.api.Encryptor(scheme.context, key)
            decryptor = None if self.public else scheme.api.Decryptor(scheme.context, key)
            self._tools[levels] = (scheme, encryptor, decryptor)

    def tools(self, levels: int) -> tuple[seal.Scheme, Any, Any]:
        """The scheme, its encryptor, and its decryptor (none with a public key)."""
        found: tuple[seal.Scheme, Any, Any] = self._tools[levels]
        return found

    def __repr__(self) -> str:
        return f"Keys({self.identity}, {'public' if self.public else 'secret'})"

    def __reduce__(self) -> Any:
        raise UnseenError("keys are never pickled: pass the file that holds them.")


# --- the clients' side, on bytes -----------------------------------------------------------------


def encrypt(
    keys: Keys | bytes,
    row: Tensor,
    header: Mapping[str, Any],
    levels: int = 1,
    sketch: Tensor | None = None,
) -> bytes:
    """A row [P] as one message: full ciphertexts across all layers, symmetric and seeded.

    header: what else the message says. sketch: the row's random projection, which goes along. The
    only thing that the message tells in the clear is the power of 16 next above the largest entry,
    of either.
    """
    keys = keys if isinstance(keys, Keys) else Keys(keys, "secret")
    x = row.detach().double().cpu().numpy()
    exponent, parts = _encrypted(keys, levels, x)
    head = {
        **header,
        "context": keys.identity,
        "levels": levels,
        "size": len(x),
        "shape": list(row.shape),
        "dtype": str(row.dtype).removeprefix("torch."),
        "exponent": exponent,
        "chunks": len(parts),
    }
    if sketch is not None:
        head["sketch exponent"], more = _encrypted(keys, levels, sketch.numpy())
        parts += more
    return pack(head, parts)


def _encrypted(keys: Keys, levels: int, x: Floats) -> tuple[int, list[bytes]]:
    """x = 2^e · y with |y| <= 1: e, and the ciphertexts of y."""
    scheme, encryptor, _ = keys.tools(levels)
    largest = float(np.abs(x).max()) if len(x) else 0.0
    exponent = 4 * int(np.ceil(np.log2(largest) / 4)) if largest > 0 else 0
    y = np.ldexp(x, -exponent)
    parts = []
    for begin in range(0, len(y), SLOTS):
        plain = scheme.encoded(y[begin : begin + SLOTS], SCALE)
        parts.append(scheme.to_bytes(encryptor.encrypt_symmetric(plain)))
    return exponent, parts


def sketched(x: Tensor, width: int, generator: torch.Generator) -> Tensor:
    """A random projection of x [P] to `width` numbers that keeps inner products on average.

    s_b = Σ_{k: h(k) = b} ±x_k with h and the signs drawn from the generator; <s, t> has the mean
    <x, y> and a variance of at most (‖x‖²‖y‖² + <x, y>²) / width. Source: Charikar, Chen,
    Farach-Colton 2002, the count sketch.
    """
    bucket = torch.randint(width, x.shape, generator=generator)
    sign = torch.randint(2, x.shape, generator=generator).mul_(2).sub_(1)
    return torch.zeros(width, dtype=torch.float64).index_add_(0, bucket, x.double() * sign)


def inner_products(keys: Keys, header: Mapping[str, Any], parts: Sequence[memoryview]) -> Floats:
    """The question's inner products [B, K, K] (B = 1 for the whole vector)."""
    scheme, _, decryptor = keys.tools(header["levels"])
    exponents = header["exponents"]
    K = len(exponents)
    found = np.zeros((header["count"], K, K))
    contents = iter(parts)
    for block in found:
        for i, j in pairs(K):
            content = next(contents)
            if not len(content):  # a block of no columns
                continue
            mean = scheme.mean(decryptor, scheme.ciphertext(content, "an inner product"))
            block[i, j] = block[j, i] = np.ldexp(mean * SLOTS, exponents[i] + exponents[j])
    return found


def uncertainty(gram: Floats, exponents: Sequence[int], size: int, layers: bool) -> Floats:
    """Standard deviation of each inner product's error [B, K, K], from the scheme's noise."""
    square = np.einsum("bii->bi", gram).clip(0)
    noise = SIGMA * np.ldexp(1.0, np.array(exponents))
    own = np.sqrt(square)
    spread = np.hypot(own[:, :, None] * noise, own[:, None, :] * noise[:, None])
    # What two errors make of one another is there in every slot, of rows of zeros too.
    floor = 2 * np.sqrt(SLOTS * -(-size // SLOTS)) * noise[:, None] * noise
    if layers:  # a mask lets a little of its neighbours through
        whole = np.sqrt(square.sum(0))
        spread = spread + MASK_ERROR * np.maximum.outer(whole, whole) * np.ldexp(
            1.0, np.maximum.outer(exponents, exponents)
        )
    total: Floats = spread + floor
    return total


def combination(keys: Keys, header: Mapping[str, Any], parts: Sequence[memoryview]) -> Floats:
    """The decrypted Σ w_i u_i [P] of the server's message."""
    scheme, _, decryptor = keys.tools(header["levels"])
    vector = np.zeros(header["size"])
    for c, part in zip(header["present"], parts, strict=True):
        numbers = scheme.decoded(decryptor, scheme.ciphertext(part, "an encrypted sum"))
        piece = vector[c * SLOTS : (c + 1) * SLOTS]
        piece[:] = numbers[: len(piece)]
    scaled: Floats = np.ldexp(vector, header["exponent"])
    return scaled


def rounded(vector: Floats, exponent: int) -> Floats:
    """Multiples of 2^(exponent − 27), 40 times as coarse as the noise of one row."""
    step = 2.0 ** (exponent - SUM_BITS)
    found: Floats = np.round(vector / step) * step
    return found


class Site:
    """A site's side: it alone, with the other sites, holds the secret key.

    It answers each kind of question once per slot and exchange, and only about the exchange that
    it last sealed a reply for.
    """

    def __init__(self, method: Method, name: str, secret: bytes, kind: CKKS) -> None:
        self.exchanges = {exchange.name: exchange for exchange in method.exchanges}
        self.name, self.kind, self.keys = name, kind, Keys(secret, "secret")
        #: What must be remembered between the messages of one exchange, as plain data.
        self.pending: dict[str, Any] = {}

    def save(self) -> bytes:
        """What a new process must be given to go on within an exchange."""
        return pack({"pending": encode(self.pending)})

    def load(self, content: bytes) -> None:
        """Go on from what `save` returned."""
        self.pending = decode(unpack(content, "a site's saved state")[0]["pending"])

    def receive(self, inbox: Inbox, turn: Turn, hello: str) -> Inbox:
        """The inbox, which travels in the clear."""
        return inbox

    def seal(
        self, exchange: Exchange, reply: Reply, inbox: Inbox, turn: Turn, hello: str
    ) -> dict[str, bytes]:
        """Every slot's row, encrypted; of a row that is not finite the fault alone."""
        label = Label(turn.round, exchange.name, json.loads(hello)["nonce"]).fields
        self.pending = {"label": label, "asked": [], "norms": {}, "weights": {}, "energy": {}}
        messages = {}
        for name in exchange.slots:
            row = reply.rows[name]
            head = {"kind": "row", "slot": name, "client": self.name, **label}
            if not bool(torch.isfinite(row).all()):
                shape = {"shape": list(row.shape), "dtype": str(row.dtype).removeprefix("torch.")}
                fault = {**head, **shape, "context": self.keys.identity, "fault": NOT_FINITE}
                messages[name] = pack(fault)
                continue
            rule = exchange.slots[name].combine
            products = rule is not None and rule.sees == "products"
            layers = products and getattr(rule, "blocks", "whole") != "whole"
            multiplied, sketch = row.double(), None
            if products and self.kind.width:
                stream = f"{turn.seed}/sketch/{turn.round}/{exchange.name}/{name}"
                multiplied = sketch = sketched(row.cpu(), self.kind.width, keyed(stream))
            messages[name] = encrypt(self.keys, row, head, 2 if layers else 1, sketch)
            self.pending["norms"][name] = float(multiplied.square().sum())
        return messages

    def answer(self, question: bytes) -> bytes:
        """The weights for inner products, or a decrypted sum, rounded; or why not."""
        try:
            header, parts = unpack(question, "the server's question")
            self.admit(header)
            if header["kind"] == "weigh":
                return self.weigh(header, parts)
            if header["kind"] == "open":
                return self.open(header, parts)
            raise BadReply(f"no question of this channel is called {header['kind']!r}.")
        except (UnseenError, KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
            return refusal(error)

    def admit(self, header: Mapping[str, Any]) -> None:
        """Refuse questions about other exchanges, with other keys, or asked before."""
        expect(header, "the server's question", context=self.keys.identity)
        expect(header, "the server's question", **self.pending.get("label", {"round": None}))
        asked = [header["kind"], header["slot"]]
        if asked in self.pending["asked"]:
            raise BadReply(f"{asked[0]!r} for the slot {asked[1]!r} was asked before.")
        self.pending["asked"].append(asked)

    def weigh(self, header: Mapping[str, Any], parts: Sequence[memoryview]) -> bytes:
        """The rule's weights in steps of 2^-30; the inner products stay here."""
        rule = self.exchanges[header["exchange"]].slots[header["slot"]].combine
        if rule is None or rule.sees != "products":
            raise BadReply(f"the rule of {header['slot']!r} does not go by inner products.")
        gram = inner_products(self.keys, header, parts)
        layers = header["blocks"] is not None
        spread = DECIDED * uncertainty(gram, header["exponents"], header["size"], layers)
        self._own(header, gram, spread)
        zero = np.abs(gram) <= spread
        nothing = np.einsum("bii->bi", zero)  # a row that is not to be told from 0
        zero = zero | nothing[:, :, None] | nothing[:, None, :]
        gram[zero] = 0  # not to be told from 0: neither a conflict nor an agreement
        if header["width"]:
            norms = np.einsum("bii->bi", gram)
            doubt = DECIDED_SKETCH / np.sqrt(header["width"])
            zero |= np.abs(gram) < doubt * np.sqrt(norms[:, :, None] * norms[:, None, :])
        weigh: Any = rule
        table, state = decode(header["table"]), decode(header["state"])
        given = torch.from_numpy(gram if layers else gram[0])
        weights, after = weigh.weights(given, table, state, generator_of(header["generator"]))
        steps = torch.round(weights / WEIGHT_STEP).long()
        w = steps.double().numpy() * WEIGHT_STEP
        v = w.reshape(len(gram), -1)
        energy = np.einsum("bi,bij,bj->", v, gram, v)
        self.pending["weights"][header["slot"]] = steps.tolist()
        if not header["width"]:
            self.pending["energy"][header["slot"]] = float(max(energy, 0.0))
        undecided = [[int(b), int(i), int(j)] for b, i, j in np.argwhere(zero) if i < j]
        said = {"weights": steps.tolist(), "state": digest(after), "undecided": undecided}
        return pack({"kind": "weights", "slot": header["slot"], **self.pending["label"], **said})

    def _own(self, header: Mapping[str, Any], gram: Floats, spread: Floats) -> None:
        """This site knows its own square: a wrong one is overflow, lost precision or a lie."""
        if self.name not in header["names"] or not header["covers"]:
            return
        i = header["names"].index(self.name)
        found, right = float(gram[:, i, i].sum()), self.pending["norms"][header["slot"]]
        # Four times the spread: an honest server must not be accused by the tail of the noise.
        if abs(found - right) > 1e-6 * right + 4 * float(spread[:, i, i].sum()):
            raise BadReply(
                f"the square of this site's own update came back as {found:.6g} where "
                f"{right:.6g} was sent: overflow, lost precision, or a server that multiplied "
                "something else. Nothing was answered."
            )

    def open(self, header: Mapping[str, Any], parts: Sequence[memoryview]) -> bytes:
        """The sum for a server that is not blind, rounded."""
        kind = type_of(header, "the server's sum")
        vector = rounded(self.combined(header, parts), header["exponent"])
        content = torch.from_numpy(vector).to(kind).numpy().tobytes()
        head = {"kind": "sum", "slot": header["slot"], "size": len(vector)}
        return pack({**head, **self.pending["label"]}, [content])

    def combined(self, header: Mapping[str, Any], parts: Sequence[memoryview]) -> Floats:
        """The decrypted sum, after the checks that a site can make."""
        slot = self.exchanges[header["exchange"]].slots[header["slot"]]
        source = slot.like or header["slot"]
        weights = self.pending.get("weights", {}).get(source)
        if weights is not None and header["steps"] != weights:
            raise BadReply(
                f"the sum of {header['slot']!r} was formed with other weights than those that the "
                "sites computed."
            )
        vector = combination(self.keys, header, parts)
        energy = self.pending.get("energy", {}).get(header["slot"])
        if energy is not None:
            norm, right = float(np.linalg.norm(vector)), energy**0.5
            noise = SIGMA * np.ldexp(header["total"], header["exponent"]) * len(vector) ** 0.5
            if abs(norm - right) > 1e-4 * right + 8 * noise:
                raise BadReply(
                    f"the sum of {header['slot']!r} has the length {norm:.6g} where its inner "
                    f"products make {right:.6g}: overflow, lost precision, or a server that "
                    "summed something else."
                )
        return vector


# --- the server's side, on bytes -----------------------------------------------------------------


@dataclass(frozen=True)
class Label:
    """Which exchange a message belongs to."""

    round: int
    exchange: str
    nonce: str

    @property
    def fields(self) -> dict[str, Any]:
        """As messages carry it."""
        return {"round": self.round, "exchange": self.exchange, "nonce": self.nonce}


class Server:
    """The server's side: made of public bytes, and of nothing else."""

    form = "encrypted"

    def __init__(self, method: Method, public: bytes, kind: CKKS) -> None:
        check_public(public)
        self.keys, self.kind = Keys(public, "public"), kind
        self.label = Label(-1, "", "")
        self.undecided: list[Undecided] = []

    def method(self, method: Method) -> Method:
        """The method as it is."""
        return method

    def hello(self, exchange: Exchange, turn: Turn, names: Sequence[str]) -> str:
        """A fresh number, which every message of this exchange must bear."""
        self.label = Label(turn.round, exchange.name, nonce())
        return json.dumps({"nonce": self.label.nonce})

    def opened(self, name: str, messages: Mapping[str, bytes]) -> dict[str, Sealed]:
        """The messages as rows, each of this exchange, of this client and of these keys."""
        return {slot: self._opened(name, slot, message) for slot, message in messages.items()}

    def _opened(self, name: str, slot: str, message: bytes) -> Sealed:
        what = f"the row {slot!r} of client {name!r}"
        head, parts = unpack(message, what)
        identity = self.keys.identity
        expect(head, what, kind="row", client=name, slot=slot, **self.label.fields)
        expect(head, what, context=identity)
        kind = type_of(head, what)
        try:
            shape, fault = torch.Size(head["shape"]), str(head.get("fault", ""))
            chunks = -(-shape.numel() // SLOTS)
            sound = head["size"] == shape.numel() and head["chunks"] == chunks <= len(parts)
            sound = sound and abs(int(head["exponent"])) < 1100 and head["levels"] in seal.MODULI
        except (KeyError, TypeError, ValueError):
            shape, fault, sound = torch.Size(), str(head.get("fault", "")), False
        if not (sound or fault):
            raise BadReply(f"{what} does not hold the ciphertexts that its header speaks of.")
        return Sealed(name, shape, kind, head, parts, fault)

    def rows(self, slot: str, rows: Sequence[Sealed], ask: Ask) -> EncryptedRows:
        """Rows for a rule; the sum is opened by one of the sites."""
        return EncryptedRows(self, slot, tuple(rows), ask, self.reveal)

    def reveal(
        self, header: dict[str, Any], parts: list[bytes], rows: Sequence[Sealed], ask: Ask
    ) -> Tensor:
        """The sum, decrypted by a participant and rounded; the rounds take turns."""
        name = rows[self.label.round % len(rows)].client
        if not header["size"]:
            return torch.zeros(0, dtype=rows[0].dtype)
        answers = ask({name: pack({"kind": "open", **header}, parts)})
        if name not in answers:
            raise BadReply(f"site {name!r} did not open the sum of {header['slot']!r}.")
        found = accepted(answers, "sum", {"slot": header["slot"], **self.label.fields})
        _, (content,) = found[name]
        vector = torch.frombuffer(bytearray(content), dtype=rows[0].dtype)
        if len(vector) != header["size"] or not bool(torch.isfinite(vector).all()):
            raise BadReply(f"site {name!r} opened the sum of {header['slot']!r} wrongly.")
        return vector


Deliver = Callable[[dict[str, Any], list[bytes], Sequence[Sealed], Ask], Tensor]


@dataclass
class EncryptedRows:
    """Rows as ciphertexts: sums are formed here, inner products are a question to the sites."""

    server: Server
    slot: str
    sealed: tuple[Sealed, ...]
    ask: Ask
    deliver: Deliver
    reference: Tensor | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.sealed), self.sealed[0].shape.numel()

    def take(self, order: Tensor) -> EncryptedRows:
        return replace(self, sealed=tuple(self.sealed[i] for i in order.tolist()))

    def dense(self) -> Tensor:
        raise UnseenError("the rows are encrypted: no rule reads them.")

    def gram(self, blocks: Sequence[slice] | None = None) -> Tensor:
        raise UnseenError(
            "inner products of encrypted rows are decrypted at the sites and stay there: a rule "
            "asks for its weights by Rows.weigh."
        )

    def weigh(
        self,
        rule: Any,
        blocks: Sequence[slice] | None,
        table: Table,
        state: RuleState,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, RuleState]:
        """The weights that the sites compute of the decrypted inner products; all must agree."""
        label, (K, P) = self.server.label.fields, self.shape
        runs = None if blocks is None else [[b.start, b.stop] for b in blocks]
        width = self.server.kind.width if runs is None else 0
        key = "sketch exponent" if width else "exponent"
        header = {
            "kind": "weigh", "slot": self.slot, **label, "context": self.server.keys.identity,
            "names": [row.client for row in self.sealed], "levels": self._levels(), "blocks": runs,
            "count": 1 if runs is None else len(runs), "width": width, "size": P,
            "covers": runs is None or sum(b - a for a, b in runs) == P,
            "exponents": [row.header[key] for row in self.sealed],
            "table": encode(dict(table)), "state": encode(state),
            "generator": randomness(generator),
        }  # fmt: skip
        question = pack(header, products(self.server.keys, self.sealed, runs, width))
        answers = self.ask({row.client: question for row in self.sealed})
        if not answers:
            raise BadReply("no site answered the question for the weights.")
        said = accepted(answers, "weights", {"slot": self.slot, **label})
        steps, undecided = self._agreed({name: head for name, (head, _) in said.items()})
        after = own_state(rule, table, state, generator, K)
        if digest(after) != next(iter(said.values()))[0]["state"]:
            raise UnseenError(
                f"{type(rule).__name__} remembers what it makes of inner products, which the "
                "server does not see. Take the channel 'clear', or another rule."
            )
        names = [row.client for row in self.sealed]
        for i, j in sorted({(i, j) for _, i, j in undecided}):
            at = (label["round"], label["exchange"], self.slot)
            self.server.undecided.append(Undecided(*at, names[i], names[j]))
        return torch.tensor(steps, dtype=torch.float64) * WEIGHT_STEP, after

    def _agreed(self, said: Mapping[str, Mapping[str, Any]]) -> tuple[Any, list[list[int]]]:
        """What all sites say; a disagreement stops the round and names who is alone with it."""
        texts = {n: json.dumps([h["weights"], h["state"]]) for n, h in said.items()}
        ranks = Counter(texts.values()).most_common()
        if len(ranks) > 1:
            tied = ranks[0][1] == ranks[1][1]
            odd = sorted(n for n, text in texts.items() if tied or text != ranks[0][0])
            raise BadReply(
                "the sites computed different weights from the same inner products; "
                + (f"no majority among {', '.join(odd)}" if tied else f"alone: {', '.join(odd)}")
                + ". The round was stopped: compare the sites' versions and keys."
            )
        first = next(iter(said.values()))
        return first["weights"], first["undecided"]

    def linear(self, weights: Tensor, blocks: Sequence[slice] | None = None) -> Tensor:
        """Σ w_i u_i, wherever it may be read."""
        w = weights.double().cpu().numpy()
        top = max(row.header["exponent"] for row in self.sealed)
        lift = np.array([2.0 ** (row.header["exponent"] - top) for row in self.sealed])
        total = float((np.abs(w) * lift).sum(-1).max())
        if not total <= LARGEST:
            raise UnseenError(
                f"the weights of {self.slot!r} add up to {total:.4g} in absolute value; a sum of "
                f"ciphertexts holds {LARGEST:g}. Nothing was decrypted."
            )
        runs = None if blocks is None else [(b.start, b.stop) for b in blocks]
        present, parts = weighted_sum(self.server.keys, self.sealed, w * lift, runs)
        header = {
            "slot": self.slot, **self.server.label.fields, "context": self.server.keys.identity,
            "size": self.shape[1], "exponent": top, "levels": self._levels(), "present": present,
            "dtype": str(self.sealed[0].dtype).removeprefix("torch."), "total": total,
            "steps": np.round(w / WEIGHT_STEP).astype(int).tolist(),
        }  # fmt: skip
        return self.deliver(header, parts, self.sealed, self.ask).to(self.device)

    def _levels(self) -> int:
        return int(self.sealed[0].header["levels"])


def own_state(
    rule: Any, table: Table, state: RuleState, generator: torch.Generator | None, K: int
) -> RuleState:
    """The rule's state after this exchange, as far as it follows from scalars."""
    if not isinstance(rule, Combine):
        return state
    return rule.with_prior(rule.checked(table, K), state, generator_of(randomness(generator)))[1]


def digest(state: RuleState) -> str:
    """Sixteen digits of a rule's state."""
    return hashlib.sha256(json.dumps(encode(state)).encode()).hexdigest()[:16]


def pairs(K: int) -> Iterator[tuple[int, int]]:
    """(i, j) with i <= j, in the order in which products are sent."""
    yield from ((i, j) for i in range(K) for j in range(i, K))


def products(
    keys: Keys, rows: Sequence[Sealed], blocks: list[list[int]] | None, sketch: int
) -> list[bytes]:
    """Encrypted inner products, block by block and pair by pair, each covered but for its mean."""
    first = rows[0].header
    scheme, encryptor, _ = keys.tools(first["levels"])
    chunks = range(first["chunks"], len(rows[0].parts)) if sketch else range(first["chunks"])
    size = sketch or first["size"]
    sums = Sums(scheme, size, blocks)
    for c, at in enumerate(chunks):
        chunk = [scheme.ciphertext(row.parts[at], f"the row of {row.client!r}") for row in rows]
        sums.add(c, chunk)
    found = []
    for total in sums.totals(len(rows)):
        if total is None:  # a block of no columns
            found.append(b"")
            continue
        cover = scheme.blanket(encryptor, total.scale)
        scheme.evaluator.add_inplace(total, cover)
        found.append(scheme.to_bytes(total))
    return found


#: (block, i, j) -> ciphertext.
Products = dict[tuple[int, int, int], Any]


class Sums:
    """Running sums of products of ciphertexts, by block and pair."""

    def __init__(self, scheme: seal.Scheme, size: int, blocks: list[list[int]] | None) -> None:
        self.scheme, self.size, self.blocks = scheme, size, blocks
        self.whole: Products = {}
        self.partial: Products = {}

    def add(self, c: int, chunk: Sequence[Any]) -> None:
        """One chunk of every row."""
        scheme, begin = self.scheme, c * SLOTS
        end = min(begin + SLOTS, self.size)
        blocks = self.blocks if self.blocks is not None else [[0, self.size]]
        inside = [(b, max(x, begin), min(y, end)) for b, (x, y) in enumerate(blocks)]
        inside = [(b, x, y) for b, x, y in inside if x < y]
        cut = [(b, x, y) for b, x, y in inside if (x, y) != (begin, end)]
        masks = {b: self._mask(x - begin, y - begin) for b, x, y in cut}
        for i, j in pairs(len(chunk)):
            product = scheme.api.Ciphertext(scheme.context)
            scheme.evaluator.multiply(chunk[i], chunk[j], product)
            for b, _, _ in inside:
                if b not in masks:
                    self._put(self.whole, (b, i, j), product)
                    continue
                part = scheme.api.Ciphertext(scheme.context)
                scheme.evaluator.multiply_plain(product, masks[b], part)
                self._put(self.partial, (b, i, j), part)

    def totals(self, K: int) -> Iterator[Any]:
        """The sums, block by block and pair by pair."""
        one = self.scheme.encoded(1.0, MASK_SCALE) if self.partial else None
        for b in range(1 if self.blocks is None else len(self.blocks)):
            for i, j in pairs(K):
                total, part = self.whole.get((b, i, j)), self.partial.get((b, i, j))
                if total is None or part is None:
                    yield part if total is None else total
                    continue
                self.scheme.evaluator.multiply_plain_inplace(total, one)
                self.scheme.evaluator.add_inplace(total, part)
                yield total

    def _mask(self, begin: int, end: int) -> Any:
        mask = np.zeros(SLOTS)
        mask[begin:end] = 1
        return self.scheme.encoded(mask, MASK_SCALE)

    def _put(self, sums: Products, key: tuple[int, int, int], x: Any) -> None:
        if key in sums:
            self.scheme.evaluator.add_inplace(sums[key], x)
        else:
            sums[key] = x


def weighted_sum(
    keys: Keys, rows: Sequence[Sealed], weights: Floats, blocks: list[tuple[int, int]] | None
) -> tuple[list[int], list[bytes]]:
    """The chunks that are not 0 everywhere, and their ciphertexts of Σ w_i u_i, of one modulus."""
    first = rows[0].header
    scheme, _, _ = keys.tools(first["levels"])
    present, parts = [], []
    for c in range(first["chunks"]):
        total = None
        for i, row in enumerate(rows):
            w = weights[i] if blocks is None else spread(weights[:, i], blocks, c, first["size"])
            if float(np.abs(w).max()) * WEIGHT_SCALE < 1:
                continue
            x = scheme.ciphertext(row.parts[c], f"the row of {row.client!r}")
            if first["levels"] == 2:
                scheme.evaluator.mod_switch_to_next_inplace(x)
            same = np.ndim(w) == 0 or bool((w == w[0]).all())
            plain = scheme.encoded(float(np.ravel(w)[0]) if same else w, WEIGHT_SCALE, x.parms_id())
            scheme.evaluator.multiply_plain_inplace(x, plain)
            if total is None:
                total = x
            else:
                scheme.evaluator.add_inplace(total, x)
        if total is not None:
            scheme.evaluator.rescale_to_next_inplace(total)
            present.append(c)
            parts.append(scheme.to_bytes(total))
    return present, parts


def spread(weights: Floats, blocks: list[tuple[int, int]], c: int, size: int) -> Floats:
    """The weights [B] of one client as one number per slot of a chunk."""
    begin, found = c * SLOTS, np.zeros(min(SLOTS, size - c * SLOTS))
    for w, (x, y) in zip(weights, blocks, strict=True):
        found[max(x - begin, 0) : max(y - begin, 0)] = w
    return found
