"""A served model as an ASGI application: the requests that it takes."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from unseen.core.record_lines import Record
from unseen.errors import UnseenError, optional
from unseen.serving.http_service import RowsBody, Service, TooMuch, rows_of_json, rows_of_parquet
from unseen.serving.reading.inputs import Arrays
from unseen.version import __version__

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

#: Hosts by which a server is reached that listens on this machine alone.
LOCAL = ("127.0.0.1", "localhost", "::1", "[::1]")
CSV, PARQUET = "text/csv; charset=utf-8", "application/vnd.apache.parquet"
CARD = "README.md"
#: What a browser may do with the page.
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'none'"
)
BINARY = {"type": "string", "format": "binary"}


def app(service: Service, hosts: Sequence[str] = ("*",)) -> "FastAPI":
    """Return the application, to be run by uvicorn or behind another ASGI server.

    Args:
        service: The model.
        hosts: Names by which the server may be asked, which pages of other sites cannot forge.
    """
    optional("fastapi", "unseen serve needs", "serve", "take unseen predict")
    from fastapi import FastAPI, HTTPException, Response
    from fastapi.responses import HTMLResponse
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
        title=f"unseen: {service.trained.spec['name']}",
        version=__version__,
        docs_url=None,
        redoc_url=None,  # these pages load scripts from other hosts
    )
    server.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    server.add_exception_handler(UnseenError, refused)

    @server.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def start() -> Response:
        return HTMLResponse(service.page(), headers={"Content-Security-Policy": PAGE_POLICY})

    @server.get("/health", summary="Which model answers, by which policy and limits")
    async def health() -> Record:
        return service.about()

    @server.get("/card", summary="The model's card, in Markdown")
    async def card() -> Response:
        with suppress(FileNotFoundError):
            text = (service.trained.folder / CARD).read_text("utf-8")
            return Response(text, media_type="text/markdown; charset=utf-8")
        raise HTTPException(404, "the directory has no card")

    answer_rows(server, service) if service.table else answer_images(server, service)
    return server


def answer_images(server: "FastAPI", service: Service) -> None:
    """Add the request that a model of images takes."""
    from fastapi import Request
    from starlette.concurrency import run_in_threadpool

    @server.post(
        "/predict/images",
        summary="Answer for one image, or a tar archive of images",
        **taking("application/octet-stream", BINARY),
    )
    async def images(request: Request) -> Record:
        content, _ = await body(request, service.most_bytes)
        name = "images.tar" if _is_tar(content) else "image"
        lines = await run_in_threadpool(service.of_file, content, name)
        answer = service.answer(lines, ())
        for record, line in zip(answer["predictions"], lines, strict=True):
            record["image"] = line.item.source.removeprefix("images.tar:")
        return answer


def answer_rows(server: "FastAPI", service: Service) -> None:
    """Add the requests that a model of a table takes: rows as JSON, csv and Parquet files."""
    from fastapi import Request, Response
    from starlette.concurrency import run_in_threadpool

    @server.post(
        "/predict",
        summary="Answer for rows as JSON; null is a missing value, true is 1",
        **taking("application/json", rows_schema(service), {"rows": [service.example]}),
    )
    async def predict(request: Request) -> Record:
        asked = rows_of_json((await body(request, service.most_bytes))[0])
        lines = await run_in_threadpool(service.of_rows, asked.rows, asked.keep)
        return service.answer(lines, asked.keep)

    @server.post(
        "/predict/csv",
        summary="Answer for a csv file, with the file of unseen predict",
        **taking("text/csv", BINARY),
    )
    async def table(request: Request, keep: str = "") -> Response:
        content, names = await body(request, service.most_bytes, keep)
        lines = await run_in_threadpool(service.of_file, content, "rows.csv", names)
        if unread := [line.item.error for line in lines if line.item.line is None]:
            raise UnseenError(f"the body {unread[0]}.")
        return Response(
            await run_in_threadpool(service.file_of, lines, "csv", names), 200, None, CSV
        )

    @server.post(
        "/predict/parquet",
        summary="Answer for a Parquet file, with another",
        **taking(PARQUET, BINARY),
    )
    async def frame(request: Request, keep: str = "") -> Response:
        content, names = await body(request, service.most_bytes, keep)
        rows = await run_in_threadpool(rows_of_parquet, content, service.most_rows)
        lines = await run_in_threadpool(service.of_rows, rows, names)
        answer = await run_in_threadpool(service.file_of, lines, "parquet", names)
        return Response(answer, media_type=PARQUET)


async def refused(request: "Request", error: Exception) -> "Response":
    """Return what is wrong with a request, and what to do."""
    from fastapi.responses import JSONResponse

    assert isinstance(error, UnseenError)
    content = {"error": error.what, "remedy": error.remedy}
    return JSONResponse(content, 413 if isinstance(error, TooMuch) else 422)


async def body(request: "Request", most: int, keep: str | None = None) -> tuple[bytes, list[str]]:
    """Return the body, which is read no further than `most` bytes, and the columns of `keep=A,B`.

    A parameter that the request ignores, or that is there twice, is refused.

    Args:
        request: The request.
        most: The most bytes.
        keep: The columns; None for a request that takes none.
    """
    names = () if keep is None else ("keep",)
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
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise TooMuch(f"one request may have {most} bytes.")
        parts.append(part)
    return b"".join(parts), [name for name in (keep or "").split(",") if name]


def taking(media: str, schema: Record, example: object = None) -> Record:
    """Return what a page of the requests says of a body."""
    content: Record = {"schema": schema}
    content |= {"example": example} if example is not None else {}
    return {"openapi_extra": {"requestBody": {"required": True, "content": {media: content}}}}


def rows_schema(service: Service) -> Record:
    """Return the schema of rows as JSON, with what each column is."""
    schema, fields = RowsBody.model_json_schema(), service.fields
    types = ["string", "number", "boolean", "null"]
    schema["properties"]["rows"]["items"] = {
        "type": "object",
        "required": [field.name for field in fields],
        "properties": {f.name: {"description": f.kind, "type": types} for f in fields},
    }
    return schema


def _is_tar(content: bytes) -> bool:
    """Return whether bytes are a tar archive, compressed or not."""
    compressed = content.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00"))
    return compressed or content[257:262] == b"ustar"
