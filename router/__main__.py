"""``kvsteer-router``: the command line. ``serve`` is what it does when no command is named."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from contract.text.tokenizer_files import TokenizerFileError
from program.command_line import BAD_FLAGS_STATUS, complain
from program.standard_streams import fill_standard_streams
from router.choice.tokenization import named_tokenizer
from router.config import RouterConfig
from router.conformance.command import run_conformance
from router.conformance.flags import CONFORMANCE, parse_conformance
from router.console.check import run_check
from router.console.flags import CHECK, TOP, parse_check, parse_top
from router.console.top import run_top
from router.flags import PROGRAM, REPLAY, SERVE, parse_replay, parse_serve
from router.front.server import BindError
from router.process import log_to_stderr, say_ready, serve
from router.replay import run_replay
from router.trace.chunk import TraceFileError
from router.trace.flags import TRACE, run_trace
from router.workers.slot import WorkerLostError
from router.workers.supervisor import supervise

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status. 2: the command line makes no sense, in one line on stderr."""
    fill_standard_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments.pop(0) if arguments and arguments[0] in _COMMANDS else SERVE
    return _COMMANDS[command](arguments)


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    SERVE: lambda argv: _serve(parse_serve(argv)),
    REPLAY: lambda argv: run_replay(parse_replay(argv)),
    CHECK: lambda argv: run_check(parse_check(argv)),
    TOP: lambda argv: run_top(parse_top(argv)),
    CONFORMANCE: lambda argv: run_conformance(parse_conformance(argv)),
    TRACE: run_trace,
}


def _serve(config: RouterConfig) -> int:
    try:
        if config.workers == 1:
            serve(config)
        else:
            named_tokenizer(config.tokenizer)  # so that one process says what is wrong with it
            log_to_stderr(config, name="parent")
            supervise(config, ready=say_ready)
    except TokenizerFileError as error:
        return complain(PROGRAM, f"--tokenizer: {error}", status=BAD_FLAGS_STATUS)
    except (BindError, TraceFileError, WorkerLostError) as error:
        return complain(PROGRAM, str(error), status=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
