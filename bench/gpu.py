"""``python bench/gpu.py``: every kernel on this machine's GPU, checked against its reference and timed.

Then the engine on them: with one rank, whose decode steps are captured and replayed, and with a rank on each GPU.
Bandwidth counts the bytes that a kernel must read and write, beside those of a plain device copy in the same run. Where
there is no GPU it says so, and nothing is wrong. Exit status 1: a kernel disagrees with its reference, or
ranks with the CPU.
"""

from __future__ import annotations

import importlib.util
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["check_ranks", "main"]

_RUNS = 30
_COPIED_BYTES = 1 << 30  # far more than any cache on the way


def main() -> int:
    """Check and time; the exit status."""
    absent = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if absent:
        return _nothing_to_do(f"{' and '.join(absent)} not installed")
    import torch

    if not torch.cuda.is_available():
        return _nothing_to_do("torch finds no GPU")
    seed = random.randrange(2**32)
    print(f"{torch.cuda.get_device_name()}, seed {seed}")
    wrong = [*_check_odd_sizes(seed), *_check_and_time(seed), *check_ranks("cuda", counts=_rank_counts())]
    if wrong:
        print(f"bench/gpu.py: these differ from their references: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def _nothing_to_do(reason: str) -> int:
    print(f"bench/gpu.py: {reason}, so no kernel was checked and nothing was measured")
    return 0


def _check_odd_sizes(seed: int) -> list[str]:
    """Names of kernels that disagree."""
    import torch

    from bench.kernel_cases import cases, odd_sizes

    return [case.name for case in cases(odd_sizes(torch.device("cuda")), seed=seed) if case.error() is None]


def _check_and_time(seed: int) -> list[str]:
    """Print a line for each kernel; names of those that disagree."""
    import torch

    from bench.kernel_cases import cases, large_sizes

    copied = _copy_bandwidth()
    print(f"{'device copy':<18} {'':>12} {'':>12} {copied:8.0f} GB/s")
    wrong = []
    for case in cases(large_sizes(torch.device("cuda")), seed=seed):
        error = case.error()
        if error is None:
            wrong.append(f"{case.name} (large)")
            continue
        seconds = _seconds(case.kernel)
        reached = case.moved_bytes / seconds / 1e9
        line = f"error {error:6.0e} {seconds * 1e6:9.1f} us {reached:8.0f} GB/s {reached / copied:6.0%} of a copy"
        print(f"{case.name:<18} {line}", flush=True)
    return wrong


def _rank_counts() -> list[int]:
    """One rank, and as many as there are GPUs for and the model's heads divide over."""
    import torch

    return [1, *(count for count in (2, 4) if count <= torch.cuda.device_count())]


def check_ranks(device: str, *, counts: Sequence[int]) -> list[str]:
    """Ask so many rank processes for what one on a CPU answers, a line for each; names of those that differ."""
    from bench.engine_answers import answers_of_processes

    expected, wrong = answers_of_processes("cpu", ranks=1), []
    for count in counts:
        name = f"{count} rank{'s' * (count > 1)} on {device}"
        same = answers_of_processes(device, ranks=count) == expected
        print(f"{name:<18} {'the same tokens as' if same else 'other tokens than'} one on a CPU", flush=True)
        wrong += [] if same else [name]
    return wrong


def _copy_bandwidth() -> float:
    """GB/s, counting what is read and what is written."""
    import torch

    source = torch.ones(_COPIED_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * _COPIED_BYTES / _seconds(lambda: target.copy_(source)) / 1e9


def _seconds(work: Callable[[], object]) -> float:
    """The median of what it takes on the GPU, after a few runs in which it is compiled and clocks rise."""
    import torch

    for _ in range(3):
        work()
    times: list[float] = []
    for _ in range(_RUNS):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        work()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after) / 1000)
    return statistics.median(times)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # in this folder, `engine` is something else
    sys.exit(main())
