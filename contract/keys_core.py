"""Who computes keys: the compiled core where it was built, the plain one elsewhere and where it is asked for."""

from __future__ import annotations

import os

__all__ = ["PLAIN_ONLY", "chain", "pack_list", "read_ids", "write_ids"]

PLAIN_ONLY = bool(os.environ.get("KVSTEER_PLAIN_PYTHON"))
"""Whether nothing compiled of ours may be used in this process."""

if PLAIN_ONLY:
    from contract.plain_keys import chain, pack_list, read_ids, write_ids
else:
    try:
        from contract._keys import chain, pack_list, read_ids, write_ids
    except ImportError:
        from contract.plain_keys import chain, pack_list, read_ids, write_ids
