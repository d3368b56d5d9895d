"""A room for the processes of a task: kernel namespaces that contain nothing else.

A process inside sees no process, file, network or message queue but its own: the programs and
libraries of the system and of this Python, read-only; the directories that the task may use; an
empty /tmp of limited size. It has no capabilities, not even over its own room.

The supervisor of a task creates the user and pid namespaces (`unshare`) and forks their
first process. That process builds the rest (`build`), starts the task's own process, and waits.
When it ends or is killed, the kernel kills everything left inside. See decision 0022.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import site
import socket
import struct
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress

import msgspec

INPUTS, OUTPUTS = "/inputs", "/outputs"
"""Where code finds its input files, and where it writes files."""
HOME = "/tmp"  # noqa: S108 - a directory of the room, nobody else's
PRIVATE = ("/tmp", "/dev/shm")  # noqa: S108 - as above
"""Directories in memory, private to the room."""
TMP_BYTES = 512 * 1024 * 1024
"""The size of /tmp, and of /dev/shm, unless the operator allows less for a file."""
TMP_FILES = 100_000
PROCESSES = 1024
"""Processes and threads in a room, unless the operator sets a limit."""
HOST_NAME = b"task"

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_ETC = (
    *("alternatives", "ca-certificates", "ca-certificates.conf", "crypto-policies", "fonts"),
    *("gai.conf", "group", "host.conf", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d"),
    *("locale.alias", "locale.conf", "localtime", "magic", "mime.types", "nsswitch.conf"),
    *("os-release", "passwd", "pki/ca-trust", "pki/tls/certs", "pki/tls/cert.pem"),
    *("pki/tls/openssl.cnf", "protocols", "resolv.conf", "services", "ssl/certs"),
    *("ssl/cert.pem", "ssl/openssl.cnf", "terminfo", "timezone"),
)
"""The parts of /etc that libraries need; the rest may hold data of the operator."""
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
_KERNEL_FILES = ("sys", "sysrq-trigger", "irq", "bus")
"""Entries of /proc about the machine rather than about processes: read-only in a room."""

_NEW_NS, _NEW_UTS, _NEW_IPC, _NEW_USER, _NEW_PID, _NEW_NET = (
    *(0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000),
)
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXEC, _BIND, _REC, _PRIVATE = (
    *(1, 2, 4, 8, 4096, 16384, 1 << 18),
)
_DETACH = 2
_MOUNT_SETATTR, _AT_RECURSIVE, _AT_HERE = 442, 0x8000, -100
_DUMPABLE, _DROP_FROM_BOUNDS, _AMBIENT, _CLEAR_ALL = 4, 24, 47, 4
_CAPABILITY_VERSION = 0x20080522
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1
_PIDS_RESERVED = 300


class Room(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a room beside the system and this Python."""

    network: bool = False
    """Whether it has the worker's network; otherwise it has only a loopback of its own."""
    reads: tuple[str, ...] = ()
    """Directories that are readable inside, under their own names."""
    writes: tuple[tuple[str, str], ...] = ()
    """Directories that are writable inside: their paths outside and inside."""
    lends: tuple[tuple[str, str], ...] = ()
    """Directories that are readable inside under another name."""
    hides: tuple[str, ...] = ()
    """Files and directories of the worker that appear empty inside."""
    tmp_bytes: int = TMP_BYTES


class _Step(OSError):
    """A system call that the kernel refused; the text names it."""


def _done(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise _Step(number, f"{what}: {os.strerror(number)}")


_libc = ctypes.CDLL(None, use_errno=True)


# --- Whether rooms are possible ----------------------------------------------------------------

_TRIAL = """\
import os, sys
sys.path.insert(0, sys.argv[1])
from noetl.tools.processes.namespaces import Room, build, drop_capabilities, unshare
try:
    unshare()
    if (pid := os.fork()):
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    build(Room(), None)
    drop_capabilities()
except OSError as error:
    print(error.strerror or error, end="")
    sys.stdout.flush()
    os._exit(3)
os._exit(0)
"""


def check() -> None:
    """Raise BadSetting if the kernel of this machine does not let the worker build rooms."""
    from noetl.errors import BadSetting  # which the spawner need not load

    refused = refusal()
    if refused is not None:
        raise BadSetting(
            "NOETL_SANDBOX=namespaces: this machine does not let the worker make namespaces"
            f" ({refused}). It needs Linux 5.12 or later and user namespaces for this user: sysctl"
            " user.max_user_namespaces above 0; kernel.unprivileged_userns_clone=1 (Debian) or"
            " kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu) where they exist; in a"
            " container a seccomp profile that lets unshare and mount pass, and a /proc without"
            " masks. Or unset NOETL_SANDBOX, and tasks run in processes of their own."
        )


def refusal() -> str | None:
    """Build a room in a child process. Returns what the kernel refused; None if it was built."""
    if sys.platform != "linux":
        return f"{sys.platform} has no namespaces; they are a feature of Linux"
    import subprocess

    # The directory that this package is imported from.
    source = os.path.abspath(f"{__file__}/../../../..")
    trial = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-I", "-c", _TRIAL, source], capture_output=True, text=True, check=False
    )
    if trial.returncode == 0:
        return None
    if trial.returncode == 1:  # of an exception that is not the kernel's word
        raise RuntimeError(f"the trial of a room has a fault of its own:\n{trial.stderr}")
    return trial.stdout.strip() or "the trial was killed"


