"""What this machine is, what it can read per second, and who else keeps it busy."""

import contextlib
import ctypes
import mmap
import os
import platform
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def describe() -> dict[str, object]:
    """Processor, cores, memory, system and the commit that is measured."""
    return {
        "cpu": _cpu(),
        "features": _features(),
        "cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def commit() -> dict[str, object]:
    """The commit of the checkout and whether files differ from it."""
    root = Path(__file__).parents[1]

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *words], cwd=root, capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": git("rev-parse", "HEAD"), "changed": bool(changed)}


def read_bandwidth(
    *, threads: int = 2, megabytes: int = 512, repeats: int = 3
) -> list[float]:
    """GB/s of reading memory in streams, one per thread, once per repeat.

    Each thread looks with `memchr` for a byte that its buffer lacks: a read of every
    line at the speed of the memory, outside Python's lock. Buffers lie in huge pages
    where the system has them, as packed weights do: the faster reading is the floor.
    """
    memchr = ctypes.CDLL(None).memchr
    memchr.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    memchr.restype = ctypes.c_void_p
    size = megabytes * 10**6 // threads
    buffers = [mmap.mmap(-1, size) for _ in range(threads)]
    places = [ctypes.addressof(ctypes.c_char.from_buffer(own)) for own in buffers]
    for buffer, place in zip(buffers, places, strict=True):
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):
                buffer.madvise(mmap.MADV_HUGEPAGE)
        ctypes.memset(place, 1, size)

    def read(place: int) -> None:
        memchr(place, 2, size)

    rates = []
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(read, places))
        for _ in range(repeats):
            started = time.perf_counter()
            list(pool.map(read, places))
            seconds = time.perf_counter() - started
            rates.append(size * threads / seconds / 1e9)
    return rates


class Load:
    """How much of the processor was used, in core-seconds, since it was made."""

    def __init__(self) -> None:
        self._busy = _busy_seconds()

    def core_seconds(self) -> float | None:
        """Core-seconds used by everyone; `None` where the system does not tell."""
        now = _busy_seconds()
        return None if now is None or self._busy is None else now - self._busy


def settle(*, limit: float = 5.0, busy: float = 0.1) -> float | None:
    """Waits until the cores idle, at most `limit` seconds; returns their last load.

    Engines that have just stopped may still spin for a moment.
    """
    deadline = time.monotonic() + limit
    while limit:
        load = Load()
        time.sleep(0.2)
        used = load.core_seconds()
        if used is None:
            return None
        share = used / 0.2 / (os.cpu_count() or 1)
        if share < busy or time.monotonic() > deadline:
            return share
    return None


def _busy_seconds() -> float | None:
    try:
        line = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return None
    user, nice, system, _idle, _wait, irq, softirq, *rest = map(int, line.split()[1:])
    steal = rest[0] if rest else 0
    ticks = user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def _cpu() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _features() -> list[str]:
    flags = (_cpuinfo("flags") or "").split()
    wanted = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
    return [flag for flag in wanted if flag in flags]


def _cpuinfo(key: str) -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def _memory_gib() -> float | None:
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
    return round(pages * size / 2**30, 1)


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    def seconds(self) -> float:
        """To the hundredth."""
        return round(time.perf_counter() - self._started, 2)
