"""The cage that a slot's processes run in: what they see, whom they reach, what they may ask of the kernel.

With namespaces (`method` "namespaces") the launcher stays outside. It starts a warden, the first process of a world of
its own: a read-only root with a private /tmp and /dev/shm, the platform's folders covered, only loopback for a network.
Every process of the slot enters that world and then gives up what it has: its user, its capabilities, system calls.
A process that must be called (a replica) inherits a socket that already listens on the machine's network, and may not
connect: a process outside, the broker, opens the connections to its declared services.
When the launcher ends, so does the warden, and with it whatever is left inside. Elsewhere Landlock ("landlock")
shows processes few paths, lets them signal nobody outside, and connect to the ports of the platform and of a proxy
alone, by TCP; their user is then the platform's, without any rights of root, and other hosts answer at those port
numbers too: the platform says so. On nodes that a site keeps ("calls") only rights and calls go.

The document says all of it (falaj.backends.process_cage writes it), and lies where processes cannot change it.
"""

import contextlib
import errno
import fcntl
import ipaddress
import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from falaj.core.connection_broker import FD_VARIABLE, SERVICES_VARIABLE
from falaj.core.errors import Unavailable
from falaj.worker import cage_egress as egress
from falaj.worker import cage_kernel as kernel
from falaj.worker.broker import ConnectionBroker
from falaj.worker.outbox import Outbox
from falaj.worker.syscall_filter import build_attempt_rules, install_filter