# --- Building a room ---------------------------------------------------------------------------


def unshare() -> None:
    """Create the namespaces: children forked from now on live in them. This process stays outside,
    where it can see and kill them.
    """
    user, group = os.geteuid(), os.getegid()
    # The files in /proc of a process that may not be inspected belong to the superuser.
    _libc.prctl(_DUMPABLE, 1, 0, 0, 0)
    _done(_libc.unshare(_NEW_USER | _NEW_PID), "unshare(CLONE_NEWUSER | CLONE_NEWPID)")
    with suppress(FileNotFoundError):  # before Linux 3.19
        _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")
    _libc.prctl(_DUMPABLE, 0, 0, 0, 0)


def build(room: Room, processes: int | None) -> None:
    """Build the room around this process. To be called by its first process."""
    kinds = _NEW_NS | _NEW_IPC | _NEW_UTS | (0 if room.network else _NEW_NET)
    _done(_libc.unshare(kinds), "unshare(CLONE_NEWNS | CLONE_NEWNET | …)")
    if not room.network:
        _raise_loopback()
    _done(_libc.sethostname(HOST_NAME, len(HOST_NAME)), "sethostname")
    _mount(None, "/", None, _REC | _PRIVATE)
    base = tempfile.gettempdir()
    _mount("tmpfs", base, "tmpfs", _NO_SUID | _NO_DEVICES, "size=16m,nr_inodes=20000,mode=0755")
    os.chdir(base)
    os.mkdir("old", 0o700)
    _done(_libc.pivot_root(b".", b"old"), "pivot_root")
    os.chdir("/")
    _fill(room)
    _limit_processes(processes)
    _done(_libc.umount2(b"/old", _DETACH), "umount")
    os.rmdir("/old")
    # Only the root itself: mounts below it keep their own flags.
    _set_flags("/", _READ_ONLY | _NO_SUID | _NO_DEVICES, deep=False)
    os.chdir(HOME)


