"""Run by test_kernels in a process of its own: compile every kernel for sm_90 (Hopper), which needs no GPU."""

from __future__ import annotations

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.kernels.extend_attention_triton import extend_attention_kernel
from engine.kernels.kernel_tables_triton import kernel_tables_kernel
from engine.kernels.kv_store_triton import store_kv_kernel
from engine.kernels.lse_merge_triton import merge_kernel
from engine.kernels.paged_decode_triton import paged_decode_kernel
from engine.kernels.slot_mapping_triton import slot_mapping_kernel

INTEGERS = ("lengths", "tables", "table", "visible", "positions", "blocks", "rows", "slots", "expanded")
ATTENTION = {"page_size": 16, "group": 3, "head_dim": 64, "block_dim": 64, "block_tokens": 32}


def compile_for_hopper(
    kernel: object,
    *,
    pointers: str,
    scalars: str,
    constants: dict[str, int],
    cache: str = "fp32",
    num_warps: int = 4,
    **others: str,
) -> None:
    """``pointers`` to integers are int64, ``others`` are what they say, all further ones are ``cache``'s type."""
    signature = {name: "*i64" if name in INTEGERS else f"*{cache}" for name in pointers.split()}
    signature |= dict.fromkeys(scalars.split(), "i32") | others | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": num_warps})
    assert compiled.asm["cubin"][:4] == b"\x7fELF", "no cubin came out"


def compile_attention(cache: str) -> None:
    compile_for_hopper(
        paged_decode_kernel,
        pointers="queries keys values tables lengths output lse",
        scalars="table_stride",
        constants=ATTENTION | {"block_group": 16},
        cache=cache,
        scale="fp32",
        output="*fp32",
        lse="*fp32",
    )
    compile_for_hopper(
        extend_attention_kernel,
        pointers="queries keys values table visible output lse",
        scalars="num_tokens",
        constants=ATTENTION | {"block_queries": 64},
        cache=cache,
        num_warps=8,
        scale="fp32",
        lse="*fp32",
    )


def main() -> None:
    strides = [f"{tensor}_{axis}_stride" for tensor in ("outputs", "lses") for axis in ("rank", "token", "head")]
    compile_for_hopper(
        merge_kernel,
        pointers="outputs lses merged merged_lse",
        scalars=" ".join([*strides, "num_ranks", "num_heads"]),
        constants={"head_dim": 64, "block_dim": 64},
    )
    compile_for_hopper(
        slot_mapping_kernel,
        pointers="positions blocks rows slots",
        scalars="num_tokens width page_size",
        constants={"block_tokens": 256},
    )
    compile_for_hopper(
        store_kv_kernel,
        pointers="keys values key_rows value_rows slots",
        scalars="keys_stride values_stride",
        constants={"row_size": 192, "block_row": 256},
        cache="bf16",
    )
    compile_for_hopper(
        kernel_tables_kernel,
        pointers="tables expanded",
        scalars="table_stride columns pages_per_block",
        constants={"block_columns": 256},
    )
    for cache in ("fp32", "bf16"):
        compile_attention(cache)
    print("all kernels compile")


if __name__ == "__main__":
    main()
