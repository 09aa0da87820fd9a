"""Variables of the environment that hold nonsense are named, with what they take."""

import os
import subprocess
import sys

import pytest

from jaxcc._settings import timeout_s
from jaxcc.layout import BackendError

NO_SECONDS = ["abc", "0", "-1", "nan", "inf", "1e30", "5 s"]
SUM = """
import jax, jax.numpy as jnp, jaxcc
from jax.sharding import PartitionSpec as P
with jax.set_mesh(jax.make_mesh((2,), ("x",))):
    total = jax.shard_map(lambda: jaxcc.comm.all_reduce(1.0, "x"), in_specs=(), out_specs=P())
    print(total())
"""


@pytest.mark.parametrize("text", NO_SECONDS)
def test_a_limit_that_is_no_time(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXCC_TIMEOUT_S", text)
    with pytest.raises(BackendError) as caught:
        timeout_s()
    assert caught.value.code == "BACKEND_SETTING"
    assert f"JAXCC_TIMEOUT_S is {text!r}" in str(caught.value) and "fix: set it" in str(
        caught.value
    )


@pytest.mark.parametrize(("text", "seconds"), [("", 300), ("2", 2), (" 0.5 ", 0.5), ("1e8", 1e8)])
def test_a_limit_of_time(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXCC_TIMEOUT_S", text)
    assert timeout_s() == seconds


@pytest.mark.parametrize("text", ["soon", "3"])
def test_collectives_of_one_process_refuse_it_too(text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SUM],
        env={
            **os.environ,
            "JAXCC_TIMEOUT_S": text,
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    if text == "soon":
        assert done.returncode == 1
        assert "[BACKEND_SETTING] JAXCC_TIMEOUT_S is 'soon', not seconds" in done.stderr
    else:
        assert done.stdout == "2.0\n", done.stderr
