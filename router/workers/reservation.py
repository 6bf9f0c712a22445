"""A port held for workers that will each listen on it with SO_REUSEPORT.

Held is what nobody listens on: the system gives no connections to a socket that is only bound. Whoever else wants the
port is told that it is taken, as by any server; only then is it bound so that the workers can share it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from router.front.server import BindError

__all__ = ["reserved_port"]

_Address = tuple[socket.AddressFamily, tuple[object, ...]]


@contextmanager
def reserved_port(host: str, port: int) -> Iterator[int]:
    """The port, or for 0 one that the system chooses, held on every address of the host.

    Raises:
        BindError: the address is taken or is not ours.
    """
    with ExitStack() as held:
        try:
            for family, address in _addresses(host, port):
                port = port or _free_port(family, address)
                address = (address[0], port, *address[2:])
                _bound(family, address, share=False).close()
                held.enter_context(_bound(family, address, share=True))
        except OSError as error:
            raise BindError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
        yield port


def _addresses(host: str, port: int) -> list[_Address]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _free_port(family: socket.AddressFamily, address: tuple[object, ...]) -> int:
    with _bound(family, address, share=False) as probe:
        port: int = probe.getsockname()[1]
        return port


def _bound(family: socket.AddressFamily, address: tuple[object, ...], *, share: bool) -> socket.socket:
    """Bound as a listener would be: without sharing this fails where somebody listens already."""
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if share else socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        holder.bind(address)
    except BaseException:
        holder.close()
        raise
    return holder
