"""Compiling and the cache on disk: keys, damage, rights, missing or failing compilers."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxcc.codegen import (
    Kernel,
    OutRole,
    Role,
    _cache,
    _compile,
    compile_kernel,
    find_compiler,
    generate,
)
from jaxcc.layout import CodegenError


def kernel(factor: float = 2.0) -> Kernel:
    closed = jax.make_jaxpr(lambda x: x * factor)(jax.ShapeDtypeStruct((4,), np.float32))
    jaxpr = getattr(closed, "jaxpr", closed)
    return generate(jaxpr, (), [Role.REDUCE], [OutRole.GATHER], shape=None, ranks=2)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("JAXCC_CACHE_DIR", str(folder))
    _cache._temporary.cache_clear()
    return folder


def test_a_new_folder_is_private_and_holds_one_file(folder: Path) -> None:
    key, path = compile_kernel(kernel())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(folder.iterdir()) == [path] and key in path.name


def test_the_second_time_nothing_is_compiled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_kernel(kernel())
    monkeypatch.setattr(_compile, "_compile", None)
    assert compile_kernel(kernel()) == first


def test_the_key_follows_text_flags_and_compiler(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {compile_kernel(kernel())[0], compile_kernel(kernel(3.0))[0]}
    monkeypatch.setenv("JAXCC_CXX", f"{find_compiler()[0]} -O1")
    keys.add(compile_kernel(kernel())[0])
    monkeypatch.delenv("JAXCC_CXX")
    monkeypatch.setattr(_compile, "_FLAGS", (*_compile._FLAGS, "-g0"))
    keys.add(compile_kernel(kernel())[0])
    monkeypatch.setattr(_compile, "_cpu", lambda: "another processor")
    keys.add(compile_kernel(kernel())[0])
    monkeypatch.setattr(_compile, "_headers", lambda: "other headers")
    keys.add(compile_kernel(kernel())[0])
    assert len(keys) == 6


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", b"no library" * 99])
def test_damaged_files_are_built_again(damage: bytes, folder: Path) -> None:
    _, path = compile_kernel(kernel())
    whole = path.read_bytes()
    path.write_bytes(damage)
    assert compile_kernel(kernel())[1] == path
    assert len(path.read_bytes()) >= len(whole) // 2
    ctypes.CDLL(str(path))


def test_truncated_files_are_built_again(folder: Path) -> None:
    _, path = compile_kernel(kernel())
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    compile_kernel(kernel())
    assert len(path.read_bytes()) == len(whole)


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o702])
def test_a_folder_that_others_can_write_is_refused(mode: int, folder: Path) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(CodegenError, match="can be written by others") as error:
        compile_kernel(kernel())
    assert error.value.code == "CODEGEN_CACHE" and not list(folder.iterdir())


def test_a_folder_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(CodegenError, match="belongs to another user") as error:
        compile_kernel(kernel())
    assert error.value.code == "CODEGEN_CACHE"


def _unwritable(tmp_path: Path) -> Path:
    """A place where no folder can be made, not even by root."""
    file = tmp_path / "file"
    file.write_text("")
    return file / "cache"


def test_a_folder_that_cannot_be_made_gives_way_with_one_warning(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXCC_CACHE_DIR", str(_unwritable(tmp_path)))
    with pytest.warns(UserWarning, match="JAXCC_CACHE_DIR") as caught:
        _, path = compile_kernel(kernel())
        assert compile_kernel(kernel(3.0))[1].parent == path.parent
    assert len(caught) == 1
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    ctypes.CDLL(str(path))


def test_a_read_only_folder_gives_way_with_one_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(mode=0o500)
    real = os.access
    # Root may write anywhere, so the answer that another user gets is given here.
    monkeypatch.setattr(os, "access", lambda p, mode: Path(p) != folder and real(p, mode))
    with pytest.warns(UserWarning, match="read-only"):
        _, path = compile_kernel(kernel())
    assert path.parent != folder and path.exists()


def test_the_user_s_cache_folder_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAXCC_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert _cache.cache_folder() == tmp_path / "xdg" / "jaxcc"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _cache.cache_folder() == tmp_path / ".cache" / "jaxcc"


@pytest.mark.parametrize("command", ["/nowhere/g++", "nocompiler -O2"])
def test_a_compiler_that_is_not_there(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXCC_CXX", command)
    with pytest.raises(CodegenError, match="no C\\+\\+ compiler") as error:
        compile_kernel(kernel())
    assert error.value.code == "CODEGEN_NO_COMPILER" and not folder.exists()


def test_no_compiler_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAXCC_CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CodegenError, match="g\\+\\+, c\\+\\+, clang\\+\\+") as error:
        find_compiler()
    assert error.value.code == "CODEGEN_NO_COMPILER"


def test_the_compiler_s_message_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXCC_CXX", f"{find_compiler()[0]} -Dstruct=oops")
    with pytest.raises(CodegenError, match="error:.*oops|oops.*error:|expected") as error:
        compile_kernel(kernel())
    assert error.value.code == "CODEGEN_COMPILE" and not list(folder.iterdir())


def test_a_compiler_that_hangs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow"
    slow.write_text('#!/bin/sh\n[ "$1" = --version ] && exit\nexec sleep 60\n')
    slow.chmod(0o755)
    monkeypatch.setenv("JAXCC_CXX", str(slow))
    monkeypatch.setattr(_compile, "_LIMIT_S", 0.5)
    with pytest.raises(CodegenError, match="timed out") as error:
        compile_kernel(kernel())
    assert error.value.code == "CODEGEN_COMPILE" and not list(folder.iterdir())


@pytest.mark.parametrize("interrupted", [False, True])
def test_what_a_hanging_compiler_started_ends_too(
    interrupted: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, started = _script(tmp_path, f"sleep 60 &\necho $! > {tmp_path}/pid\nwait")
    monkeypatch.setenv("JAXCC_CXX", compiler)
    monkeypatch.setattr(_compile, "_LIMIT_S", 30 if interrupted else 1)
    if interrupted:
        ctrl_c = (threading.main_thread().ident, signal.SIGINT)
        threading.Timer(1, signal.pthread_kill, ctrl_c).start()
    with pytest.raises(KeyboardInterrupt if interrupted else CodegenError):
        compile_kernel(kernel())
    child = Path(f"/proc/{started.read_text().strip()}/stat")
    deadline = time.monotonic() + 10
    # A process that has ended may still be listed, as a zombie.
    while child.exists() and child.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _script(tmp_path: Path, text: str) -> tuple[str, Path]:
    """An executable, and the file where it may note its child."""
    script = tmp_path / "compiler"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return str(script), tmp_path / "pid"


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ('g++ "', "CODEGEN_NO_COMPILER", "No closing quotation"),
        ("  ", "CODEGEN_NO_COMPILER", "not found"),
        ("/bin/true", "CODEGEN_COMPILE", "cannot be loaded: .*file too short"),
        ("/bin/false", "CODEGEN_COMPILE", "ended with status 1"),
    ],
)
def test_a_command_that_is_no_compiler(
    command: str, code: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXCC_CXX", command)
    with pytest.raises(CodegenError, match=message) as error:
        compile_kernel(kernel())
    assert error.value.code == code and not (folder.exists() and list(folder.iterdir()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'while [ "$1" != -o ]; do shift; done; echo "int x;" | g++ -xc++ -shared -o "$2" -',
            "no kernel",
        ),
        ("printf '\\377\\376 broken' >&2; exit 3", "\ufffd\ufffd broken"),
        ("printf '\\377'", "cannot be loaded"),
        ("kill -9 $$", "ended with status -9"),
    ],
)
def test_compilers_that_misbehave(
    text: str, message: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXCC_CXX", _script(tmp_path, text)[0])
    with pytest.raises(CodegenError, match=message) as error:
        compile_kernel(kernel())
    assert error.value.code == "CODEGEN_COMPILE" and not list(folder.iterdir())


def test_a_compiler_in_a_wrong_format(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_bytes(b"\x7fELF of another machine")
    compiler.chmod(0o755)
    monkeypatch.setenv("JAXCC_CXX", str(compiler))
    with pytest.raises(CodegenError, match="Exec format error") as error:
        compile_kernel(kernel())
    assert error.value.code == "CODEGEN_COMPILE"


def test_a_name_that_is_not_utf_8(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.symlink(find_compiler()[0], compiler)
    monkeypatch.setenv("JAXCC_CXX", compiler)
    assert compile_kernel(kernel())[1].exists()


def test_a_folder_in_a_library_s_place_is_refused(folder: Path) -> None:
    _, path = compile_kernel(kernel())
    path.unlink()
    path.mkdir()
    with pytest.raises(CodegenError, match="directory") as error:
        compile_kernel(kernel())
    assert error.value.code == "CODEGEN_CACHE" and list(folder.iterdir()) == [path]


def test_a_whole_library_that_does_not_load_is_built_again(folder: Path) -> None:
    _, path = compile_kernel(kernel())
    foreign = folder / "foreign"
    foreign.write_bytes(b"\x7fELF for another machine")
    _cache.store(path, foreign)
    assert _cache.find(path)
    assert compile_kernel(kernel())[1] == path
    ctypes.CDLL(str(path))


def test_processes_that_compile_at_once_do_not_disturb_each_other(folder: Path) -> None:
    script = textwrap.dedent(
        """
        import ctypes, importlib.util, sys
        spec = importlib.util.spec_from_file_location("helper", sys.argv[1])
        helper = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(helper)
        ctypes.CDLL(str(helper.compile_kernel(helper.kernel(7.0))[1]))
        """
    )
    command = [sys.executable, "-c", script, __file__]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    for process in running:
        _, message = process.communicate(timeout=100)
        assert process.returncode == 0, message.decode()
    assert len(list(folder.iterdir())) == 1


def test_the_kernels_need_no_other_header(tmp_path: Path) -> None:
    """One kernel's text and protocol/ are all that a compiler needs."""
    protocol = _compile.include_folders()[0] / "protocol"
    shutil.copytree(protocol, tmp_path / "protocol")
    command = [find_compiler()[0], *_compile._FLAGS, "-nostdinc++", "-H", "-fsyntax-only", "-I"]
    done = subprocess.run(
        [*command, str(tmp_path), "-"],
        input=kernel().text,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "vector" not in done.stderr and "xla" not in done.stderr


def test_finding_a_compiled_kernel_is_fast(folder: Path) -> None:
    compile_kernel(kernel())
    took: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        compile_kernel(kernel())
        took.append(time.perf_counter() - start)
    assert min(took) < 5e-3


def test_nothing_warns_in_a_usual_folder(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_kernel(kernel())
