"""``python -m bench.router.mock_worker``: an engine that computes nothing, as fast as one Python process answers.

HTTP/1.1 over a bare protocol; every prompt goes through a real prefix cache, whose events are published by the
project's publisher in vLLM's words, which all routers of the bench read. Ready, it prints a line with its URL.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import msgspec
import uvloop

from bench.router.lexicon import Lexicon
from bench.router.messages import Message, MessageError, MessageReader
from bench.router.mock_answers import Asked, Counts, about, completion, completion_parts, rendered, tokenized
from bench.router.mock_cache import PrefixCache
from contract.events import Dialect
from contract.kv_events_config import KVEventsConfig
from publisher import EventPublisher

__all__ = ["READY", "main"]

READY = "bench-worker ready "
_ANYWHERE = "tcp://127.0.0.1:0"
_HEAD = b"HTTP/1.1 %s\r\nContent-Type: %s\r\n"
_OK, _NOT_FOUND, _BAD = b"200 OK", b"404 Not Found", b"400 Bad Request"
_JSON, _EVENTS = b"application/json", b"text/event-stream"
_Write = Callable[[bytes], None]
_asked = msgspec.json.Decoder(Asked).decode


class Worker:
    """One worker: what it holds, what it publishes, and what it answers."""

    def __init__(self, lexicon: Lexicon, publisher: EventPublisher, *, name: str, said: dict[str, bytes]) -> None:
        self._lexicon = lexicon
        self._publisher = publisher
        self._name = name
        self._said = said
        self._cache = PrefixCache()

    def answer(self, message: Message, write: _Write) -> None:
        """Write the answer to one request, a streamed one piece by piece over the next turns of the loop."""
        path = message.head.split(b" ", 2)[1].decode()
        try:
            self._route(path, message.body, write)
        except msgspec.MsgspecError as error:
            write(_whole(msgspec.json.encode({"error": str(error)}), status=_BAD))

    def _route(self, path: str, body: bytes, write: _Write) -> None:
        if path == "/v1/completions":
            self._complete(_asked(body), write)
        elif path == "/v1/completions/render":
            write(_whole(rendered(self._ids(_asked(body).prompt))))
        elif path == "/tokenize":
            write(_whole(tokenized(self._ids(_asked(body).prompt))))
        elif path == "/flush_cache":
            self._publisher.publish(self._cache.clear())
            write(_whole(b""))
        elif path in self._said:
            write(_whole(self._said[path]))
        else:
            write(_whole(b'{"detail":"Not Found"}', status=_NOT_FOUND))

    def _ids(self, prompt: str | list[int]) -> list[int]:
        return self._lexicon.ids(prompt) if isinstance(prompt, str) else prompt

    def _complete(self, asked: Asked, write: _Write) -> None:
        ids = self._ids(asked.prompt)
        taken = self._cache.take(ids)
        self._publisher.publish(taken.events)
        counts = Counts(
            worker=self._name,
            prompt_tokens=len(ids),
            cached_tokens=taken.cached_tokens,
            new_tokens=asked.max_tokens,
        )
        if asked.stream:
            _stream(completion_parts(counts), write)
        else:
            write(_whole(completion(counts)))


def _whole(body: bytes, *, status: bytes = _OK) -> bytes:
    return b"".join((_HEAD % (status, _JSON), b"Content-Length: %d\r\n\r\n" % len(body), body))


def _stream(parts: Sequence[bytes], write: _Write) -> None:
    """One part a turn of the loop: as many packets as an engine sends, with nothing computed between them."""
    chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in parts]
    chunks[0] = _HEAD % (_OK, _EVENTS) + b"Transfer-Encoding: chunked\r\n\r\n" + chunks[0]
    _write_next([*chunks, b"0\r\n\r\n"], 0, write)


def _write_next(chunks: Sequence[bytes], index: int, write: _Write) -> None:
    write(chunks[index])
    if index + 1 < len(chunks):
        asyncio.get_running_loop().call_soon(_write_next, chunks, index + 1, write)


class _Connection(asyncio.Protocol):
    """A router's connection. What is no HTTP/1.1, as the preface of HTTP/2 is not, ends it."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._reader = MessageReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its bases

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                if b" HTTP/1.1\r\n" not in message.head:
                    raise MessageError("not HTTP/1.1")
                self._worker.answer(message, self._write)
        except MessageError:
            self._transport.close()

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


async def _serve(lexicon: Path) -> None:
    config = KVEventsConfig(publisher="zmq", endpoint=_ANYWHERE, replay_endpoint=_ANYWHERE, bind=True)
    publisher = EventPublisher(config, dialect=Dialect.VLLM)
    said = about(tokenizer=str(lexicon), endpoint=publisher.endpoint, replay_endpoint=publisher.replay_endpoint)
    worker = Worker(Lexicon(lexicon), publisher, name=publisher.endpoint, said=said)
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(worker), "127.0.0.1", 0)
    print(f"{READY}http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve until a signal ends the process."""
    parser = argparse.ArgumentParser(prog="python -m bench.router.mock_worker")
    parser.add_argument("--lexicon", type=Path, required=True, help="folder that `write_lexicon` wrote")
    uvloop.run(_serve(parser.parse_args().lexicon))


if __name__ == "__main__":
    main()
