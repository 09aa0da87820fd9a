"""The C++ module: imported and registered with XLA when first needed."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

import jax

from jaxcc import _compat
from jaxcc._settings import timeout_s
from jaxcc.layout import BackendError
from jaxcc.runtime._compiled import compiled


@functools.cache
def native() -> ModuleType:
    """The C++ module.

    Raises:
      BackendError: BACKEND_NOT_BUILT if this installation has no C++ part.
    """
    try:
        return importlib.import_module("jaxcc.runtime._ffi")
    except ImportError as error:
        raise BackendError(
            "BACKEND_NOT_BUILT",
            "jaxcc was installed without its C++ part, which the host backend needs",
            because=str(error),
            fixes=(
                "install jaxcc again where a C++17 compiler is on PATH",
                "use backend='xla'",
            ),
        ) from None


@functools.cache
def register() -> None:
    """Makes the FFI targets known to XLA's CPU backend, and prepares the programs that call them.

    JAX hands over what is registered before the backend starts in an order that XLA refuses,
    handlers before their types; so the backend is started first.

    Raises:
      BackendError: BACKEND_NOT_BUILT, or BACKEND_SETTING for a limit of time that is none.
    """
    timeout_s()
    module = native()
    devices = jax.local_devices(backend="cpu")
    module.set_process(jax.process_index(), min(device.id for device in devices))
    for name, registration in module.types().items():
        jax.ffi.register_ffi_type(name, registration, platform="cpu")  # pyright: ignore
    for name, handlers in module.registrations().items():
        jax.ffi.register_ffi_target(name, handlers, platform="cpu")
    _compat.before_lowering(compiled)


def is_built() -> bool:
    """Whether the C++ part is installed and loads."""
    try:
        native()
    except BackendError:
        return False
    return True


def load_kernel(key: str, path: str) -> None:
    """Makes the generated kernel in the shared object `path` known as `key`; does nothing if it is.

    Raises:
      BackendError: BACKEND_KERNEL if the file is not a kernel of this version.
    """
    if problem := native().load_kernel(key, path):
        raise BackendError("BACKEND_KERNEL", f"the kernel {key} cannot be loaded", because=problem)


def has_kernel(key: str) -> bool:
    """Whether the kernel `key` is built in or has been loaded."""
    return native().has_kernel(key)
