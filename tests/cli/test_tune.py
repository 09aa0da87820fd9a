"""`jaxcc tune` as a user meets it."""

import json
import sys
from pathlib import Path

import pytest

from jaxcc.cli import main
from jaxcc.schedule.tuner import parse_profile

PROGRAM = """\
from typing import Annotated
import jax
from jax.sharding import AbstractMesh
import jaxcc
from jaxcc import Local, Replicated, Sliced, on
from jaxtyping import Array, Float

def step(
    g: Annotated[Float[Array, "64"], on(dp=Local)],
    w: Annotated[Float[Array, "64"], on(dp=Replicated)],
) -> Annotated[Float[Array, "64"], Replicated]:
    return w - 0.1 * jax.lax.psum(g, "dp")

wide = jaxcc.typed(mesh=AbstractMesh((64,), ("dp",)))(step)

@jaxcc.typed(mesh=AbstractMesh((2,), ("tp",)), in_layouts=(Local, Replicated, Local))
def noisy(x, key, own):
    x = x + jax.random.normal(own, x.shape)
    return jax.random.normal(key, x.shape) + jax.lax.psum(x, "tp")

@jaxcc.typed(mesh=AbstractMesh((2,), ("tp",)), in_layouts=(Sliced(1), Sliced(0), Replicated))
def wrong(x, w, b):
    return jax.lax.psum(x @ w + b, "tp")
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current folder, with a cache of its own."""
    name = f"tuned_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("JAXCC_CACHE_DIR", str(tmp_path / "cache"))
    return name


def test_help_teaches_by_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["tune", "--help"])
    assert left.value.code == 0
    assert "\n  jaxcc tune" in capsys.readouterr().out.partition("example")[2]


def test_tunes_a_plain_function_and_remembers(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["tune", f"{program}:step", "--mesh", "dp=2", "--budget", "0.01"]
    assert main(options) == 0
    captured = capsys.readouterr()
    assert "as written" in captured.out and "fastest" in captured.out
    assert main([*options, "f32[64]", "w=f32[64]", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["cached"] is True and shown["trials"][0]["status"] == "fastest"
    assert main([*options, "--no-cache", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cached"] is False


def test_measures_the_machine(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--profile", "--json"]) == 0
    profile = parse_profile(json.loads(capsys.readouterr().out)["profile"])
    assert profile.source.startswith("measured: ") and profile.memory_gbps > 0
    assert list(Path("cache").glob("profile-*.json"))
    assert main(["tune", f"{program}:step", "--mesh", "dp=2", "--budget", "0.01"]) == 0


def test_a_plot_is_drawn(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["tune", f"{program}:step", "--mesh", "dp=2", "--budget", "0.01", "--plot"]
    assert main([*options, "out.svg"]) == 0
    assert Path("out.svg").read_text().count("as written")
    assert main([*options, "out.unknown"]) == 2
    assert "cannot draw out.unknown" in capsys.readouterr().err


def test_random_keys_are_drawn(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["tune", f"{program}:noisy", "f32[8]", "key<rbg>[]", "key<fry>[]", "--budget", "1"]
    assert main([*options, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {trial["status"] for trial in shown["trials"]} <= {"fastest", "timed", "not tried"}


def test_lists_of_names_add_up(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["tune", f"{program}:step", "--mesh", "dp=2", "--budget", "0.01"]
    assert main([*options, "--slice", "w", "--slice", "x,y"]) == 1
    assert "slice: 'x' is no input or result" in capsys.readouterr().err
    assert main([*options, "--dead", "g", "--dead", "w"]) == 1
    assert "dead: 'g' is an input" in capsys.readouterr().err


def test_ranks_for_another_machine(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["tune", f"{program}:step", "--mesh", "dp=2", "--budget", "0.01", "--no-cache"]
    estimates: list[float] = []
    for machine in ("dgx2", "h200"):
        assert main([*options, "--machine", machine, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        estimates.append(shown["trials"][0]["estimate_us"])
    assert estimates[0] != estimates[1]
    assert main([*options, "--machine", "abacus"]) == 1
    assert "dgx2, h100, h200, cpu" in capsys.readouterr().err


def test_a_finding_exits_with_1(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", f"{program}:wrong", "f32[4,8]", "f32[8,6]", "f32[6]"]) == 1
    assert "LAYOUT_COUNTED" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["--budget", "none"], "'none' is not a number of seconds above 0"),
        (["--budget", "-1"], "'-1' is not a number of seconds above 0"),
        (["--slice", "m,,v"], "'m,,v' is not a list of names"),
    ],
)
def test_wrong_usage(args: list[str], names: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["tune", "m:f", *args])
    assert left.value.code == 2 and names in capsys.readouterr().err


def test_mistakes_are_one_line(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune"]) == 2
    assert "MODULE:FUNCTION" in capsys.readouterr().err
    assert main(["tune", f"{program}:wide"]) == 2
    assert "wants 64 devices" in capsys.readouterr().err
    assert main(["tune", f"{program}:step", "--mesh", "dp=2", "f32[64]"]) == 2
    assert "missing a required argument: 'w'; 1 given" in capsys.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["tune", f"{program}:step", "--plot", "out.png"]) == 2
    assert "jaxcc[plot]" in capsys.readouterr().err
