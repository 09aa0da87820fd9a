"""Compiled kernels on disk: a file for each key, private, written in one step, checked when read.

A file is a shared library followed by its digest: loaders ignore what comes after the last section.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import shutil
import stat
import tempfile
import warnings
from pathlib import Path

from jaxcc.layout import CodegenError

_DIGEST_BYTES = hashlib.sha256().digest_size


def cache_folder() -> Path:
    """The folder of compiled kernels: JAXCC_CACHE_DIR, else `jaxcc` in the user's cache folder.

    A folder that cannot be written gives way to a temporary one, with one warning.

    Raises:
      CodegenError: CODEGEN_CACHE if others could put code into the folder.
    """
    chosen = os.environ.get("JAXCC_CACHE_DIR")
    if chosen:
        return _usable(Path(chosen))
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return _usable((Path(base) if base else Path.home() / ".cache") / "jaxcc")
    except RuntimeError as error:  # no home
        if isinstance(error, CodegenError):
            raise
        return _temporary(str(error))


def _usable(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.stat()
    except OSError as error:
        return _temporary(str(error))
    if info.st_uid != os.geteuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CodegenError(
            "CODEGEN_CACHE",
            f"the cache folder {folder} belongs to another user or can be written by others",
            because="jaxcc loads code from it",
            fixes=(f"chmod go-w {folder}", "set JAXCC_CACHE_DIR to a folder of your own"),
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        return _temporary(f"{folder} is read-only")
    return folder


@functools.cache
def _temporary(why: str) -> Path:
    warnings.warn(
        f"jaxcc compiles its kernels anew in each process: {why}; "
        "set JAXCC_CACHE_DIR to a folder that can be written",
        stacklevel=2,
    )
    folder = Path(tempfile.mkdtemp(prefix="jaxcc-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def find(path: Path) -> bool:
    """Whether `path` holds what `store` wrote there, whole."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return hashlib.sha256(body).digest() == digest


def new_cache_file(folder: Path) -> Path:
    """An empty file in `folder`, to be moved to its place when it is whole.

    Raises:
      CodegenError: CODEGEN_CACHE if none can be made.
    """
    try:
        handle, name = tempfile.mkstemp(dir=folder, suffix=".tmp")
    except OSError as error:
        raise _unwritable(folder, error) from None
    os.close(handle)
    return Path(name)


def store(path: Path, built: Path) -> None:
    """Moves the library `built`, in the same folder, to `path`, with its digest.

    Raises:
      CodegenError: CODEGEN_CACHE if that fails; `built` is gone then.
    """
    try:
        body = built.read_bytes()
        with built.open("ab") as file:
            file.write(hashlib.sha256(body).digest())
        built.replace(path)
    except OSError as error:
        built.unlink(missing_ok=True)
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> CodegenError:
    return CodegenError(
        "CODEGEN_CACHE",
        f"nothing can be stored in the cache: {path}",
        because=error.strerror or str(error),
        fixes=(f"remove {path}", "set JAXCC_CACHE_DIR to a folder that can be written"),
    )
