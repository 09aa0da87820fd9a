"""The pytest plugin, in a pytest of its own that finds it as an installed package's."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def pytester(tmp_path: Path) -> Run:
    """Runs pytest on a test's text, in a folder of its own."""
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    metadata = tmp_path / "site" / "plugin-1.dist-info"
    metadata.mkdir(parents=True)
    # An installed jaxcc has this entry point already, and pytest takes one of each name.
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        f"[pytest11]\njaxcc = {entry['pytest11']['jaxcc']}\n"
    )
    paths = [str(tmp_path / "site"), str(tmp_path / "tests"), os.environ.get("PYTHONPATH", "")]
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env |= {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    env.pop("XLA_FLAGS")

    def run(test: str, *options: str, **files: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / "tests"
        folder.mkdir(exist_ok=True)
        (folder / "test_it.py").write_text(dedent(test))
        for name, text in files.items():
            (folder / name.replace("_dot_", ".")).write_text(dedent(text))
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error"]
        return subprocess.run(
            [*command, "-q", "--strict-markers", *options],
            cwd=folder,
            env=env,
            text=True,
            capture_output=True,
            timeout=120,
        )

    return run


SEES_DEVICES = """
    import jax

    def test_it():
        assert [d.platform for d in jax.devices()] == ["cpu"] * 3
"""


def test_loading_it_does_not_import_jax(pytester: Run) -> None:
    done = pytester(
        """
        import sys

        def test_it(request):
            assert request.config.pluginmanager.has_plugin("jaxcc")
            assert "jaxcc.testing._plugin" in sys.modules
            assert not {"jax", "numpy"}.intersection(sys.modules)
        """,
        *("-p", "no:jaxtyping"),
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_devices_are_as_many_as_the_option_says(pytester: Run, workers: tuple[str, ...]) -> None:
    done = pytester(SEES_DEVICES, "--jaxcc-devices", "3", *workers)
    assert done.returncode == 0, done.stdout


def test_devices_are_there_for_a_conftest_that_uses_jax(pytester: Run) -> None:
    conftest = "import jax\n\nassert len(jax.devices()) == 3\n"
    ini = "[pytest]\njaxcc_devices = 3\n"
    done = pytester(SEES_DEVICES, conftest_dot_py=conftest, pytest_dot_ini=ini)
    assert done.returncode == 0, done.stdout
    done = pytester(SEES_DEVICES, "--jaxcc-devices=2", conftest_dot_py="", pytest_dot_ini=ini)
    assert "1 failed" in done.stdout, "the option goes before the ini file"


def test_jax_that_is_only_imported_is_not_too_late(pytester: Run) -> None:
    done = pytester(SEES_DEVICES, "--jaxcc-devices=3", "-p", "early", early_dot_py="import jax\n")
    assert done.returncode == 0, done.stdout + done.stderr


def test_jax_that_has_started_is_a_usage_error(pytester: Run) -> None:
    early = "import jax\n\njax.devices()\n"
    done = pytester(SEES_DEVICES, "--jaxcc-devices=3", "-p", "early", early_dot_py=early)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--jaxcc-devices 3 comes too late" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_a_number_of_devices_that_is_none(pytester: Run) -> None:
    ini = "[pytest]\njaxcc_devices = two\n"
    for count, done in (
        ("0", pytester(SEES_DEVICES, "--jaxcc-devices=0")),
        ("two", pytester(SEES_DEVICES, pytest_dot_ini=ini)),
    ):
        assert done.returncode == pytest.ExitCode.USAGE_ERROR
        assert f"not a number of devices: '{count}'" in done.stderr


def test_meshes(pytester: Run) -> None:
    done = pytester(
        """
        import jax
        import pytest
        from jax.sharding import AbstractMesh, AxisType

        @pytest.mark.cc_mesh(dp=2, tp=2)
        def test_sizes(cc_mesh):
            assert dict(cc_mesh.shape) == {"dp": 2, "tp": 2}
            assert set(cc_mesh.axis_types) == {AxisType.Auto}
            assert cc_mesh.devices.shape == (2, 2)

        @pytest.mark.cc_mesh(tp=3)
        class TestClass:
            def test_some_of_the_devices(self, cc_mesh):
                assert cc_mesh.devices.tolist() == jax.devices()[:3]

            @pytest.mark.cc_mesh(tp=2)
            def test_nearest(self, cc_mesh):
                assert dict(cc_mesh.shape) == {"tp": 2}

        def test_all_devices(cc_mesh):
            assert dict(cc_mesh.shape) == {"tp": 4}

        @pytest.mark.cc_mesh(tp=64, abstract=True)
        def test_no_devices(cc_mesh):
            assert isinstance(cc_mesh, AbstractMesh) and cc_mesh.size == 64
        """,
        "--jaxcc-devices=4",
    )
    assert done.returncode == 0, done.stdout


def test_too_few_devices_are_an_error_and_not_a_skip(pytester: Run) -> None:
    test = """
        import pytest

        @pytest.mark.cc_mesh(tp=4)
        def test_it(cc_mesh):
            pass
    """
    done = pytester(test, "--jaxcc-devices=2")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "run pytest with --jaxcc-devices 4" in done.stdout and "1 error" in done.stdout


def test_markers_without_sizes(pytester: Run) -> None:
    markers = ["4", "", "tp='4'", "tp=0", "abstract=True", "tp=True"]
    test = "import pytest\n"
    for index, marker in enumerate(markers):
        test += f"@pytest.mark.cc_mesh({marker})\ndef test_{index}(cc_mesh): pass\n"
    done = pytester(test)
    assert f"{len(markers)} errors" in done.stdout
    assert done.stdout.count("takes a size for each axis") >= len(markers)


def test_it_can_be_left_out(pytester: Run) -> None:
    done = pytester("def test_it(cc_mesh): pass", "-p", "no:jaxcc")
    assert "fixture 'cc_mesh' not found" in done.stdout
