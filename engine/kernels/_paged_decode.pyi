MOST_GROUP: int

def decode(
    queries: int,
    keys: int,
    values: int,
    tables: int,
    lengths: int,
    outputs: int,
    lses: int,
    batch: int,
    kv_heads: int,
    group: int,
    dims: int,
    page_size: int,
    columns: int,
    /,
) -> None: ...
