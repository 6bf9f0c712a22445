"""Which compiled cores are in use. Each is optional, so without one everything works, only later: somebody must say so.

Knows nothing of what a core does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from importlib import import_module

from contract.keys_core import PLAIN_ONLY

__all__ = ["in_use", "say_what_is_plain"]


def in_use(core: str) -> bool:
    """Whether a core, named by its module, was built for this processor and may be used."""
    if PLAIN_ONLY:
        return False
    try:
        import_module(core)
    except ImportError:
        return False
    return True


def say_what_is_plain(log: logging.Logger, cores: Iterable[str]) -> None:
    """Log one line where plain Python does what a core would do faster."""
    plain = [core for core in cores if not in_use(core)]
    if plain:
        why = "KVSTEER_PLAIN_PYTHON is set" if PLAIN_ONLY else "not built: was there a C compiler at the install?"
        log.warning("plain Python, which is slower, stands in for %s (%s)", ", ".join(plain), why)
