"""What the machine has, as Linux tells it."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import resource
import tempfile
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from jaxcc._malloc import TUNABLES, allocator, is_tuned
from jaxcc._settings import NAMES, timeout_s
from jaxcc.cli.doctor._probe import FAILS, OFF, OK, Answer, probe

ROOM = "machine"
_MIB = 1 << 20
_GIB = 1 << 30


@probe(ROOM, "system")
def system() -> Answer:
    return Answer(
        OK,
        f"{platform.system()} {platform.release()}, {platform.machine()}",
        facts={"kernel": platform.release(), "machine": platform.machine()},
    )


@probe(ROOM, "cores")
def cores() -> Answer:
    """Those that this process may use, and how much of their time."""
    usable, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = _cpu_quota()
    what = f"{usable} of {there} usable"
    if quota is not None and quota < usable:
        what += f", for the time of {quota:g}"
    facts = {"usable": usable, "there": there, "quota": quota}
    return Answer(OK, what, facts=facts)


@probe(ROOM, "memory")
def memory() -> Answer:
    """RAM, and the limit of the control group if it is lower."""
    there, free = _meminfo("MemTotal"), _meminfo("MemAvailable")
    limit = _memory_limit()
    what = f"{there / _GIB:.1f} GiB, {free / _GIB:.1f} free"
    if limit is not None and limit < there:
        what += f", of which this process may use {limit / _GIB:.1f}"
    return Answer(OK, what, facts={"bytes": there, "free": free, "limit": limit})


@probe(ROOM, "/dev/shm")
def shared_memory() -> Answer:
    """Whether a file can be made there and given memory, and how much there is."""
    folder = "/dev/shm"
    fixes = ("in a container: start it with a larger --shm-size", f"mount -t tmpfs tmpfs {folder}")
    try:
        info = os.statvfs(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, _MIB)
    except OSError as error:
        return Answer(OFF, f"{folder} cannot be used", error.strerror or str(error), fixes)
    size, free = info.f_blocks * info.f_frsize, info.f_bavail * info.f_frsize
    what = f"{size / _GIB:.2g} GiB, {free / _GIB:.2g} free, can be written"
    return Answer(OK, what, facts={"bytes": size, "free": free})


@probe(ROOM, "huge pages")
def huge_pages() -> Answer:
    """Whether memory that asks for huge pages gets them: how often it faults as it is touched."""
    setting = _words("/sys/kernel/mm/transparent_hugepage/enabled")
    size = 8 * _MIB
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    facts = {"setting": setting}
    try:
        block.madvise(mmap.MADV_HUGEPAGE)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for offset in range(0, size, mmap.PAGESIZE):
            block[offset] = 1
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    except OSError as error:
        return Answer(OFF, "memory cannot ask for huge pages", str(error), facts=facts)
    finally:
        block.close()
    pages = size // mmap.PAGESIZE
    what = f"8 MiB that ask for them took {faults} page faults, of {pages} without ({setting})"
    facts |= {"faults": faults, "pages": pages}
    if faults < pages // 2:
        return Answer(OK, what, facts=facts)
    fix = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    return Answer(OFF, what, "large results then cost a fault for every page", (fix,), facts=facts)


@probe(ROOM, "futex")
def futex() -> Answer:
    """Whether ranks can sleep while they wait: the call is there, and refuses a changed word."""
    number = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
    if number is None:
        return Answer(OFF, f"not known for {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    word = ctypes.c_uint32(1)
    libc.syscall(ctypes.c_long(number), ctypes.byref(word), 0, 0, None, None, 0)
    error = ctypes.get_errno()
    again = 11
    if error == again:
        return Answer(OK, "there: ranks that wait sleep")
    return Answer(OFF, "refused: ranks that wait use a core", os.strerror(error))


@probe(ROOM, "pidfd")
def pidfd() -> Answer:
    """Whether the death of a process can be noticed through a file descriptor."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        why = f"{error.strerror}; Linux has it from 5.3 on, some sandboxes not"
        return Answer(OFF, "the death of a process is noticed by other means", why)
    return Answer(OK, "there: the death of a process is noticed at once")


@probe(ROOM, "malloc")
def malloc() -> Answer:
    """What allocates, and whether it keeps the memory of large results."""
    found = allocator()
    facts = {"allocator": found, "tunables": os.environ.get(TUNABLES, ""), "tuned": is_tuned()}
    if not found.startswith("glibc"):
        return Answer(OK, found, facts=facts)
    if is_tuned():
        return Answer(OK, f"{found}, keeps the memory of large results", facts=facts)
    return Answer(
        OFF,
        f"{found}, not tuned",
        "results above 32 MiB that are not donated are mapped anew in every call",
        ("call jaxcc.tune_malloc() before JAX starts", "start it by jaxcc run"),
        facts=facts,
    )


@probe(ROOM, "settings")
def settings() -> Answer:
    """What the environment says to JAX, XLA and jaxcc."""
    found = _settings(os.environ)
    what = ", ".join(f"{name}={value}" for name, value in found.items())
    unread = [name for name in found if name.startswith("JAXCC_") and name not in NAMES]
    if unread:
        because = f"jaxcc reads no {', no '.join(unread)}"
        return Answer(FAILS, what, because, tuple(map(_meant, unread)), facts=found)
    timeout_s()
    return Answer(OK, what or "none in the environment", facts=found)


def _meant(unread: str) -> str:
    near = get_close_matches(unread, NAMES, 1, cutoff=0.8)
    return f"unset {unread}" + (f", or set {near[0]}" if near else "")


def _settings(environment: Mapping[str, str]) -> dict[str, str]:
    wanted = ("JAXCC_", "JAX_", "XLA_FLAGS")
    return {name: environment[name] for name in sorted(environment) if name.startswith(wanted)}


def _meminfo(field: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) << 10
    return 0


def _cpu_quota() -> float | None:
    """Cores' worth of time that the control group gives, of either version."""
    quota, _, period = _words("/sys/fs/cgroup/cpu.max").partition(" ")
    if not quota:
        folder = "/sys/fs/cgroup/cpu"
        quota = _words(f"{folder}/cpu.cfs_quota_us")
        period = _words(f"{folder}/cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None


def _memory_limit() -> int | None:
    group = "/sys/fs/cgroup"
    text = _words(f"{group}/memory.max") or _words(f"{group}/memory/memory.limit_in_bytes")
    return int(text) if text.isdecimal() else None


def _words(path: str) -> str:
    """A file's text; empty if there is none."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
