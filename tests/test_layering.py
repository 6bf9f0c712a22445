"""The architecture, checked: who may import whom, which library stays behind which fence, one home for the width."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("contract", "program", "publisher", "engine", "router", "bench")

# Package -> what it may import of ours. An entry "a.b" allows that one module to be the importer.
ARROWS: dict[str, set[str]] = {
    "contract": set(),
    "program": {"contract"},
    "publisher": {"contract"},
    "router": {"contract", "program"},
    "engine": {"contract", "program"},
    "bench": {"contract", "program", "publisher", "engine", "router"},
}
EXCEPTIONS = {("engine.__main__", "publisher")}

# Library -> the only modules (glob patterns) that may import it.
FENCES: dict[str, tuple[str, ...]] = {
    # The conformance listener must see frames as they come, where a subscriber repairs and drops what it gets; a trace
    # is played to other people's routers as it was recorded, faults included, where a publisher would number it anew;
    # an indexer is measured by frames that all lie ready.
    "zmq": (
        "publisher.transport",
        "bench.index.wire_source",
        "router.conformance.listener",
        "router.trace.publication",
    ),
    "torch": ("engine.*", "bench.engine.*", "bench.gpu", "bench.kernel_cases"),
    "triton": ("engine.kernels.*",),
    "safetensors": ("engine.model.*",),
    "gguf": ("engine.model.*",),
    "huggingface_hub": ("engine.model.catalogue",),
    "transformers": ("bench.*",),
    "matplotlib": ("bench.fleet.plot",),
    "aiohttp": (
        "program.refusals",
        "engine.server*",
        "router.service",
        "router.front*",
        "router.fleet*",
        "router.choice*",
        "router.console*",
        "router.conformance.server",
        "router.trace.stand_in",
        "bench.*",
    ),
    "httptools": ("router.front.engine_connection",),
    "zstandard": ("router.trace.*",),
    "pytest": (),
    "prometheus_client": ("engine.server*", "router.service", "router.front*"),
}
ENGINE_EXTRA = ("gguf", "huggingface_hub", "numpy", "safetensors", "torch", "triton")
CONTRACT_LIBRARIES = {"msgspec", "xxhash"}
TEXT_LIBRARIES = {"jinja2", "tokenizers"}  # of contract.text, which a publisher does without
WIDTH_HOME = "contract.geometry"


class Module(NamedTuple):
    """What one file imports, and how often it multiplies the width."""

    name: str
    imports: tuple[str, ...]
    width_products: int


@cache
def modules() -> tuple[Module, ...]:
    """Every file of ours; read once, which takes a while."""
    return tuple(read(path) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))


def read(path: Path) -> Module:
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    nodes = list(ast.walk(ast.parse(path.read_text(), filename=str(path))))
    imported = tuple(module for node in nodes for module in imports(node))
    return Module(name, imported, sum(map(is_width_product, nodes)))


def imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute here"
        yield node.module or ""


def arrow_allowed(name: str, target: str) -> bool:
    package = name.split(".")[0]
    return target == package or target in ARROWS[package] or (name, target) in EXCEPTIONS


def fence_allowed(name: str, library: str) -> bool:
    if name.split(".")[0] == "contract":
        libraries = CONTRACT_LIBRARIES | (TEXT_LIBRARIES if name.startswith("contract.text.") else set())
        return library in libraries | {"contract"} or library in sys.stdlib_module_names
    return library not in FENCES or any(fnmatch(name, pattern) for pattern in FENCES[library])


def violations(allowed: Callable[[str, str], bool]) -> list[str]:
    return [
        f"{module.name} imports {imported}"
        for module in modules()
        for imported in module.imports
        if not allowed(module.name, imported.split(".")[0])
    ]


def identifiers(node: ast.expr) -> set[str]:
    names = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
    return names | {child.attr for child in ast.walk(node) if isinstance(child, ast.Attribute)}


def is_width_product(node: ast.AST) -> bool:
    """A page (or block) size times a DCP size, under whatever names."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    left, right = identifiers(node.left), identifiers(node.right)
    return any(
        any("page" in name or name == "block_size" for name in one) and any("dcp" in name for name in other)
        for one, other in ((left, right), (right, left))
    )


def test_imports_follow_the_arrows() -> None:
    assert violations(lambda name, target: target not in PACKAGES or arrow_allowed(name, target)) == []


def test_libraries_stay_behind_their_fences() -> None:
    assert violations(fence_allowed) == []


def test_the_width_product_is_written_once() -> None:
    assert {module.name: module.width_products for module in modules() if module.width_products} == {WIDTH_HOME: 1}


@pytest.mark.parametrize("source", ["page_size * dcp_size", "self.dcp_size * cfg.page_size", "block_size * g.dcp"])
def test_the_width_rule_sees_a_product_under_other_names(source: str) -> None:
    assert is_width_product(ast.parse(source, mode="eval").body)


def test_the_bare_install_needs_no_torch() -> None:
    """Router, publisher and contract, and the engine up to the choice of a runner, import without its extra."""
    names = [
        module.name
        for module in modules()
        if module.name.split(".")[0] in {"contract", "program", "publisher", "router"}
    ]
    lines = [
        "import sys, importlib",
        f"sys.modules.update(dict.fromkeys({ENGINE_EXTRA!r}))",
        f"[importlib.import_module(name) for name in {[*names, 'engine.__main__']!r}]",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
