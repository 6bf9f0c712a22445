"""Run by test_kernels in a process of its own: compile every kernel for sm_90 (Hopper), which needs no GPU."""

from __future__ import annotations

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.kernels.lse_merge_triton import merge_kernel
from engine.kernels.paged_decode_triton import paged_decode_kernel

POINTERS = {"lengths": "*i64", "tables": "*i64"}  # all others point to float32


def compile_for_hopper(kernel: object, *, pointers: str, scalars: dict[str, str], constants: dict[str, int]) -> None:
    signature = {name: POINTERS.get(name, "*fp32") for name in pointers.split()}
    signature |= scalars | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assert compiled.asm["cubin"][:4] == b"\x7fELF", "no cubin came out"


def main() -> None:
    strides = [f"{tensor}_{axis}_stride" for tensor in ("outputs", "lses") for axis in ("rank", "token", "head")]
    compile_for_hopper(
        merge_kernel,
        pointers="outputs lses merged merged_lse",
        scalars=dict.fromkeys([*strides, "num_ranks", "num_heads"], "i32"),
        constants={"head_dim": 64, "block_dim": 64},
    )
    compile_for_hopper(
        paged_decode_kernel,
        pointers="queries keys values tables lengths output lse",
        scalars={"scale": "fp32", "table_stride": "i32", "num_kv_heads": "i32"},
        constants={
            "page_size": 16,
            "group": 3,
            "head_dim": 64,
            "block_group": 4,
            "block_dim": 64,
            "block_tokens": 32,
        },
    )
    print("all kernels compile")


if __name__ == "__main__":
    main()
