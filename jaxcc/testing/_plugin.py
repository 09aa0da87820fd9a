"""The pytest plugin: meshes for tests, and CPU devices to make them of.

pytest imports this before any test's conftest.py, so nothing here imports JAX until a test asks for
a mesh: what JAX reads when it starts can still be set.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from typing import Any

import pytest

_FLAG = "--xla_force_host_platform_device_count"
_MARKER = (
    "cc_mesh(axis=n, ..., abstract=False): the mesh that the fixture cc_mesh gives, for example "
    "cc_mesh(dp=2, tp=4); abstract=True needs no devices"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--jaxcc-devices` and the ini option `jaxcc_devices`."""
    what = "number of CPU devices that JAX shall have, for tests of parallel programs"
    group = parser.getgroup("jaxcc")
    group.addoption("--jaxcc-devices", type=_count, metavar="N", help=what)
    parser.addini("jaxcc_devices", what)


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"not a number of devices: {text!r}")
    return int(text)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Asks for the devices before a conftest.py can import JAX; workers of xdist do so too."""
    count = early_config.known_args_namespace.jaxcc_devices
    ini = early_config.getini("jaxcc_devices")
    if count is None and ini:
        try:
            count = _count(ini)
        except argparse.ArgumentTypeError as error:
            raise pytest.UsageError(f"jaxcc_devices: {error}") from None
    if count is not None:
        _ask_for(count)


def _ask_for(count: int) -> None:
    others = re.sub(rf"{_FLAG}=\S*", "", os.environ.get("XLA_FLAGS", ""))
    os.environ["XLA_FLAGS"] = f"{others} {_FLAG}={count}".strip()
    os.environ["JAX_PLATFORMS"] = "cpu"
    if "jax" not in sys.modules:
        return
    from jaxcc import _compat

    if not _compat.start_on_cpu(count):
        raise pytest.UsageError(
            f"JAX has started already, so --jaxcc-devices {count} comes too late; another plugin "
            "or a module given with -p uses JAX when it is imported"
        )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def cc_mesh(request: pytest.FixtureRequest) -> Any:
    """The `jax.sharding.Mesh` of the test's marker `cc_mesh(tp=4)`, with Auto axes.

    Without the marker all devices stand along one axis, "tp". With `abstract=True` it is an
    AbstractMesh, which can be checked on but not run on. Too few devices are an error, not a skip.
    """
    import jax
    from jax.sharding import AbstractMesh, AxisType

    marker = request.node.get_closest_marker("cc_mesh")
    sizes = dict(marker.kwargs) if marker else {}
    abstract = sizes.pop("abstract", False)
    if marker and (marker.args or not sizes or not all(map(_is_size, sizes.values()))):
        pytest.fail("cc_mesh takes a size for each axis: cc_mesh(dp=2, tp=4)", pytrace=False)
    if not marker:
        sizes = {"tp": len(jax.devices())}
    axes, shape = tuple(sizes), tuple(sizes.values())
    types = (AxisType.Auto,) * len(axes)
    if abstract:
        return AbstractMesh(shape, axes, axis_types=types)
    ranks, devices = math.prod(shape), jax.devices()
    if len(devices) < ranks:
        pytest.fail(
            f"this test's mesh has {ranks} ranks, and JAX has {len(devices)} "
            f"{devices[0].platform} device(s): run pytest with --jaxcc-devices {ranks}",
            pytrace=False,
        )
    return jax.make_mesh(shape, axes, axis_types=types, devices=devices[:ranks])


def _is_size(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n > 0
