"""What pyproject.toml has no words for: compiled cores. Nothing needs them; without a compiler the install goes on."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension("contract._keys", sources=["contract/_keys.c"], extra_compile_args=["-O3"], optional=True),
        Extension(
            "contract.events._wire", sources=["contract/events/_wire.c"], extra_compile_args=["-O3"], optional=True
        ),
        Extension("router.intake._zmtp", sources=["router/intake/_zmtp.c"], extra_compile_args=["-O3"], optional=True),
        Extension(
            "router.intake._table", sources=["router/intake/_table.c"], extra_compile_args=["-O3"], optional=True
        ),
        Extension(
            "engine.kernels._paged_decode",
            sources=["engine/kernels/paged_decode.c"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
        Extension(
            "engine.kernels._narrow_product",
            sources=["engine/kernels/narrow_product.c"],
            depends=["engine/kernels/narrow_panel.h"],
            extra_compile_args=["-O3"],
            optional=True,
        ),
    ]
)
