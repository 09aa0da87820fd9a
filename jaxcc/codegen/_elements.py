"""The dtypes that kernels know: how an element is stored and computed, and constants as text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import numpy as jnp

from jaxcc._compat import SourceLine
from jaxcc.layout import CodegenError


@dataclass(frozen=True)
class Element:
    """One dtype in C++; `load`, `store` and `round` are formats of the expression to convert."""

    dtype: str
    storage: str
    compute: str
    kind: str  # "float", "int" (signed), "uint" or "bool"
    load: str = "{}"
    store: str = "{}"
    round: str = "{}"

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def unsigned(self) -> str:
        """The unsigned type in which an integer's arithmetic wraps around, as in XLA."""
        return "uint64_t" if self.dtype.endswith("64") else "uint32_t"

    @property
    def bits(self) -> int:
        """How wide a stored element is."""
        return 8 * jnp.dtype(self.dtype).itemsize

    @property
    def to_bits(self) -> str:
        """The format of a value's bits, an unsigned integer."""
        if self.is_half:
            return self.store
        return "jaxcc::bits_of({})" if self.is_float else f"(uint{self.bits}_t)({{}})"

    @property
    def of_bits(self) -> str:
        """The format of the value that has these bits."""
        if self.is_half:
            return self.load
        return f"jaxcc::{self.compute}_of({{}})" if self.is_float else f"({self.compute})({{}})"

    @property
    def is_half(self) -> bool:
        """Stored in two bytes and computed as float, rounded after each operation."""
        return self.is_float and self.storage != self.compute


def _half(name: str, dtype: str) -> Element:
    return Element(
        dtype,
        "uint16_t",
        "float",
        "float",
        load=f"jaxcc::from_{name}({{}})",
        store=f"jaxcc::to_{name}({{}})",
        round=f"jaxcc::round_{name}({{}})",
    )


def _integer(kind: str, bits: int) -> Element:
    name = f"{kind}{bits}"
    return Element(name, f"{name}_t", f"{name}_t", kind)


ELEMENTS: dict[str, Element] = {
    element.dtype: element
    for element in (
        Element("float32", "float", "float", "float"),
        Element("float64", "double", "double", "float"),
        _half("bf16", "bfloat16"),
        _half("f16", "float16"),
        *(_integer(kind, bits) for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
        Element("bool", "uint8_t", "bool", "bool", load="{} != 0", store="(uint8_t){}"),
    )
}


def element_of(dtype: Any, line: SourceLine | None = None) -> Element:
    """The element of a dtype; a CodegenError for one that kernels lack."""
    name = str(dtype)
    if name not in ELEMENTS:
        raise CodegenError(
            "CODEGEN_DTYPE",
            f"a kernel cannot hold elements of dtype {name}",
            line=line,
            because="the generator knows " + ", ".join(ELEMENTS),
            fixes=("cast with x.astype(jnp.float32) before the operation",),
        )
    return ELEMENTS[name]


def constant(value: Any, element: Element) -> str:
    """A number as a C++ literal of `element`'s computed type, to the last bit."""
    scalar = np.asarray(value).astype(jnp.dtype(element.dtype))
    if element.kind == "bool":
        return "true" if scalar else "false"
    if not element.is_float:
        return f"({element.compute}){_integer_literal(int(scalar), element)}"
    number = float(scalar)
    suffix = "f" if element.compute == "float" else ""
    if math.isfinite(number):
        digits, power = number.hex().split("p")
        text = f"{digits.rstrip('0') if '.' in digits else digits}p{power}{suffix}".replace(
            ".p", ".0p"
        )
        return f"({text})" if text.startswith("-") else text
    if suffix:
        return f"jaxcc::float_of({np.float32(number).view(np.uint32):#x}u)"
    return f"jaxcc::double_of({np.float64(number).view(np.uint64):#x}ull)"


def _integer_literal(value: int, element: Element) -> str:
    if element.kind == "uint":
        return f"{value}ull"
    # C++ has no negative literals, and the lowest int64 is not the negative of one.
    return f"({value + 1}ll - 1)" if value < 0 else f"{value}ll"
