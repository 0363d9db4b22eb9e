"""The requests that a served model takes; imported where the extra `serve` is installed."""

import contextlib
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.concurrency import run_in_threadpool

from unseen.errors import UnseenError
from unseen.serving.http.endpoint import (
    Service,
    TooMuch,
    columns,
    page,
    rows_of_json,
    rows_of_parquet,
)
from unseen.serving.predict import FORMATS, Line

#: Forms of answers and their media types.
MEDIA = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}
CARD = "README.md"
BINARY = {"type": "string", "format": "binary"}


def pages(service: Service) -> APIRouter:
    """Return what is read of a model: a page to try it, its policy and limits, its card."""
    router = APIRouter()

    @router.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def start() -> Response:
        policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        policy += "connect-src 'self'; img-src data:; frame-ancestors 'none'"
        headers = {"Content-Security-Policy": policy}
        return HTMLResponse(page(service), headers=headers)

    @router.get("/health", summary="Which model answers, by which policy and limits")
    async def health() -> dict[str, Any]:
        return service.about()

    @router.get("/card", summary="The model's card, in Markdown")
    async def card() -> Response:
        with contextlib.suppress(FileNotFoundError):
            text = (service.trained.folder / CARD).read_text("utf-8")
            return Response(text, media_type="text/markdown; charset=utf-8")
        raise HTTPException(404, "the directory has no card")

    return router


def answers_for_images(service: Service) -> APIRouter:
    """Return the request that a model of images takes."""
    router = APIRouter()

    @router.post(
        "/predict/images",
        summary="Answer for one image, or a tar archive of images",
        **taking("application/octet-stream", BINARY),
    )
    async def images(request: Request) -> dict[str, Any]:
        check_query(request)
        content = await body(request, service.most_bytes)
        name = "images.tar" if _is_tar(content) else "image"
        lines = await run_in_threadpool(service.of_file, content, name)
        answer = service.answer(lines, ())
        for record, line in zip(answer["predictions"], lines, strict=True):
            record["image"] = line.item.source.removeprefix("images.tar:")
        return answer

    return router


def answers_for_rows(service: Service) -> APIRouter:
    """Return the requests that a model of a table takes: rows as JSON, csv and Parquet files."""
    router = APIRouter()

    @router.post(
        "/predict",
        summary="Answer for rows as JSON; null is a missing value, true is 1",
        **taking("application/json", rows_schema(service), {"rows": [service.example()]}),
    )
    async def predict(request: Request) -> dict[str, Any]:
        check_query(request)
        rows, keep = rows_of_json(await body(request, service.most_bytes))
        lines = await run_in_threadpool(service.of_rows, rows, keep)
        return service.answer(lines, keep)

    async def file(request: Request, form: str) -> bytes:
        check_query(request, "form", "keep")
        check_form(form)
        return await body(request, service.most_bytes)

    async def as_file(lines: list[Line], form: str, keep: list[str]) -> Response:
        content = await run_in_threadpool(service.file_of, lines, form, keep)
        return Response(content, media_type=MEDIA[form])

    @router.post(
        "/predict/csv",
        summary="Answer for a csv file, with the file of unseen predict",
        **taking("text/csv", BINARY),
    )
    async def table(request: Request, form: str = "csv", keep: str = "") -> Response:
        content = await file(request, form)
        lines = await run_in_threadpool(service.of_file, content, "rows.csv")
        if unread := [line.item.error for line in lines if line.item.line is None]:
            raise UnseenError(f"the body {unread[0]}.")
        return await as_file(lines, form, listed(keep))

    @router.post(
        "/predict/parquet",
        summary="Answer for a Parquet file, with another",
        **taking(MEDIA["parquet"], BINARY),
    )
    async def frame(request: Request, form: str = "parquet", keep: str = "") -> Response:
        content = await file(request, form)
        rows = await run_in_threadpool(rows_of_parquet, content, service.most_rows)
        lines = await run_in_threadpool(service.of_rows, rows, listed(keep))
        return await as_file(lines, form, listed(keep))

    return router


async def refused(request: Request, error: Exception) -> Response:
    """Return what is wrong with a request, and what to do."""
    assert isinstance(error, UnseenError)
    content = {"error": error.what, "remedy": error.remedy}
    return JSONResponse(content, 413 if isinstance(error, TooMuch) else 422)


async def body(request: Request, most: int) -> bytes:
    """Return the body, which is read no further than `most` bytes."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise TooMuch(f"one request may have {most} bytes.")
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


def check_form(form: str) -> None:
    """Refuse a form of answers that there is none of."""
    if form not in FORMATS:
        raise UnseenError(f"form is one of {', '.join(FORMATS)}; found {form!r}.")


def listed(keep: str) -> list[str]:
    """Return the columns of `keep=A,B`."""
    return [name for name in keep.split(",") if name]


def taking(media: str, schema: dict[str, Any], example: object = None) -> dict[str, Any]:
    """Return what a page of the requests says of a body."""
    content: dict[str, Any] = {"schema": schema}
    content |= {"example": example} if example is not None else {}
    return {"openapi_extra": {"requestBody": {"required": True, "content": {media: content}}}}


def rows_schema(service: Service) -> dict[str, Any]:
    """Return the schema of rows as JSON, with what each column is."""
    row = {
        "type": "object",
        "required": list(service.example()),
        "properties": {
            name: {"description": words, "type": ["string", "number", "boolean", "null"]}
            for name, words in columns(service)
        },
    }
    lists = {
        "rows": {"type": "array", "items": row},
        "keep": {"type": "array", "items": {"type": "string"}},
    }
    return {"type": "object", "properties": lists, "required": ["rows"]}


def _is_tar(content: bytes) -> bool:
    """Return whether bytes are a tar archive, compressed or not."""
    compressed = (
        content[:2] == b"\x1f\x8b" or content[:3] == b"BZh" or content[:6] == b"\xfd7zXZ\x00"
    )
    return compressed or content[257:262] == b"ustar"
