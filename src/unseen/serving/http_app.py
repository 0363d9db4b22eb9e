"""The requests that a served model takes, as an ASGI application."""

import contextlib
from collections.abc import Sequence
from typing import Any

from unseen.errors import UnseenError, optional
from unseen.serving.endpoint import (
    Service,
    TooMuch,
    columns,
    page,
    rows_of_json,
    rows_of_parquet,
)
from unseen.serving.inputs import Arrays
from unseen.serving.predict import FORMATS, Line
from unseen.version import __version__

#: Forms of answers and their media types.
MEDIA = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}
CARD = "README.md"
#: Hosts by which a server is reached that listens on this machine alone.
LOCAL = ("127.0.0.1", "localhost", "::1", "[::1]")


def app(service: Service, hosts: Sequence[str] = ("*",)) -> Any:
    """Return the application, to be run by uvicorn or behind another ASGI server.

    Args:
        service: The model.
        hosts: Names by which the server may be asked, which pages of other sites cannot forge.
    """
    optional("fastapi", "unseen serve needs", "serve", "take unseen predict")
    from fastapi import FastAPI, HTTPException, Request, Response
    from fastapi.responses import HTMLResponse, JSONResponse
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    if isinstance(service.trained.inputs, Arrays):
        raise UnseenError(
            f"this model cannot be served: its inputs are {service.trained.inputs.why}."
        )
    if service.trained.masks:
        raise UnseenError(
            "a model of masks cannot be served.", remedy="Take unseen predict, which writes PNGs."
        )
    server = FastAPI(
        title=f"unseen: {service.trained.spec['name']}", version=__version__,
        docs_url=None, redoc_url=None,  # these pages load scripts from other hosts
    )  # fmt: skip
    server.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))

    @server.exception_handler(UnseenError)
    async def refused(request: Request, error: UnseenError) -> Response:
        content = {"error": error.what, "remedy": error.remedy}
        status = 413 if isinstance(error, TooMuch) else 422
        return JSONResponse(content, status)

    async def body(request: Request) -> bytes:
        """Return the body, which is read no further than the limit."""
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > service.most_bytes:
                raise TooMuch(f"one request may have {service.most_bytes} bytes.")
            parts.append(part)
        return b"".join(parts)

    def check_query(request: Request, *names: str) -> None:
        """Refuse query parameters that the request ignores."""
        for name in request.query_params:
            if len(request.query_params.getlist(name)) > 1:
                raise UnseenError(
                    f"the address has {name!r} more than once.",
                    remedy=f"Write it once, with commas: {name}=A,B.",
                )
            if name not in names:
                raise UnseenError(
                    f"{request.url.path} takes {' and '.join(names) or 'nothing'} after the '?'; "
                    f"found {name!r}.",
                    remedy="What holds for every request are options of unseen serve.",
                )

    def as_file(lines: Sequence[Line], form: str, keep: Sequence[str]) -> Response:
        return Response(service.file_of(lines, form, keep), media_type=MEDIA[form])

    @server.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def start() -> Response:
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        policy += "connect-src 'self'; img-src data:; frame-ancestors 'none'"
        headers = {"Content-Security-Policy": policy}
        return HTMLResponse(page(service), headers=headers)

    @server.get("/health", summary="Which model answers, by which policy and limits")
    async def health() -> dict[str, Any]:
        return service.about()

    @server.get("/card", summary="The model's card, in Markdown")
    async def card() -> Response:
        with contextlib.suppress(FileNotFoundError):
            text = (service.trained.folder / CARD).read_text("utf-8")
            return Response(text, media_type="text/markdown; charset=utf-8")
        raise HTTPException(404, "the directory has no card")

    def taking(media: str, schema: dict[str, Any], example: object = None) -> dict[str, Any]:
        content: dict[str, Any] = {"schema": schema}
        content |= {"example": example} if example is not None else {}
        return {"openapi_extra": {"requestBody": {"required": True, "content": {media: content}}}}

    binary = {"type": "string", "format": "binary"}
    if not service.table:

        @server.post(
            "/predict/images", summary="Answer for one image, or a tar archive of images",
            **taking("application/octet-stream", binary),
        )  # fmt: skip
        async def images(request: Request) -> dict[str, Any]:
            check_query(request)
            content = await body(request)
            name = "images.tar" if _is_tar(content) else "image"
            lines = await run_in_threadpool(service.of_file, content, name)
            answer = service.answer(lines, ())
            for record, line in zip(answer["predictions"], lines, strict=True):
                record["image"] = line.item.source.removeprefix("images.tar:")
            return answer

        return server

    rows_schema = {"type": "object", "properties": {"rows": {"type": "array", "items": {
        "type": "object", "required": list(service.example()),
        "properties": {
            name: {"description": words, "type": ["string", "number", "null"]}
            for name, words in columns(service)
        },
    }}, "keep": {"type": "array", "items": {"type": "string"}}}, "required": ["rows"]}  # fmt: skip
    example = {"rows": [service.example()]}

    @server.post(
        "/predict", summary="Answer for rows as JSON; null is a missing value",
        **taking("application/json", rows_schema, example),
    )  # fmt: skip
    async def predict(request: Request) -> dict[str, Any]:
        check_query(request)
        rows, keep = rows_of_json(await body(request))
        lines = await run_in_threadpool(service.of_rows, rows, keep)
        return service.answer(lines, keep)

    @server.post(
        "/predict/csv", summary="Answer for a csv file, with the file of unseen predict",
        **taking("text/csv", binary),
    )  # fmt: skip
    async def table(request: Request, form: str = "csv", keep: str = "") -> Response:
        check_query(request, "form", "keep")
        check_form(form)
        columns = [name for name in keep.split(",") if name]
        lines = await run_in_threadpool(service.of_file, await body(request), "rows.csv")
        if unread := [line.item.error for line in lines if line.item.line is None]:
            raise UnseenError(f"the body {unread[0]}.")
        return await run_in_threadpool(as_file, lines, form, columns)

    @server.post(
        "/predict/parquet", summary="Answer for a Parquet file, with another",
        **taking(MEDIA["parquet"], binary),
    )  # fmt: skip
    async def frame(request: Request, form: str = "parquet", keep: str = "") -> Response:
        check_query(request, "form", "keep")
        check_form(form)
        columns = [name for name in keep.split(",") if name]
        rows = await run_in_threadpool(rows_of_parquet, await body(request), service.most_rows)
        lines = await run_in_threadpool(service.of_rows, rows, columns)
        return await run_in_threadpool(as_file, lines, form, columns)

    return server


def check_form(form: str) -> None:
    """Refuse a form of answers that there is none of."""
    if form not in FORMATS:
        raise UnseenError(f"form is one of {', '.join(FORMATS)}; found {form!r}.")


def _is_tar(content: bytes) -> bool:
    """Return whether bytes are a tar archive, compressed or not."""
    compressed = (
        content[:2] == b"\x1f\x8b" or content[:3] == b"BZh" or content[:6] == b"\xfd7zXZ\x00"
    )
    return compressed or content[257:262] == b"ustar"
