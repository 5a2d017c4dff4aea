"""Relay between an engine's client in the main process and one API process.

To the API process it is a worker: it takes requests, and sends one message with the outputs of all of its requests. The
main process admits, routes and charges the requests of all API processes.
"""

import asyncio
import logging
import os
import socket
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from lightwell.server.config.auth.keys import Keyring
from lightwell.server.dispatch.engine_client import EngineClient
from lightwell.server.dispatch.request_context import RequestContext
from lightwell.server.dispatch.request_handle import RequestHandle
from lightwell.server.engine.messages.outputs import EngineInfo, EngineStats, RequestOutput
from lightwell.server.engine.messages.request import EngineRequest
from lightwell.server.http.errors import ApiError, EngineError
from lightwell.server.ipc import messages
from lightwell.server.ipc.frames import Frame
from lightwell.server.ipc.link import LinkProtocol
from lightwell.server.observability.access_log import RequestRecord

logger = logging.getLogger(__name__)

_NO_STATS = EngineStats()
"""The stats of all workers are shown by the main process."""
_BEAT = messages.encode(messages.Heartbeat())


@dataclass(slots=True, eq=False, repr=False)
class RelayedRequest(RequestHandle):
    """A request of an API process. Its outputs are sent there, and its end is counted there."""

    relay: "EngineRelay" = field(init=False)
    sender_uid: int = field(init=False)
    """Its uid in the API process."""

    def push_token(self, token_id: int, output: RequestOutput | None = None) -> None:
        """Send a token, with its output unless it came with nothing else."""
        if output is not None:
            self.push(output)
            return
        self.num_generated_tokens += 1
        self._charge(1)
        self.relay.add_token(self.sender_uid, token_id)

    def push(self, output: RequestOutput) -> None:
        """Send an output. The API process reads an error from it, as from a worker's."""
        if output.token_id is not None:
            self.num_generated_tokens += 1
            self._charge(1)
        self.is_finished = output.finish_reason is not None
        self.relay.add_output(structs.replace(output, uid=self.sender_uid))
        if self.is_finished and not self.cost.capture_bytes:  # else the API process sends an Abort at the end
            self.relay.requests.pop(self.sender_uid, None)
            self._take()

    def fail(self, error: ApiError) -> None:
        """Send the error that ends the request."""
        self.is_finished = True
        self.relay.requests.pop(self.sender_uid, None)
        self.relay.send_error(self.sender_uid, error)
        self._take()


class EngineRelay:
    """The connection of one API process to one engine. All of it runs in one event loop."""

    def __init__(self, client: EngineClient, keys: Keyring) -> None:
        self.requests: dict[int, RelayedRequest] = {}
        """The unfinished requests of the API process, by its uids."""
        self.num_admitted = 0
        self._client = client
        self._keys = keys
        self._protocol = LinkProtocol(self._take_frame, self._end)
        self._token_uids: list[int] = []
        self._token_ids: list[int] = []
        self._outputs: list[RequestOutput] = []
        self._others: set[int] = set()
        """Requests with an entry in `_outputs`: their further tokens follow there, to keep their order."""
        self._is_due = False

    async def start(self, connected: socket.socket) -> None:
        """Take requests over this connection. The engine's description is sent once a worker is ready."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self._protocol, sock=connected)
        self._send(messages.Hello(0, os.getpid()))
        self._client.on_info.add(self._tell_info)
        if any(worker.was_ready for worker in self._client.workers):
            self._tell_info(self._client.info())

    def beat(self) -> None:
        """Report that the main process runs."""
        self._protocol.send(*_BEAT)

    def stop(self) -> None:
        """End the connection."""
        self._protocol.abort("the server is shutting down")

    # ---- to the API process

    def add_token(self, uid: int, token_id: int) -> None:
        """Send a token, together with the other outputs of this iteration of the event loop."""
        if uid in self._others:
            self._outputs.append(RequestOutput(uid=uid, token_id=token_id))
        else:
            self._token_uids.append(uid)
            self._token_ids.append(token_id)
        self._send_soon()

    def add_output(self, output: RequestOutput) -> None:
        """Send an output of a request, with its uid in the API process, likewise."""
        self._others.add(output.uid)
        self._outputs.append(output)
        self._send_soon()

    def send_error(self, uid: int, error: ApiError) -> None:
        """Send the end of a request, after its outputs."""
        self._flush()
        fields = error.status, error.message, error.type, error.param, error.code, error.retry_after
        self._send(messages.RequestFailed(uid, *fields))

    def _send_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_due = False
        if not (self._token_uids or self._outputs):
            return
        tokens = tuple(self._token_uids), tuple(self._token_ids)
        self._send(messages.StepMessage(tuple(self._outputs), _NO_STATS, (), True, *tokens))
        for each in (self._token_uids, self._token_ids, self._outputs, self._others):
            each.clear()

    def _tell_info(self, info: EngineInfo) -> None:
        self._send(messages.Ready(info))

    def _send(self, message: messages.FromWorker) -> None:
        self._protocol.send(*messages.encode(message))

    # ---- from the API process

    def _take_frame(self, protocol: LinkProtocol, frame: Frame) -> None:
        message: Any = messages.decode_to_worker(frame.header, frame.buffers)
        match message:
            case EngineRequest():
                self._begin(message)
            case messages.Abort(uid):
                if (handle := self.requests.pop(uid, None)) is not None:
                    handle.close()
            case messages.Describe(number):
                self._send(messages.Described(number, {}))
            case messages.LoadAdapter(number):  # the main process has loaded it
                self._send(messages.AdapterLoaded(number, None))

    def _begin(self, request: EngineRequest) -> None:
        use = self._keys.use_of(request.client)
        record = RequestRecord(request.request_id, key=request.client or None, use=use)
        record.engine_requests = int(request.has_begun)
        context = RequestContext(
            record, priority=request.priority, cache_salt=request.cache_salt, deadline=request.deadline
        )
        try:
            context.adapter = self._client.adapters.numbered(request.adapter)
            handle = self._client.begin(request, context, RelayedRequest)
            self._client.count(handle)
        except ApiError as error:
            self.send_error(request.uid, error)
        except Exception:  # a bug must not end the other requests of the API process
            logger.exception("a request of an API process could not be begun")
            message = "The server failed on this request; see its log."
            self.send_error(request.uid, EngineError(message, code="internal_error"))
        else:
            handle.relay, handle.sender_uid = self, request.uid
            self.requests[request.uid] = handle
            self.num_admitted += 1
            self._send(messages.Admitted(request.uid))

    def _end(self, protocol: LinkProtocol, reason: str) -> None:
        """Abort the requests of an API process that has ended."""
        self._client.on_info.discard(self._tell_info)
        for handle in self.requests.values():
            handle.close()
        self.requests.clear()
