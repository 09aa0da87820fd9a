"""The C++ part: XLA FFI targets and the kernels that they run."""

def registrations() -> dict[str, dict[str, object]]:
    """The handler of each stage of each target, as `jax.ffi.register_ffi_target` takes them."""

def types() -> dict[str, dict[str, object]]:
    """The identity of each type, as `jax.ffi.register_ffi_type` takes it."""

def has_kernel(key: str) -> bool:
    """Whether `jaxcc_fused` can run the kernel `key`."""

def has_reduction(key: str) -> bool:
    """Whether `jaxcc_move` can reduce with `key`, which is <op>.<dtype>."""

def load_kernel(key: str, path: str) -> str:
    """Loads a kernel's shared object once; returns what is wrong with it, or an empty string."""

def set_process(process: int, first_device: int) -> None:
    """Says which process this is, and what XLA calls its first device; before any call."""

def create_channel(
    devices: list[int], pids: list[int], outbox: int, process: int
) -> tuple[str, str]:
    """The address of a group's channel, made unless it is there; and what went wrong, or "".

    `pids` are the processes of the ranks, 0 where they are not known.
    """

def attach_channel(
    devices: list[int], pids: list[int], outbox: int, process: int, address: str
) -> str:
    """Joins a channel that another process has made; returns what went wrong, or ""."""

def has_channel(devices: list[int], outbox: int) -> bool:
    """Whether this process has the group's channel."""
