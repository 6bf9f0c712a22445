SETS: int

def product(
    instruction_set: int,
    form: int,
    states: int,
    weights: int,
    grids: int,
    result: int,
    rows: int,
    width: int,
    outputs: int,
    /,
) -> None: ...
