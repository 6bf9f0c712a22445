"""``--config``: options and replicas from a file, and complaints that name file, key and value in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine, FakeVllm, stored
from patience import until
from router_stage import Stage

from contract.endpoint import parse_tcp
from router.config import ConfigError
from router.config_file import read_config_file
from router.flags import parse_serve

GOOD = """
policy: round_robin
probe-interval: 2
api_keys: [a, b]
replicas:
  - http://10.0.0.1:30000/
  - url: http://10.0.0.2:8000
    engine: vllm
    model: llama
    endpoint: tcp://*:5557
    replay_endpoint: tcp://10.0.0.9:6557
    topic: kv
    dp_size: 2
    block_size: 64
"""


def written(folder: Path, text: str) -> str:
    path = folder / "router.yaml"
    path.write_text(text)
    return str(path)


def test_a_file_sets_options_and_replicas_and_the_command_line_wins(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    config = parse_serve(["--config", path])
    assert (config.policy, config.probe_interval, config.api_keys) == ("round_robin", 2.0, ("a", "b"))
    assert config.urls == ("http://10.0.0.1:30000", "http://10.0.0.2:8000")
    again = parse_serve(["--config", path, "--policy", "kv", "--replica", "http://10.0.0.2:8000"])
    assert (again.policy, again.urls) == ("kv", ("http://10.0.0.2:8000",))
    assert again.overrides["http://10.0.0.2:8000"].block_size == 64


def test_what_is_configured_of_a_replica_stands_in_for_what_it_does_not_say(tmp_path: Path) -> None:
    override = read_config_file(written(tmp_path, GOOD))["overrides"]["http://10.0.0.2:8000"]
    assert override.whole
    identity = override.applied(override.identity())
    assert (identity.engine, identity.models[0].id, identity.dp_size, identity.block_size) == ("vllm", "llama", 2, 64)
    assert [(stream.address.endpoint, stream.address.replay_endpoint, stream.topic) for stream in identity.streams] == [
        ("tcp://10.0.0.2:5557", "tcp://10.0.0.9:6557", "kv"),
        ("tcp://10.0.0.2:5558", "tcp://10.0.0.9:6558", "kv"),
    ]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("port: [1", "not YAML"),
        ("- a", "keys and values"),
        ("prot: 8080", "prot"),
        ("port: eighty", "port: Expected `int`, got `str`, got 'eighty'"),
        ("port: 70000", "70000"),
        ("policy: best", "'best'"),
        ("log_level: loud", "'loud'"),
        ("replicas: http://a:1", "list"),
        ("replicas: [3]", "replicas[0]"),
        ("replicas: ['ftp://a']", "ftp://a"),
        ("replicas: [{engine: vllm}]", "url"),
        ("replicas: [{url: 'http://a:1', colour: red}]", "colour"),
        ("replicas: [{url: 'http://a:1', block_size: 0}]", "replicas[0].block_size"),
        ("replicas: [{url: 'http://a:1', engine: trt}]", "'trt'"),
        ("replicas: [{url: 'http://a:1', endpoint: 'http://a'}]", "endpoint: 'http://a'"),
        ("replicas: [{url: 'http://a:1', endpoints: ['tcp://a:0']}]", "'tcp://a:0'"),
    ],
)
def test_a_mistake_is_one_line_that_names_file_key_and_value(tmp_path: Path, text: str, named: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        read_config_file(path)
    message = str(error.value)
    assert message.startswith(path)
    assert named in message
    assert "\n" not in message


def test_a_file_that_is_not_there_ends_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_serve(["--config", str(tmp_path / "none.yaml")])
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


async def test_an_old_vllm_is_joined_by_its_configured_endpoint(stage: Stage, tmp_path: Path) -> None:
    """vLLM before 0.31 does not say where its events are."""
    engine = FakeVllm(width=6)
    engine.publish_on()
    publisher = engine.publishers[0]
    engine.says_sources = False
    await stage.engine(engine)
    replay = publisher.replay_endpoint
    options: dict[str, Any] = read_config_file(
        written(
            tmp_path,
            f"replicas: [{{url: '{engine.url}', endpoint: '{publisher.endpoint}', replay_endpoint: '{replay}'}}]",
        )
    )
    router = await stage.router(engine, overrides=options["overrides"])
    prompt = list(range(61))
    engine.publish(stored(prompt, width=6))
    await router.until_matched(prompt, {engine.url: 60})


async def test_a_server_that_says_nothing_is_used_by_what_is_configured(stage: Stage, tmp_path: Path) -> None:
    engine = FakeEngine(width=6)
    engine.publish_on()
    port = parse_tcp(engine.publishers[0].endpoint).port
    engine.server_info.clear()
    engine.models.clear()
    await stage.engine(engine)
    text = f"replicas: [{{url: '{engine.url}', engine: sglang, model: x, endpoint: 'tcp://*:{port}', topic: kv}}]"
    router = await stage.router(engine, overrides=read_config_file(written(tmp_path, text))["overrides"], ready=False)
    await router.until_state(engine, "healthy")
    prompt = list(range(61))

    async def announced() -> bool:
        engine.publish(stored(prompt, width=6))
        return await router.matched(prompt) == {engine.url: 60}

    await until(announced, "events come from the configured endpoint")
    assert (await router.replica(engine))["model"] == "x"
