"""`unseen serve`: a model behind HTTP."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from unseen.cli.console import numbers
from unseen.cli.model_use import export_of, name_code
from unseen.cli.serving import AllowCode, ModelDir


def serve(
    model_dir: ModelDir,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    threshold: str | None = None,
    abstain: float | None = None,
    coverage: float | None = None,
    times: str | None = None,
    accept_unseen: bool = False,
    strict: bool = False,
    runtime: str = "torch",
    max_rows: Annotated[int, typer.Option(min=1)] = 10_000,
    max_megabytes: Annotated[int, typer.Option(min=1)] = 32,
    device: str = "cpu",
    allow_code: AllowCode = False,
) -> None:
    """Answer over HTTP: rows as JSON, csv and Parquet files, or images.

    The page at / describes the requests and tries one; it loads nothing from elsewhere. Nobody has
    to prove who they are, so that the server listens on this machine alone unless --host says
    otherwise: put it behind something that asks for keys and speaks TLS.

    Args:
        model_dir: What `unseen train` wrote.
        host: The address to listen on.
        port: The port; 0 for a free one.
        threshold: As for predict.
        abstain: As for predict.
        coverage: As for predict.
        times: As for predict.
        accept_unseen: As for predict.
        strict: As for predict.
        runtime: torch, or onnx for its export.
        max_rows: Rows or images of one request; more are refused.
        max_megabytes: Of one request; more are refused.
        device: cpu or cuda.
        allow_code: Let code outside unseen run that the directory names, such as a model of your
            own; without it a directory is data.
    """
    from unseen.errors import choice, optional
    from unseen.serving.directory import read
    from unseen.serving.http.endpoint import Service
    from unseen.serving.http.http_app import LOCAL, app
    from unseen.serving.policy import policy_of
    from unseen.serving.reading.bounds import check_strict

    uvicorn = optional("uvicorn", "unseen serve needs", "serve", "take unseen predict")
    choice("--runtime", runtime, ("torch", "onnx"))
    trained = read(model_dir, device, allow_code)
    name_code(trained)
    if strict:
        check_strict(trained.bounds)
    other = export_of(trained, None, None) if runtime == "onnx" else None
    policy = policy_of(trained, threshold, abstain, coverage, numbers("--times", times))
    most = max_megabytes * 2**20
    service = Service(trained, policy, other, accept_unseen, strict, most, max_rows)
    for note in policy.notes():
        print(note, file=sys.stderr)
    local = host in LOCAL
    if not local:
        print(
            f"{host}: whoever reaches this port is answered; nobody is asked for a key.",
            file=sys.stderr,
        )
    config = uvicorn.Config(
        app(service, LOCAL if local else ("*",)), host=host, port=port, log_level="info",
        limit_concurrency=64, server_header=False, access_log=False,
    )  # fmt: skip
    uvicorn.Server(config).run()
