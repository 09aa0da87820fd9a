"""Variables of the environment that hold nonsense are named, with what they take."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxcc
from jaxcc._settings import NAMES, timeout_s
from jaxcc.cli.doctor._probe import FAILS, OK, PROBES, Answer
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


def test_the_names_are_all_that_the_sources_read() -> None:
    files = Path(jaxcc.__file__).parent.rglob("*.py")
    read = (re.findall(r"""["'](JAXCC_[A-Z_]+)["']""", file.read_text()) for file in files)
    assert set().union(*read) == NAMES


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("JAXCC_TIMEOUT", "5", "unset JAXCC_TIMEOUT, or set JAXCC_TIMEOUT_S"),
        ("JAXCC_QQQ", "1", "unset JAXCC_QQQ"),
        ("JAXCC_TIMEOUT_S", "soon", "a number above 0"),
    ],
)
def test_the_doctor_names_what_is_not_read(
    name: str, text: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PROBES["settings"].look().state == OK
    monkeypatch.setenv(name, text)
    try:
        answer = PROBES["settings"].look()
    except BackendError as error:
        answer = Answer.of_error(error)
    assert answer.state == FAILS
    assert any(says in fix for fix in answer.fixes)
