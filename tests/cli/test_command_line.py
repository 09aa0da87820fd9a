"""The command line as a user meets it: help, mistakes, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import jaxcc
from jaxcc.cli import main


def run(*args: str, **changes: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    return subprocess.run(
        [sys.executable, "-m", "jaxcc", *args],
        env=environment | changes,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("command", [[], ["demo"], ["explain"], ["check"]])
def test_help_teaches_by_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([*command, "--help"])
    assert left.value.code == 0
    assert f"\n  jaxcc {' '.join(command)}" in capsys.readouterr().out.partition("example")[2]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"jaxcc {jaxcc.__version__}\n"


@pytest.mark.parametrize(
    ("args", "names"),
    [
        ([], "command"),
        (["dmeo"], "dmeo"),
        (["demo", "--ranks", "0"], "'0' is not a number of ranks, 2 to 16"),
        (["demo", "--ranks", "1000"], "'1000' is not a number of ranks, 2 to 16"),
        (["demo", "--ranks", "two"], "'two' is not a number of ranks"),
        (["demo", "--steps", "-1"], "'-1' is not a number of steps"),
        (["explain"], "CODE"),
    ],
)
def test_wrong_usage_is_told_and_exits_with_2(
    args: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(args)
    captured = capsys.readouterr()
    assert left.value.code == 2
    assert captured.out == ""
    assert names in captured.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["explain", "LAYOUT_INDIVISIBEL"], "did you mean LAYOUT_INDIVISIBLE?"),
        (["explain", "NONSENSE"], "there is no error code 'NONSENSE'"),
        (["check", "no_colon"], "'no_colon' is not MODULE:FUNCTION"),
        (["check", "no_such_module:f"], "no_such_module"),
        (["check", "json:no_such_function"], "json has no no_such_function"),
        (["check", "json:dumps"], "@jaxcc.typed"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    args: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(f"jaxcc {args[0]}: ") and names in line


def test_explain_shows_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "layout_indivisible", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["code"] == "LAYOUT_INDIVISIBLE"
    assert "divide" in shown["explanation"]


PROGRAM = """\
import jax
from jax.sharding import AbstractMesh, AxisType
import jaxcc
from jaxcc import Replicated, Sliced

mesh = AbstractMesh((2,), ("tp",), axis_types=(AxisType.Auto,))
layouts = dict(mesh=mesh, in_layouts=(Sliced(1), Sliced(0), Replicated), out_layouts=Replicated)

@jaxcc.typed(**layouts)
def right(x, w, b):
    return jax.lax.psum(x @ w, "tp") + b

@jaxcc.typed(**layouts)
def wrong(x, w, b):
    return jax.lax.psum(x @ w + b, "tp")
"""

TYPES = ("f32[4,8]", "float32[8, 6]", "f32[6]")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current folder."""
    name = f"program_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def test_check_accepts_a_right_function(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{program}:right", *TYPES]) == 0
    assert "Replicated" in capsys.readouterr().out


def test_check_finds_a_wrong_function(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{program}:wrong", *TYPES, "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["clean"] is False
    (finding,) = shown["findings"]
    assert finding["code"].startswith("LAYOUT_")
    assert finding["line"]["line"] == 1 + PROGRAM.splitlines().index(
        '    return jax.lax.psum(x @ w + b, "tp")'
    )


def test_check_refuses_what_is_no_type(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{program}:right", "f32 4 8"]) == 2
    assert "'f32 4 8' is not an array type such as f32[8,1024]" in capsys.readouterr().err


def test_python_dash_m_is_the_command_line() -> None:
    done = run("check", "no_such_module:f")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
