"""What a model path stands for: built-in names, folders, files, ids of the hub; one line for what leads nowhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine_process import ROOT
from published_model import VOCAB_SIZE, publish_folder, publish_gguf
from small_tokenizer import trained

from engine.model.byte_tokenizer import ByteTokenizer
from engine.model.catalogue import find_model
from engine.model.config import TINY, ModelError

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_folder(tmp_path_factory.mktemp("models") / "folder")


def test_built_in_models_speak_bytes() -> None:
    tiny, sim = find_model("tiny"), find_model("sim")
    assert tiny.source is not None
    assert tiny.source.config == TINY
    assert sim.source is None
    assert tiny.tokenizer.name == sim.tokenizer.name == "byte"
    assert tuple(tiny.eos_token_ids) == tuple(sim.eos_token_ids) == ByteTokenizer.eos_token_ids


def test_a_relative_folder_is_known_by_its_absolute_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    model = find_model("folder")
    assert model.source is not None
    assert (model.path, model.source.kind, model.source.path) == ("folder", "folder", str(folder))
    assert model.tokenizer.name == str(folder)
    assert (model.tokenizer.vocab_size, model.eos_token_ids) == (VOCAB_SIZE, (2,))
    assert model.tokenizer.encode("text") == trained().encode("text").ids


def test_a_gguf_file_is_known_by_its_path_whatever_it_is_called(folder: Path, tmp_path: Path) -> None:
    model = find_model(str(publish_gguf(tmp_path / "weights", folder)))
    assert model.source is not None
    assert (model.source.kind, model.source.path) == ("gguf", str(tmp_path / "weights"))
    assert model.tokenizer.name == str(tmp_path / "weights")


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("nothing", "'nothing' is no folder, no .gguf file, no hub id .owner/name. and none of tiny, "),
        ("/nothing/here", "'/nothing/here' is no folder"),
        ("a/b/c", "'a/b/c' is no folder"),
        ("missing/file.gguf", r"missing/file\.gguf cannot be read: No such file or directory"),
    ],
)
def test_a_path_that_leads_nowhere_is_one_line(path: str, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint) as caught:
        find_model(path)
    assert "\n" not in str(caught.value)


def find_from_hub(name: str, *, home: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the library reads its environment once. Nothing outside this machine is asked."""
    program = f"from engine.model.catalogue import find_model; print(find_model({name!r}).source.path)"
    nowhere = {"HF_HOME": str(home), "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_DISABLE_TELEMETRY": "1"}
    environment = os.environ | nowhere | environ
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("environ", [{}, {"HF_HUB_OFFLINE": "1"}])
def test_a_model_of_the_hub_is_taken_from_the_local_cache(
    folder: Path, tmp_path: Path, environ: dict[str, str]
) -> None:
    """Laid out as huggingface_hub does; with the hub out of reach, and when told not to ask."""
    repository = tmp_path / "hub" / "models--some--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(REVISION)
    (repository / "snapshots").mkdir()
    snapshot = repository / "snapshots" / REVISION
    snapshot.symlink_to(folder)
    done = find_from_hub("some/model", home=tmp_path, **environ)
    assert done.stdout == f"{folder}\n", done.stderr


@pytest.mark.parametrize("environ", [{}, {"HF_HUB_OFFLINE": "1"}])
def test_a_model_of_the_hub_that_cannot_be_had_is_one_line(tmp_path: Path, environ: dict[str, str]) -> None:
    done = find_from_hub("some/model", home=tmp_path, **environ)
    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    assert "ModelError: --model-path some/model: no such folder here, and not to be had from the hub: " in last