def drop_capabilities(dropped: Iterable[int] = range(64)) -> None:
    """Drop these capabilities, by default all of them, for this process and its children."""
    _libc.prctl(_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    head = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()
    _done(_libc.capget(head, sets), "capget")
    for capability in dropped:
        _libc.prctl(_DROP_FROM_BOUNDS, capability, 0, 0, 0)
        # Effective, permitted and inheritable, each in two words.
        for kind in range(3):
            sets[3 * (capability // 32) + kind] &= ~(1 << capability % 32)
    _done(_libc.capset(head, sets), "capset")


def _fill(room: Room) -> None:
    for place in PRIVATE:
        _own(place, room.tmp_bytes)
    _devices()
    os.makedirs("/var", exist_ok=True)
    os.symlink(HOME, "/var/tmp")  # noqa: S108 - as above
    os.makedirs("/run", exist_ok=True)
    for path in (*_SYSTEM, *(f"/etc/{name}" for name in _ETC), *_python(), *room.reads):
        _show(path)
    for path in _programs():
        _show(path)
    for source, place in room.lends:
        _bind(source, place, _READ_ONLY | _NO_SUID | _NO_DEVICES)
    for source, place in room.writes:
        _bind(source, place, _NO_SUID | _NO_DEVICES)
    for path in room.hides:
        _hide(path)
    os.mkdir("/proc", 0o555)
    _mount("proc", "/proc", "proc", _NO_SUID | _NO_DEVICES | _NO_EXEC)
    # No process inside may create namespaces: they expose much of the kernel.
    _write("/proc/sys/user/max_user_namespaces", "0")


def _limit_processes(most: int | None) -> None:
    """Limit the number of processes in the room, if the kernel counts them per namespace.

    The superuser is not subject to RLIMIT_NPROC. Before Linux 6.14 the number is machine-wide.
    """
    if most is not None and _kernel() >= (6, 14):
        _write("/proc/sys/kernel/pid_max", str(_PIDS_RESERVED + most))
    for name in _KERNEL_FILES:
        place = f"/proc/{name}"
        if os.path.exists(place):
            _mount(place, place, None, _BIND | _REC)
            _set_flags(place, _READ_ONLY | _NO_SUID | _NO_DEVICES | _NO_EXEC)


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(digit for digit in minor if digit.isdecimal()) or 0)


def counts_by_room() -> bool:
    """Whether RLIMIT_NPROC counts the processes of a room, not all of the worker's user."""
    return _kernel() >= (5, 14)


def _python() -> list[str]:
    """The directories that this Python is in and imports from."""
    found = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix]
    found += [path for path in (*sys.path, *site.getsitepackages()) if _is_for_tasks(path)]
    return found


def _programs() -> list[str]:
    return [one for one in os.environ.get("PATH", "").split(os.pathsep) if _is_for_tasks(one)]


def _is_for_tasks(path: str) -> bool:
    """Whether it is a directory of its own, not one that contains the worker's home."""
    home = os.path.join(os.environ.get("HOME", "/"), "")
    return os.path.isabs(path) and not home.startswith(os.path.join(path, ""))


def _show(path: str) -> None:
    """Mount a file or directory of the machine read-only, if it exists."""
    real = _followed(path)
    if os.path.exists(real):
        for place in {path, real.removeprefix("/old")}:
            if not _is_there(place, real):
                _bind(path, place, _READ_ONLY | _NO_SUID | _NO_DEVICES)


def _is_there(place: str, real: str) -> bool:
    """Whether the room already has it, perhaps through a parent directory."""
    try:
        return os.path.samestat(os.stat(place), os.stat(real))
    except OSError:
        return False


def _bind(source: str, place: str, flags: int) -> None:
    real = _followed(source)
    if os.path.isdir(real):
        os.makedirs(place, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "ab"):
            pass
    _mount(real, place, None, _BIND | _REC)
    _set_flags(place, flags)


def _followed(path: str) -> str:
    """Resolve a path of the old root, including links, to a path below /old."""
    parts = [part for part in path.split("/") if part][::-1]
    found, links = "/old", 0
    while parts:
        part = parts.pop()
        if part == "..":
            found = os.path.dirname(found) if found != "/old" else found
            continue
        if part == ".":
            continue
        step = f"{found}/{part}"
        if os.path.islink(step):
            links += 1
            if links > 40:
                raise _Step(errno.ELOOP, f"{path}: {os.strerror(errno.ELOOP)}")
            target = os.readlink(step)
            found = "/old" if target.startswith("/") else found
            parts += [part for part in target.split("/") if part][::-1]
        else:
            found = step
    return found


def _hide(path: str) -> None:
    if os.path.isdir(path):
        _mount("tmpfs", path, "tmpfs", _READ_ONLY | _NO_SUID | _NO_DEVICES, "size=4k,mode=0555")
    elif os.path.exists(path):
        _mount("/dev/null", path, None, _BIND)


def _devices() -> None:
    os.makedirs("/dev", exist_ok=True)
    for name in _DEVICES:
        if os.path.exists(f"/old/dev/{name}"):
            with open(f"/dev/{name}", "ab"):
                pass
            _mount(f"/old/dev/{name}", f"/dev/{name}", None, _BIND)
    for name, target in _LINKS.items():
        os.symlink(target, f"/dev/{name}")


def _own(place: str, size: int) -> None:
    """An empty directory in memory, gone with the room."""
    os.makedirs(place, exist_ok=True)
    told = f"size={size},nr_inodes={TMP_FILES},mode=1777"
    _mount("tmpfs", place, "tmpfs", _NO_SUID | _NO_DEVICES, told)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(line, _GET_FLAGS, request))[1]
        fcntl.ioctl(line, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))


def _mount(
    source: str | None, place: str, kind: str | None, flags: int, told: str | None = None
) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, place, kind, told)]
    result = _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3])
    _done(result, f"mount of {kind or source or place} on {place}")


def _set_flags(place: str, flags: int, *, deep: bool = True) -> None:
    """Set flags of a mount, and of those below it; existing restrictions remain."""
    wanted = (ctypes.c_uint64 * 4)(flags, 0, 0, 0)
    how = _AT_RECURSIVE if deep else 0
    told = _libc.syscall(_MOUNT_SETATTR, _AT_HERE, os.fsencode(place), how, wanted, 32)
    _done(told, f"mount_setattr of {place}")


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError as error:
        number = error.errno or errno.EINVAL
        raise _Step(number, f"writing {path}: {os.strerror(number)}") from error
