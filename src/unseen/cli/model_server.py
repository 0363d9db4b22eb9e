"""`unseen serve`: a model behind HTTP."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from unseen.cli.model_use import Loading, ModelDir
from unseen.serving.answer_options import PredictOptions


@dataclass(frozen=True)
class Address:
    """Where a server listens, and how much it takes.

    Attributes:
        host: The address to listen on.
        port: The port; 0 for a free one.
        max_rows: Rows or images of one request; more are refused.
        max_megabytes: Of one request; more are refused.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000
    max_rows: Annotated[int, typer.Option(min=1)] = 10_000
    max_megabytes: Annotated[int, typer.Option(min=1)] = 32


def serve(model_dir: ModelDir, address: Address, options: PredictOptions, loading: Loading) -> None:
    """Answer over HTTP: rows as JSON, csv and Parquet files, or images.

    The page at / describes the requests and tries one; it loads nothing from elsewhere. Nobody has
    to prove who they are, so that the server listens on this machine alone unless --host says
    otherwise: put it behind something that asks for keys and speaks TLS.

    Args:
        model_dir: What `unseen train` wrote.
        address: Where the server listens, and how much it takes.
        options: What it answers.
        loading: How the model is opened.
    """
    from unseen.errors import optional
    from unseen.serving.http_app import LOCAL, app
    from unseen.serving.http_service import Service
    from unseen.serving.policy import policy_of
    from unseen.serving.reading.bounds import check_strict

    uvicorn = optional("uvicorn", "unseen serve needs", "serve", "take unseen predict")
    trained, runtime = loading.open(model_dir)
    if options.strict:
        check_strict(trained.bounds)
    service = Service(
        trained,
        policy_of(trained, options),
        runtime,
        options,
        most_bytes=address.max_megabytes * 2**20,
        most_rows=address.max_rows,
    )
    for note in service.policy.notes():
        print(note, file=sys.stderr)
    local = address.host in LOCAL
    if not local:
        print(
            f"{address.host}: whoever reaches this port is answered; nobody is asked for a key.",
            file=sys.stderr,
        )
    config = uvicorn.Config(
        app(service, LOCAL if local else ("*",)),
        host=address.host,
        port=address.port,
        log_level="info",
        limit_concurrency=64,
        server_header=False,
        access_log=False,
    )
    uvicorn.Server(config).run()
