# Copyright (c) 2026 Relax Authors. All Rights Reserved.
"""The native engine as an HTTP server with SGLang's routes.

python -m relax.backends.native.server --model-path FOLDER --port 0 --port-file PATH
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from relax.backends.native.chat import chat_chunks
from relax.backends.native.loop import EngineFailed
from relax.backends.native.protocol import RequestError
from relax.utils.garbage import hold_while_loading, spare_loaded_objects
from relax.utils.stacks import answer_as

if TYPE_CHECKING:
    from relax.backends.native.service import NativeService

logger = logging.getLogger(__name__)

PARENT_CHECK_S = 1.0  # how often the server looks whether its parent still lives
LISTEN_AFTER_S = 1.0  # age of a request from which a vanished client is noticed
MAX_BODY_BYTES = 512 << 20
Handler = Callable[[Request], Awaitable[Response]]


def create_app(service: NativeService) -> Starlette:
    """All routes over one service. Closing the app (lifespan) closes the service."""

    async def generate(request: Request) -> Response:
        body = await _body(request)
        async with _aborted_on_disconnect(request) as gone:
            return _json(await service.generate(body))
        return Response(status_code=499 if gone else 500)  # nobody reads it

    async def chat(request: Request) -> Response:
        body = await _body(request)
        async with _aborted_on_disconnect(request) as gone:
            call, answer = await service.chat(body)
            if call.stream:
                return Response(chat_chunks(call, answer), media_type="text/event-stream")
            return _json(answer)
        return Response(status_code=499 if gone else 500)  # nobody reads it

    async def health(request: Request) -> Response:
        service.check_health()
        return Response(status_code=200)

    async def health_generate(request: Request) -> Response:
        service.check_health()
        await service.loop.run(lambda scheduler: None)  # the worker thread answers between two steps
        return Response(status_code=200)

    async def server_info(request: Request) -> Response:
        return _json(service.info())

    async def model_info(request: Request) -> Response:
        return _json(service.model_info())

    async def models(request: Request) -> Response:
        name = service.options.model_path
        return _json({"object": "list", "data": [{"id": name, "object": "model", "owned_by": "relax", "root": name}]})

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(service.metrics.text(service.loop.scheduler), media_type="text/plain; version=0.0.4")

    async def pause(request: Request) -> Response:
        body = await _body(request)
        await service.pause(body.get("mode", "abort"))
        return _json({"status": "ok", "message": "Generation paused successfully."})

    async def resume(request: Request) -> Response:
        await service.resume()
        return _json({"status": "ok", "message": "Generation continued successfully."})

    async def abort(request: Request) -> Response:
        body = await _body(request)
        rid = None if body.get("abort_all") else body.get("rid")
        if rid is None and not body.get("abort_all"):
            raise RequestError("abort_request needs a rid, or abort_all: true")
        return _json({"status": "ok", "aborted": await service.abort(rid)})

    async def flush(request: Request) -> Response:
        await service.flush()
        return PlainTextResponse("Cache flushed.")

    async def weights_begin(request: Request) -> Response:
        await service.weights_begin()
        return _success("Weight update begun.")

    async def weights_disk(request: Request) -> Response:
        await service.weights_from_disk(await _body(request))
        return _success("Weights staged; they serve from /end_weight_update on.")

    async def weights_tensor(request: Request) -> Response:
        await service.weights_from_tensor(await _body(request))
        return _success("Weights staged; they serve from /end_weight_update on.")

    async def weights_distributed(request: Request) -> Response:
        await service.weights_from_distributed(await _body(request))
        return _success("Weights staged; they serve from /end_weight_update on.")

    async def weights_end(request: Request) -> Response:
        version = (await _body(request)).get("weight_version")
        now = await service.weights_end(None if version is None else str(version))
        return _json({"success": True, "message": "Weights switched.", "weight_version": now})

    async def relabel(request: Request) -> Response:
        version = await service.relabel(await _body(request))
        return _json({"success": True, "message": f"Weight version updated to {version}", "new_version": version})

    async def open_group(request: Request) -> Response:
        await service.open_group(await _body(request))
        return _success("Group joined.")

    async def close_group(request: Request) -> Response:
        await service.close_group((await _body(request)).get("group_name", "weight_update_group"))
        return _success("Group left.")

    async def release(request: Request) -> Response:
        await service.sleep((await _body(request)).get("tags") or ["weights", "kv_cache"])
        return _json({"status": "ok"})

    async def wake(request: Request) -> Response:
        await service.wake((await _body(request)).get("tags") or ["weights", "kv_cache"])
        return _json({"status": "ok"})

    async def checker(request: Request) -> Response:
        action = (await _body(request)).get("action", "checksum")
        if action != "checksum":
            raise RequestError(f"action {action!r} is not known; the native engine has 'checksum'")
        return _json({"success": True, "message": "Success.", "checksums": await service.checksums()})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> Any:
        yield
        service.close()

    both, post = ["GET", "POST"], ["POST"]
    table: list[tuple[str, Handler, list[str]]] = [
        ("/generate", generate, post),
        ("/v1/chat/completions", chat, post),
        ("/health", health, ["GET"]),
        ("/health_generate", health_generate, ["GET"]),
        ("/server_info", server_info, ["GET"]),
        ("/get_server_info", server_info, ["GET"]),
        ("/model_info", model_info, ["GET"]),
        ("/get_model_info", model_info, ["GET"]),
        ("/v1/models", models, ["GET"]),
        ("/metrics", metrics, ["GET"]),
        ("/pause_generation", pause, post),
        ("/continue_generation", resume, post),
        ("/abort_request", abort, post),
        ("/flush_cache", flush, both),
        ("/begin_weight_update", weights_begin, post),
        ("/update_weights_from_disk", weights_disk, post),
        ("/update_weights_from_tensor", weights_tensor, post),
        ("/update_weights_from_distributed", weights_distributed, post),
        ("/end_weight_update", weights_end, post),
        ("/update_weight_version", relabel, post),
        ("/init_weights_update_group", open_group, post),
        ("/destroy_weights_update_group", close_group, post),
        ("/release_memory_occupation", release, post),
        ("/resume_memory_occupation", wake, post),
        ("/weights_checker", checker, post),
    ]
    routes = [Route(path, handler, methods=methods) for path, handler, methods in table]
    errors = {RequestError: _request_error, EngineFailed: _engine_failed}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=errors)
    app.state.service = service
    return app


@asynccontextmanager
async def _aborted_on_disconnect(request: Request) -> AsyncIterator[list[bool]]:
    """Cancel the block when the client goes away; the block's end is then reached with a non-empty list.

    Short requests pay a timer only: a client is listened for from `LISTEN_AFTER_S` on.
    """
    loop, task, gone = asyncio.get_running_loop(), asyncio.current_task(), list[bool]()
    listeners: list[asyncio.Task[None]] = []

    async def listen() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone.append(True)
        if task is not None:
            task.cancel()

    timer = loop.call_later(LISTEN_AFTER_S, lambda: listeners.append(loop.create_task(listen())))
    try:
        yield gone
    except asyncio.CancelledError:
        if not gone:
            raise
    finally:
        timer.cancel()
        for listener in listeners:
            listener.cancel()


async def _body(request: Request) -> Mapping[str, Any]:
    raw = await request.body()
    if not raw:
        return {}
    if len(raw) > MAX_BODY_BYTES:
        raise RequestError(f"the body has {len(raw)} bytes; at most {MAX_BODY_BYTES} are read", status=413)
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RequestError(f"the body must be a JSON object, got {type(body).__name__}")
    return body


def _json(content: Any, status: int = 200) -> Response:
    return Response(json.dumps(content, separators=(",", ":")), status, media_type="application/json")


def _success(message: str) -> Response:
    return _json({"success": True, "message": message})


async def _request_error(request: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, RequestError) else 400
    return _json({"error": {"message": str(error), "type": "BadRequestError", "code": status}}, status)


async def _engine_failed(request: Request, error: Exception) -> Response:
    return _json({"error": {"message": str(error), "type": "EngineFailed", "code": 503}}, 503)


# --------------------------------------------------------------------------- process


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m relax.backends.native.server", description=__doc__)
    p.add_argument("--model-path", type=Path, required=True, help="Folder in Hugging Face form.")
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=0, help="0: a free one, written to --port-file.")
    p.add_argument("--port-file", type=Path, help="Gets the bound port once the server listens.")
    p.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    p.add_argument("--device", default="cpu")
    p.add_argument("--attention", choices=("exact", "sdpa"), default="exact")
    p.add_argument("--max-running-requests", type=int, default=256)
    p.add_argument("--max-total-tokens", type=int, default=65536, help="Rows of the KV pool.")
    p.add_argument("--context-length", type=int, help="Default: the model's own limit.")
    p.add_argument("--suppressed-ids", default="auto", help="Ids never sampled, comma-separated, or auto or none.")
    p.add_argument("--media-options", default="{}", help="Limits of images, videos and audio, a JSON object.")
    p.add_argument("--weight-version", default="default")
    p.add_argument("--threads", type=int, default=1, help="Torch threads; exactness is proven for 1.")
    p.add_argument("--parent-pid", type=int, help="Exit when this process is gone. Default: the parent at the start.")
    p.add_argument("--log-level", default="warning")
    return p


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    logging.basicConfig(level=arguments.log_level.upper(), format="%(asctime)s %(name)s %(levelname)s %(message)s")
    parent = arguments.parent_pid or os.getppid()
    answer_as("engine")
    hold_while_loading()
    import torch

    torch.set_num_threads(arguments.threads)
    from relax.backends.native.build import EngineSettings, build_service

    service = build_service(EngineSettings.from_arguments(arguments))
    spare_loaded_objects()
    listener = listen_on(arguments.host, arguments.port)
    port = listener.getsockname()[1]
    if arguments.port_file is not None:
        partial = arguments.port_file.with_suffix(".partial")
        partial.write_text(str(port))
        partial.replace(arguments.port_file)
    sys.stdout.write(f"native engine ready host={arguments.host} port={port} pid={os.getpid()}\n")
    sys.stdout.flush()
    asyncio.run(_serve(create_app(service), listener, parent))
    return 0


def listen_on(host: str, port: int) -> socket.socket:
    """A listening socket; `port` 0 takes a free one."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it. asyncio sets it only on sockets that were made with the protocol's number, and without it
    # every answer waits 40 ms for the acknowledgement of its own headers.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.bind((host, port))
    listener.listen(2048)
    return listener


async def _serve(app: Starlette, listener: socket.socket, parent: int) -> None:
    import uvicorn

    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_keep_alive=75, timeout_graceful_shutdown=5, lifespan="on"
    )
    server = uvicorn.Server(config)
    watch = asyncio.create_task(_watch_parent(server, parent))
    try:
        await server.serve(sockets=[listener])
    finally:
        watch.cancel()


async def _watch_parent(server: Any, parent: int) -> None:
    """An engine without its owner would hold memory and a port for ever."""
    while os.getppid() == parent or _alive_elsewhere(parent):
        await asyncio.sleep(PARENT_CHECK_S)
    logger.warning("parent process is gone, stopping parent=%d", parent)
    server.should_exit = True
    await asyncio.sleep(10.0)
    os.kill(os.getpid(), signal.SIGKILL)


def _alive_elsewhere(parent: int) -> bool:
    """For a --parent-pid that is not the direct parent."""
    try:
        os.kill(parent, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return os.getppid() != 1 or parent == 1


if __name__ == "__main__":
    sys.exit(main())
