"""A plain FedAvg app on Flower's simulation engine, as its own quickstart has it.

    python benchmarks/plain_flower.py IMAGES EPOCHS ROUNDS [WORKERS]

Five clients of IMAGES rotated digits each and a LeNet, or a small perceptron on up to 64 digits of
8×8; DataLoader, torch.optim, state dicts, Flower's FedAvg. Data are made once per worker and kept.
Prints, as JSON, the time at which each round was aggregated and the seconds of training in it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from published import LeNet, Turned, handwritten
from torch import nn
from torch.utils.data import DataLoader

ANGLES = (15, 30, 45, 60, 75)


@lru_cache
def loader(images: int, site: int) -> DataLoader[Any]:
    pixels, labels = handwritten(images, 28 if images > 64 else 8)
    pairs = [Turned(pixels, labels, ANGLES[site])[i] for i in range(images)]
    return DataLoader(pairs, batch_size=64 if images > 64 else 32, shuffle=True)  # type: ignore[arg-type]


def net(images: int) -> nn.Module:
    if images > 64:
        return LeNet()
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 96), nn.ReLU(), nn.Linear(96, 10)]
    return nn.Sequential(nn.Flatten(), *layers)  # 43,020 parameters


def fit(model: nn.Module, batches: DataLoader[Any], epochs: int) -> float:
    step = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    loss = torch.zeros(())
    for _ in range(epochs):
        for x, y in batches:
            step.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            step.step()
    return loss.item()


def simulate(images: int, epochs: int, rounds: int, workers: int) -> dict[str, list[float]]:
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    times: list[float] = []
    work: list[float] = []
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        batches = loader(images, int(context.node_config["partition-id"]))
        model = net(images)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        begun = time.perf_counter()
        loss = fit(model, batches, epochs)
        spent = time.perf_counter() - begun
        metrics = MetricRecord({"num-examples": images, "loss": loss, "seconds": spent})
        records = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
        return Message(RecordDict(records), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=5, min_available_nodes=5)
        result = strategy.start(
            grid, ArrayRecord(net(images).state_dict()), num_rounds=rounds,
            evaluate_fn=lambda number, arrays: times.append(time.time()),
        )  # fmt: skip
        found = result.train_metrics_clientapp
        work.extend(5 * float(found[number]["seconds"]) for number in sorted(found))

    run_simulation(
        server_app=server, client_app=client, num_supernodes=5,
        backend_config={
            "init_args": {"num_cpus": workers, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )  # fmt: skip
    return {"times": times[1:], "work": work}


if __name__ == "__main__":
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0",
                   "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # fmt: skip
    import plain_flower  # by its name, as the workers import it

    given = [int(text) for text in sys.argv[1:]]
    workers = given[3] if len(given) > 3 else os.cpu_count() or 1
    print(json.dumps(plain_flower.simulate(*given[:3], workers=workers)))
