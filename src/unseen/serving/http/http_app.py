"""A served model as an ASGI application."""

from collections.abc import Sequence
from typing import Any

from unseen.errors import UnseenError, optional
from unseen.serving.http.endpoint import Service
from unseen.serving.reading.inputs import Arrays
from unseen.version import __version__

#: Hosts by which a server is reached that listens on this machine alone.
LOCAL = ("127.0.0.1", "localhost", "::1", "[::1]")


def app(service: Service, hosts: Sequence[str] = ("*",)) -> Any:
    """Return the application, to be run by uvicorn or behind another ASGI server.

    Args:
        service: The model.
        hosts: Names by which the server may be asked, which pages of other sites cannot forge.
    """
    optional("fastapi", "unseen serve needs", "serve", "take unseen predict")
    from fastapi import FastAPI
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from unseen.serving.http.routes import answers_for_images, answers_for_rows, pages, refused

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
    server.include_router(pages(service))
    answers = answers_for_rows if service.table else answers_for_images
    server.include_router(answers(service))
    return server
