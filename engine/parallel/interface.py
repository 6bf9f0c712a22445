"""Which network interface of this machine faces a given host. Linux, IPv4."""

from __future__ import annotations

import fcntl
import socket
import struct

__all__ = ["interface_towards", "own_address"]

_SIOCGIFADDR = 0x8915
_DISCARD_PORT = 9


def own_address(host: str) -> str:
    """This machine's address as ``host`` sees it; ``host``'s own where that is this machine. Nothing is sent.

    Raises:
        OSError: no such host, or no route to it.
    """
    family, kind, _, _, address = socket.getaddrinfo(host, _DISCARD_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def interface_towards(host: str) -> str | None:
    """Its name, or None where it cannot be told, as for IPv6.

    Raises:
        OSError: no such host, or no route to it.
    """
    address = own_address(host)
    return next((name for _, name in socket.if_nameindex() if _address_of(name) == address), None)


def _address_of(interface: str) -> str | None:
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        try:
            answer = fcntl.ioctl(query, _SIOCGIFADDR, request)
        except OSError:  # it has no IPv4 address
            return None
    return socket.inet_ntoa(answer[20:24])
