"""Torch's one global generator: nobody else draws from it while layers do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

import torch
from support.sites import federation
from torch import nn

from unseen import InProcess, Model, Training, method, play, start
from unseen.core.global_draws import global_draws
from unseen.core.optimiser import SGD
from unseen.core.turn import keyed
from unseen.data.networks import build


def test_another_thread_waits_until_the_generator_is_restored() -> None:
    inside, entered = Event(), Event()

    def other() -> None:
        inside.wait()
        with global_draws(keyed("other").get_state()):
            entered.set()

    waiting = Thread(target=other)
    waiting.start()
    before = torch.get_rng_state()
    with global_draws(keyed("own").get_state()):
        inside.set()
        assert not entered.wait(0.2)
        with global_draws():  # the same thread may enter again
            torch.rand(3)
        assert torch.equal(torch.rand(4), torch.rand(4, generator=keyed("own")))
    waiting.join()
    assert entered.is_set() and torch.equal(torch.get_rng_state(), before)


def test_training_in_threads_is_that_of_one() -> None:
    clients = federation(3, classes=2)
    shape = tuple(next(iter(clients.values())).split("train").x.shape[1:])

    def trained(seed: int) -> torch.Tensor:
        net = build("mlp(widths=[16])", shape, 2, keyed(f"{seed}/model"))
        model = Model(nn.Sequential(nn.Flatten(), nn.Dropout(0.5), net), shape=shape)
        chosen, names = method("fedavg", Training(SGD(0.1), batch_size=4)), [*clients]
        first = start(chosen, model, names, seed)
        return play(chosen, first, InProcess(model, clients), names, rounds=4)[0].inbox["model"]

    alone = [trained(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(trained, range(4)))
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))
