"""The extension modules; everything else about the package is in pyproject.toml.

`fastbp/_kernels.pyx` is one source for every instruction set and real type: it is copied into the build folder under
each module's name, translated and compiled with that module's flags. A build that is made anywhere runs anywhere, since
modules for an instruction set are imported only where the CPU has it.
"""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

INSTRUCTION_SETS = {"": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    INSTRUCTION_SETS["_avx2"] = ["-mavx2", "-mfma"]
    INSTRUCTION_SETS["_avx512"] = ["-mavx2", "-mfma", "-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw"]
REALS = {"": [], "_float64": [("FASTBP_DOUBLE", "1")]}

KERNELS = "fastbp/_kernels.pyx"
HEADERS = ("vector", "vector_math", "gelu", "layernorm", "gemm", "dropout", "attention", "cross_entropy", "bfloat16")
# contract: a·b + c becomes one fused multiply-add where the CPU has it. Nothing that assumes away NaN or infinity.
FLAGS = ["-O3", "-g0", "-fwrapv", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]

EXTENSIONS = [
    Extension(
        f"fastbp._kernels{instruction_set}{real}",
        [KERNELS],
        depends=[f"fastbp/_{name}.h" for name in HEADERS],
        include_dirs=["fastbp"],
        define_macros=macros,
        extra_compile_args=[*FLAGS, *flags],
    )
    for instruction_set, flags in INSTRUCTION_SETS.items()
    for real, macros in REALS.items()
]
EXTENSIONS.append(Extension("fastbp.memory._place", ["fastbp/memory/_place.pyx"], extra_compile_args=["-O3", "-g0"]))
EXTENSIONS.append(
    Extension(
        "fastbp.run._loop",
        ["fastbp/run/_loop.pyx"],
        extra_compile_args=["-O3", "-g0", "-pthread"],
        extra_link_args=["-pthread"],
    )
)


class BuildExtensions(build_ext):
    """Translates every module's copy of its source to C in the build folder, then compiles them side by side."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def build_extensions(self) -> None:
        folder = Path(self.build_temp) / "sources"
        for extension in self.extensions:
            copy = folder / f"{extension.name.replace('.', '/')}.pyx"
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(extension.sources[0], copy)
            extension.sources = [str(copy)]
        translated = cythonize(self.extensions, quiet=True)
        for extension, with_c in zip(self.extensions, translated, strict=True):
            extension.sources = with_c.sources
        super().build_extensions()


setup(ext_modules=EXTENSIONS, cmdclass={"build_ext": BuildExtensions})