_ETC = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version",
    "default/locale", "fonts", "gai.conf", "gitconfig", "group", "host.conf", "hostname", "hosts", "inputrc", "java",
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "libibverbs.d", "locale.alias", "locale.conf", "localtime",
    "lsb-release", "machine-id", "magic", "matplotlibrc", "mime.types", "nsswitch.conf", "nvidia", "OpenCL", "openmpi",
    "os-release", "passwd", "pip.conf", "pki/ca-trust", "pki/tls", "profile", "profile.d", "protocols", "python3",
    "python3.11", "python3.12", "python3.13", "R", "redhat-release", "resolv.conf", "rpc", "services", "shells",
    "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "vulkan", "xdg",
)  # fmt: skip
"""Of /etc what programs read: as root without rights, a process would also read what only root may."""
_READABLE = (
    "/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/proc", "/nix", "/dev/pts", "/sys/bus", "/sys/class",
    "/sys/dev", "/sys/devices", "/sys/fs/cgroup", "/sys/kernel/mm", "/sys/module", *(f"/etc/{name}" for name in _ETC),
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx")
_ACCELERATORS = ("nvidia*", "dri", "kfd", "accel", "infiniband")
_DEVICE_LINKS = {
    "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}  # fmt: skip
_RESOLVERS = ("/run/systemd/resolve", "/run/resolvconf", "/run/nscd")
_OPEN = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  # nosec B108 - covered by private ones
_UP = struct.pack("16sH22x", b"lo", 1)


class Told(NamedTuple):
    """What the document says of the cage; `method` is empty where there is none."""

    method: str = ""
    uid: int = 0
    """Who processes become where the launcher is root and there are namespaces; nobody else where it is 0."""
    network: str = "own"
    """`own`: loopback alone; `host`: the machine's."""
    listen: str = ""
    """The address at which the launcher opens a listening socket for the processes; none when empty."""
    hidden: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    """Folders of the platform's user that processes read as if they were their own, and cannot change."""
    platform: tuple[str, int] | None = None
    services: tuple[tuple[str, int], ...] = ()
    """What the broker of a replica connects to: its online store. A path is a socket of this machine, with port 0."""
    egress: tuple[str, ...] = ()
    tcp_ports: str = ""
    """`any`: without namespaces processes connect to every port, as ranks need that meet on ports of their choice."""
    required: bool = False
    """Processes inside must not fall back to weaker isolation of their own helpers."""
    apart: bool = False
    """True when it shares its network with no other slot of the attempt."""
    processes: int = 4096
    file_bytes: int = 0
    tmp_bytes: int = 1 << 30
    shm_bytes: int = 1 << 30


def told_in(document: Mapping[str, object]) -> Told:
    """The cage of a context."""
    lists = {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}
    lists["services"] = tuple((str(host), int(port)) for host, port in document.get("services") or ())  # type: ignore[attr-defined]
    if lists.get("platform"):
        lists["platform"] = tuple(lists["platform"])  # type: ignore[arg-type]
    return Told(**{name: value for name, value in lists.items() if name in Told._fields})  # type: ignore[arg-type]


class Cage:
    """Built by the launcher before it has threads; entered by each of its children; ended with the slot."""

    def __init__(self, told: Told, folder: Path, slot: int, outbox: str) -> None:
        self._told, self._folder, self._slot, self._outbox = told, folder, slot, outbox
        self._root = os.geteuid() == 0
        self._spaces: list[int] = []
        self._listener: socket.socket | None = None
        self._broker: socket.socket | None = None
        self._proxy_port = egress.PROXY_PORT
        self.work = str(folder / "work") if told.method != "calls" else ""
        self.staff: set[int] = set()
        """Processes that are ours and not the attempt's."""

    def build(self) -> None:
        """Make the world that processes will enter; Unavailable where the kernel does not let us."""
        try:
            if self._told.listen:
                family = socket.AF_INET6 if ":" in self._told.listen else socket.AF_INET
                self._listener = socket.create_server((self._told.listen, 0), family=family, backlog=64)
                if ipaddress.ip_address(self._told.listen).is_loopback:  # what it accepts can then reach nothing else
                    self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
            for path in filter(None, (self.work, self._outbox, *self._told.writable)):
                Path(path).mkdir(0o700, parents=True, exist_ok=True)
            if self._told.listen and self._told.services:
                self._start_broker()
            if self._told.method == "namespaces":
                self._build()
            elif self._told.method == "landlock" and self._has_gate():
                self._start_proxy()
        except OSError as error:
            words = f"the sandbox of this attempt cannot be made: {error.filename or ''} {error.strerror}"
            raise Unavailable(words, "falaj doctor says what this machine can enforce") from None

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """What processes are told of it."""
        if self._told.method == "calls":
            return {"FALAJ_SANDBOX": "calls"}
        home = _OPEN[0] if self._told.method == "namespaces" else self.work
        found = {"HOME": home, "TMPDIR": home, "FALAJ_SANDBOX": self._told.method}
        found |= {"FALAJ_SANDBOX_REQUIRED": "1" if self._told.required else "0"}
        if self._listener is not None:
            found["FALAJ_LISTEN_FD"] = str(self._listener.fileno())
            found["FALAJ_LISTEN_HOST"] = egress.find_own_address(self._told.listen)
        if self._broker is not None:
            found[FD_VARIABLE] = str(self._broker.fileno())
            found[SERVICES_VARIABLE] = json.dumps(self._told.services)
        if not self._has_gate():
            return found
        proxy, around = f"http://127.0.0.1:{self._proxy_port}", "127.0.0.1,localhost,::1"
        names = {"http_proxy": proxy, "https_proxy": proxy, "no_proxy": around}
        return found | names | {name.upper(): value for name, value in names.items() if name.upper() not in env}

    def enter(self, where: str) -> None:
        """In a child, before it becomes a program."""
        for space in self._spaces:
            kernel.setns(space)
        os.chdir(where)
        kernel.refuse_core_dumps()
        _lower(resource.RLIMIT_NPROC, self._told.processes)
        _lower(resource.RLIMIT_FSIZE, self._told.file_bytes)
        kernel.drop_capabilities()
        if self._root and self._told.uid:
            os.setgroups([])
            os.setresgid(*[self._told.uid] * 3)
            os.setresuid(*[self._told.uid] * 3)
        kernel.give_up_capabilities()
        kernel.prctl(kernel.PDEATHSIG, signal.SIGKILL)  # forgotten by the kernel when the user changes
        kernel.prctl(kernel.SET_NO_NEW_PRIVS, 1)
        for inherited in filter(None, (self._listener, self._broker)):
            inherited.set_inheritable(True)
        shares_user = self._told.method == "landlock"
        if shares_user:
            mine = (str(self._folder), *self._told.shown, *self._told.readable)
            writable = (self.work, self._outbox, *self._told.writable, *_DEVICES, *_find_accelerators())
            open_ports = not self._told.listen and (self._told.network != "own" or self._told.tcp_ports == "any")
            kernel.landlock((*_READABLE, *mine), writable, tcp=open_ports, tcp_ports=self._reachable_ports())
        install_filter(build_attempt_rules(shares_user=shares_user, only_accepts=bool(self._told.listen)))

    def close_inherited(self) -> None:
        """The processes have inherited the listening socket and that of the broker: with them both end."""
        for inherited in filter(None, (self._listener, self._broker)):
            inherited.close()
        self._listener = self._broker = None

    def _has_gate(self) -> bool:
        """Whether processes reach the platform and a proxy by a process outside; replicas connect to nothing."""
        return self._told.network == "own" and not self._told.listen

    def _reachable_ports(self) -> tuple[int, ...]:
        """Without namespaces: the platform's port where clients call it without a proxy, and the proxy's."""
        if not self._has_gate():
            return ()
        platform = self._told.platform
        return (self._proxy_port, *((platform[1],) if platform and egress.is_loopback(platform[0]) else ()))

    def end(self) -> None:
        """Whoever is still inside ends with the warden."""
        self.close_inherited()
        for pid in self.staff:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        self.staff = set()
        for space in self._spaces:
            os.close(space)
        self._spaces = []

    def _build(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs, _locked(self._folder / "cage.lock"):
            if self._has_gate():
                self.staff.add(self._start_gate(theirs, lambda: egress.receive(theirs)))
            neighbour = self._neighbour()
            users = self._users() if self._root else -1
            if not self._root and neighbour:
                kernel.setns(neighbour[0])
            elif not self._root:
                _become_nobody_else()
            kernel.unshare(kernel.NEWPID)
            warden, said = self._start_warden(ours, users, neighbour[1] if neighbour else -1)
            self.staff.add(warden)
            if said:
                raise OSError(0, said)
            names = ("mnt", "ipc", "uts", *(("net",) if self._told.network == "own" else ()))
            self._spaces = [os.open(f"/proc/{warden}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]
            if not self._told.apart:
                (self._folder / f"slot-{self._slot}.cage").write_text(str(warden), encoding="ascii")
            for file in (*(neighbour or ()), users):
                if file >= 0:
                    os.close(file)

    def _neighbour(self) -> tuple[int, int] | None:
        """The network of another slot of this attempt that lives on this machine: its ranks must meet ours."""
        joins = self._told.network == "own" and not self._told.apart
        for path in self._folder.glob("slot-*.cage") if joins else ():
            with contextlib.suppress(OSError, ValueError):
                warden = int(path.read_text(encoding="ascii"))
                lock = os.open(path.with_suffix(".lock"), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    spaces = (f"/proc/{warden}/ns/{name}" for name in ("user", "net"))
                    user, net = (os.open(space, os.O_RDONLY | os.O_CLOEXEC) for space in spaces)
                    return user, net
                finally:
                    os.close(lock)
        return None

    def _start_proxy(self) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
            self._proxy_port = int(listener.getsockname()[1])
            self.staff.add(self._start_gate(listener, lambda: [listener]))

    def _start_gate(self, inherited: socket.socket, receive: Callable[[], list[socket.socket]]) -> int:
        if child := os.fork():
            return child
        try:
            kernel.prctl(kernel.PDEATHSIG, signal.SIGKILL)
            egress.close_all_but([inherited.fileno()])
            listeners = receive()
            self._give_up_rights()
            outbox = Outbox(self._outbox, f"gate-{self._slot}")

            def tell(where: str) -> None:
                outbox.tell("note", text=f"the sandbox refused a connection to {where}"[:400])

            egress.Gate(self._told.platform, self._told.egress, tell).serve(listeners)
        finally:
            os._exit(1)

    def _start_broker(self) -> None:
        self._broker, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            if child := os.fork():
                self.staff.add(child)
                return
            try:
                kernel.prctl(kernel.PDEATHSIG, signal.SIGKILL)
                egress.close_all_but([theirs.fileno()])
                self._give_up_rights()
                ConnectionBroker(self._told.services).serve(theirs)
            finally:
                os._exit(1)

    def _give_up_rights(self) -> None:
        """Gate and broker read what the attempt writes: they look names up, connect, and can do nothing else."""
        kernel.refuse_core_dumps()
        kernel.drop_capabilities()
        kernel.give_up_capabilities()
        if kernel.landlock_version():
            own = (sys.base_prefix, sys.prefix, str(Path(__file__).parents[2]))
            kernel.landlock((*_READABLE, *_RESOLVERS, *own), (self._outbox, *_DEVICES))
        install_filter(build_attempt_rules())

    def _start_warden(self, channel: socket.socket, users: int, net: int) -> tuple[int, str]:
        """The first process inside, and what went wrong there."""
        heard, told = os.pipe()
        child = os.fork()
        if child:
            os.close(told)
            with os.fdopen(heard, "rb") as answer:
                words = answer.read().decode(errors="replace")
            return child, words.removeprefix("ready") or ("" if words else "its first process ended")
        try:
            self._furnish(channel, users, net)
            os.write(told, b"ready")
            egress.close_all_but([])
            while True:
                signal.sigwait([signal.SIGCHLD])
                _reap()
        except OSError as error:
            os.write(told, f"{error.filename or ''} {error.strerror}".encode())
        finally:
            os._exit(1)

    def _furnish(self, channel: socket.socket, users: int, net: int) -> None:
        kernel.prctl(kernel.PDEATHSIG, signal.SIGKILL)
        if self._told.network == "own":
            kernel.setns(net) if net >= 0 else kernel.unshare(kernel.NEWNET)
            with socket.socket() as lo:
                fcntl.ioctl(lo, 0x8914, _UP)
            if self._has_gate():
                egress.send(channel, egress.listeners(self._told.platform))
        kernel.unshare(kernel.NEWNS | kernel.NEWIPC | kernel.NEWUTS)
        kernel.keep_mounts_private()
        self._mount(users)
        with contextlib.suppress(OSError):  # inside some containers the old one stays: its numbers help nobody
            kernel.mount("proc", "/proc", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC)

    def _mount(self, users: int) -> None:
        """Take what is shown, make everything read-only, cover what is hidden, put back what was taken."""
        writable = {*map(os.path.realpath, (self.work, self._outbox, *self._told.writable))}
        own = {*map(os.path.realpath, (str(self._folder), *self._told.readable)), *writable}
        trees = {
            path: self._take(path, path not in writable, users if path in own else -1)
            for path in sorted({*own, *map(os.path.realpath, self._told.shown)}, key=len)
        }
        devices = {
            path: kernel.take_tree(path) for path in (*_DEVICES[:-1], *_find_accelerators()) if Path(path).exists()
        }
        kernel.set_mount("/", kernel.RDONLY | kernel.NOSUID)
        _mount_devices(devices)
        hidden = {*map(os.path.realpath, self._told.hidden), *_OPEN} - {"/"}
        # From the outside in: what is hidden in something shown is hidden, and our own folder in the platform's shown.
        steps = sorted([*((len(path), 0, path) for path in hidden), *((len(path), 1, path) for path in trees)])
        covered = []
        for _, shown, path in steps:
            if not shown:
                covered += [path] if self._cover(path) else []
                continue
            tree, is_folder = trees[path]
            _make_place(path, is_folder)
            kernel.put_tree(tree, path)
        for path in covered:
            if path not in _OPEN and path not in trees:
                kernel.set_mount(path, kernel.RDONLY, whole=False)

    def _cover(self, path: str) -> bool:
        """Hide a file, or a folder below something empty; whether it was a folder."""
        if os.path.isfile(path):  # noqa: PTH113
            kernel.put_tree(kernel.take_tree(os.devnull, whole=False), path)
        if not os.path.isdir(path):  # noqa: PTH112
            return False
        size = {_OPEN[0]: self._told.tmp_bytes, _OPEN[2]: self._told.shm_bytes}.get(path, 16 << 20)
        mode = "1777" if path in _OPEN else "755"
        kernel.mount("tmpfs", path, kernel.NOSUID | kernel.NODEV, f"mode={mode},size={size}")
        return True

    def _take(self, path: str, read_only: bool, users: int) -> tuple[int, bool]:
        """With `users` files that are ours on the disk belong, seen from inside, to the user of the processes."""
        tree = kernel.take_tree(path, whole=users < 0)
        flags = kernel.NOSUID | kernel.NODEV | (kernel.RDONLY if read_only else 0)
        kernel.set_mount(tree, flags, users, whole=users < 0)
        return tree, os.path.isdir(path)  # noqa: PTH112

    def _users(self) -> int:
        """A user namespace in which we are the user of the processes: how their mounts see owners."""
        held, release = os.pipe()
        ready, done = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.close(release)
                kernel.unshare(kernel.NEWUSER)
                os.write(done, b".")
                os.read(held, 1)
            finally:
                os._exit(0)
        os.close(done)
        try:
            if not os.read(ready, 1):
                raise PermissionError(errno.EPERM, "user namespaces are not allowed")
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{child}/{name}").write_text(f"0 {self._told.uid} 1", encoding="ascii")
            return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            for file in (held, release, ready):
                os.close(file)
            os.waitpid(child, 0)


def _become_nobody_else() -> None:
    """A user namespace in which we are who we are, and may make the other namespaces."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text, encoding="ascii")


def _find_accelerators() -> list[str]:
    """Device files and folders of graphics cards and the like, which their modes guard."""
    return [str(path) for pattern in _ACCELERATORS for path in Path("/dev").glob(pattern)]


def _mount_devices(devices: Mapping[str, int]) -> None:
    """Replace /dev by one that has these devices, terminals of its own, and no disk, console or kernel log."""
    folders = {path: os.path.isdir(path) for path in devices}  # noqa: PTH112
    kernel.mount("tmpfs", "/dev", kernel.NOSUID | kernel.NOEXEC, "mode=755,size=64k")
    for path, tree in devices.items():
        _make_place(path, folders[path])
        kernel.put_tree(tree, path)
        os.close(tree)
    for name in ("pts", "shm"):
        os.mkdir(f"/dev/{name}", 0o755)  # noqa: PTH102
    with contextlib.suppress(OSError):  # inside some containers: then there are no terminals
        kernel.mount("devpts", "/dev/pts", kernel.NOSUID | kernel.NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"/dev/{name}")  # noqa: PTH211
    kernel.set_mount("/dev", kernel.RDONLY | kernel.NOSUID | kernel.NOEXEC, whole=False)


def _make_place(path: str, is_folder: bool) -> None:
    """Where something can be mounted; below a cover nothing is there yet."""
    place = Path(path)
    if not place.exists():
        (place if is_folder else place.parent).mkdir(0o755, parents=True, exist_ok=True)
        if not is_folder:
            place.touch()


def _lower(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    if value:
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (most, most))


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
