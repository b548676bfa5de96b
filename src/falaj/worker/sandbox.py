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

The document says all of it (falaj.backends.process_sandbox writes it), and lies where processes cannot change it.
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
from falaj.worker import sandbox_egress as egress
from falaj.worker import sandbox_kernel as kernel
from falaj.worker.connection_broker import ConnectionBroker
from falaj.worker.outbox import Outbox
from falaj.worker.syscall_filter import build_attempt_rules, install_filter

_ETC_READABLE = (
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "debian_version",
    "default/locale",
    "fonts",
    "gai.conf",
    "gitconfig",
    "group",
    "host.conf",
    "hostname",
    "hosts",
    "inputrc",
    "java",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "libibverbs.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "lsb-release",
    "machine-id",
    "magic",
    "matplotlibrc",
    "mime.types",
    "nsswitch.conf",
    "nvidia",
    "OpenCL",
    "openmpi",
    "os-release",
    "passwd",
    "pip.conf",
    "pki/ca-trust",
    "pki/tls",
    "profile",
    "profile.d",
    "protocols",
    "python3",
    "python3.11",
    "python3.12",
    "python3.13",
    "R",
    "redhat-release",
    "resolv.conf",
    "rpc",
    "services",
    "shells",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "vulkan",
    "xdg",
)
"""Of /etc what programs read: as root without rights, a process would also read what only root may."""
_READABLE_PATHS = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/opt",
    "/proc",
    "/nix",
    "/dev/pts",
    "/sys/bus",
    "/sys/class",
    "/sys/dev",
    "/sys/devices",
    "/sys/fs/cgroup",
    "/sys/kernel/mm",
    "/sys/module",
    *(f"/etc/{name}" for name in _ETC_READABLE),
)
_DEVICE_PATHS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx")
_ACCELERATOR_PATTERNS = ("nvidia*", "dri", "kfd", "accel", "infiniband")
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_RESOLVER_PATHS = ("/run/systemd/resolve", "/run/resolvconf", "/run/nscd")
_TEMPORARY_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  # nosec B108 - covered by private ones
_LOOPBACK_UP_REQUEST = struct.pack("16sH22x", b"lo", 1)


class SandboxProfile(NamedTuple):
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


def read_sandbox_profile(document: Mapping[str, object]) -> SandboxProfile:
    """The cage of a context."""
    field_values = {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}
    field_values["services"] = tuple((str(host), int(port)) for host, port in document.get("services") or ())  # type: ignore[attr-defined]
    if field_values.get("platform"):
        field_values["platform"] = tuple(field_values["platform"])  # type: ignore[arg-type]
    return SandboxProfile(**{name: value for name, value in field_values.items() if name in SandboxProfile._fields})  # type: ignore[arg-type]


class Sandbox:
    """Built by the launcher before it has threads; entered by each of its children; ended with the slot."""

    def __init__(self, profile: SandboxProfile, folder: Path, slot: int, outbox_folder: str) -> None:
        self._profile, self._folder, self._slot, self._outbox_folder = profile, folder, slot, outbox_folder
        self._is_root = os.geteuid() == 0
        self._namespace_fds: list[int] = []
        self._listener: socket.socket | None = None
        self._broker: socket.socket | None = None
        self._proxy_port = egress.PROXY_PORT
        self.work = str(folder / "work") if profile.method != "calls" else ""
        self.staff: set[int] = set()
        """Processes that are ours and not the attempt's."""

    def build(self) -> None:
        """Make the world that processes will enter; Unavailable where the kernel does not let us."""
        try:
            if self._profile.listen:
                family = socket.AF_INET6 if ":" in self._profile.listen else socket.AF_INET
                self._listener = socket.create_server((self._profile.listen, 0), family=family, backlog=64)
                if ipaddress.ip_address(
                    self._profile.listen
                ).is_loopback:  # what it accepts can then reach nothing else
                    self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
            for path in filter(None, (self.work, self._outbox_folder, *self._profile.writable)):
                Path(path).mkdir(0o700, parents=True, exist_ok=True)
            if self._profile.listen and self._profile.services:
                self._start_broker()
            if self._profile.method == "namespaces":
                self._build_namespaces()
            elif self._profile.method == "landlock" and self._has_egress_proxy():
                self._start_proxy()
        except OSError as error:
            message = f"the sandbox of this attempt cannot be made: {error.filename or ''} {error.strerror}"
            raise Unavailable(message, "falaj doctor says what this machine can enforce") from None

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """What processes are told of it."""
        if self._profile.method == "calls":
            return {"FALAJ_SANDBOX": "calls"}
        home = _TEMPORARY_FOLDERS[0] if self._profile.method == "namespaces" else self.work
        variables = {"HOME": home, "TMPDIR": home, "FALAJ_SANDBOX": self._profile.method}
        variables |= {"FALAJ_SANDBOX_REQUIRED": "1" if self._profile.required else "0"}
        if self._listener is not None:
            variables["FALAJ_LISTEN_FD"] = str(self._listener.fileno())
            variables["FALAJ_LISTEN_HOST"] = egress.find_own_address(self._profile.listen)
        if self._broker is not None:
            variables[FD_VARIABLE] = str(self._broker.fileno())
            variables[SERVICES_VARIABLE] = json.dumps(self._profile.services)
        if not self._has_egress_proxy():
            return variables
        proxy, no_proxy_hosts = f"http://127.0.0.1:{self._proxy_port}", "127.0.0.1,localhost,::1"
        proxy_variables = {"http_proxy": proxy, "https_proxy": proxy, "no_proxy": no_proxy_hosts}
        return (
            variables
            | proxy_variables
            | {name.upper(): value for name, value in proxy_variables.items() if name.upper() not in env}
        )

    def enter(self, working_folder: str) -> None:
        """In a child, before it becomes a program."""
        for namespace_fd in self._namespace_fds:
            kernel.enter_namespace(namespace_fd)
        os.chdir(working_folder)
        kernel.refuse_core_dumps()
        _lower_limit(resource.RLIMIT_NPROC, self._profile.processes)
        _lower_limit(resource.RLIMIT_FSIZE, self._profile.file_bytes)
        kernel.drop_capabilities()
        if self._is_root and self._profile.uid:
            os.setgroups([])
            os.setresgid(*[self._profile.uid] * 3)
            os.setresuid(*[self._profile.uid] * 3)
        kernel.clear_capabilities()
        kernel.set_process_option(kernel.PDEATHSIG, signal.SIGKILL)  # forgotten by the kernel when the user changes
        kernel.set_process_option(kernel.SET_NO_NEW_PRIVS, 1)
        for inherited_socket in filter(None, (self._listener, self._broker)):
            inherited_socket.set_inheritable(True)
        shares_user = self._profile.method == "landlock"
        if shares_user:
            own_paths = (str(self._folder), *self._profile.shown, *self._profile.readable)
            writable = (self.work, self._outbox_folder, *self._profile.writable, *_DEVICE_PATHS, *_find_accelerators())
            allows_all_ports = not self._profile.listen and (
                self._profile.network != "own" or self._profile.tcp_ports == "any"
            )
            kernel.restrict_with_landlock(
                (*_READABLE_PATHS, *own_paths),
                writable,
                allows_tcp=allows_all_ports,
                allowed_ports=self._reachable_ports(),
            )
        install_filter(build_attempt_rules(shares_user=shares_user, only_accepts=bool(self._profile.listen)))

    def close_inherited(self) -> None:
        """The processes have inherited the listening socket and that of the broker: with them both end."""
        for inherited_socket in filter(None, (self._listener, self._broker)):
            inherited_socket.close()
        self._listener = self._broker = None

    def _has_egress_proxy(self) -> bool:
        """Whether processes reach the platform and a proxy by a process outside; replicas connect to nothing."""
        return self._profile.network == "own" and not self._profile.listen

    def _reachable_ports(self) -> tuple[int, ...]:
        """Without namespaces: the platform's port where clients call it without a proxy, and the proxy's."""
        if not self._has_egress_proxy():
            return ()
        platform = self._profile.platform
        return (self._proxy_port, *((platform[1],) if platform and egress.is_loopback(platform[0]) else ()))

    def end(self) -> None:
        """Whoever is still inside ends with the warden."""
        self.close_inherited()
        for pid in self.staff:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        self.staff = set()
        for namespace_fd in self._namespace_fds:
            os.close(namespace_fd)
        self._namespace_fds = []

    def _build_namespaces(self) -> None:
        own_socket, helper_socket = socket.socketpair()
        with own_socket, helper_socket, _lock_file(self._folder / "cage.lock"):
            if self._has_egress_proxy():
                self.staff.add(self._start_egress_proxy(helper_socket, lambda: egress.receive_listeners(helper_socket)))
            neighbour_fds = self._find_neighbour_namespaces()
            user_namespace = self._create_user_namespace() if self._is_root else -1
            if not self._is_root and neighbour_fds:
                kernel.enter_namespace(neighbour_fds[0])
            elif not self._is_root:
                _enter_own_user_namespace()
            kernel.unshare_namespaces(kernel.NEWPID)
            init_pid, init_error = self._start_init_process(
                own_socket, user_namespace, neighbour_fds[1] if neighbour_fds else -1
            )
            self.staff.add(init_pid)
            if init_error:
                raise OSError(0, init_error)
            namespace_names = ("mnt", "ipc", "uts", *(("net",) if self._profile.network == "own" else ()))
            self._namespace_fds = [
                os.open(f"/proc/{init_pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in namespace_names
            ]
            if not self._profile.apart:
                (self._folder / f"slot-{self._slot}.cage").write_text(str(init_pid), encoding="ascii")
            for fd in (*(neighbour_fds or ()), user_namespace):
                if fd >= 0:
                    os.close(fd)

    def _find_neighbour_namespaces(self) -> tuple[int, int] | None:
        """The network of another slot of this attempt that lives on this machine: its ranks must meet ours."""
        shares_network = self._profile.network == "own" and not self._profile.apart
        for path in self._folder.glob("slot-*.cage") if shares_network else ():
            with contextlib.suppress(OSError, ValueError):
                init_pid = int(path.read_text(encoding="ascii"))
                lock = os.open(path.with_suffix(".lock"), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    namespace_paths = (f"/proc/{init_pid}/ns/{name}" for name in ("user", "net"))
                    user_fd, network_fd = (
                        os.open(namespace_path, os.O_RDONLY | os.O_CLOEXEC) for namespace_path in namespace_paths
                    )
                    return user_fd, network_fd
                finally:
                    os.close(lock)
        return None

    def _start_proxy(self) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
            self._proxy_port = int(listener.getsockname()[1])
            self.staff.add(self._start_egress_proxy(listener, lambda: [listener]))

    def _start_egress_proxy(
        self, inherited_socket: socket.socket, receive_listeners: Callable[[], list[socket.socket]]
    ) -> int:
        if child := os.fork():
            return child
        try:
            kernel.set_process_option(kernel.PDEATHSIG, signal.SIGKILL)
            egress.close_other_files([inherited_socket.fileno()])
            listeners = receive_listeners()
            self._drop_helper_rights()
            outbox = Outbox(self._outbox_folder, f"gate-{self._slot}")

            def report_refusal(address: str) -> None:
                outbox.tell("note", text=f"the sandbox refused a connection to {address}"[:400])

            egress.EgressProxy(self._profile.platform, self._profile.egress, report_refusal).serve(listeners)
        finally:
            os._exit(1)

    def _start_broker(self) -> None:
        self._broker, broker_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with broker_socket:
            if child := os.fork():
                self.staff.add(child)
                return
            try:
                kernel.set_process_option(kernel.PDEATHSIG, signal.SIGKILL)
                egress.close_other_files([broker_socket.fileno()])
                self._drop_helper_rights()
                ConnectionBroker(self._profile.services).serve(broker_socket)
            finally:
                os._exit(1)

    def _drop_helper_rights(self) -> None:
        """Gate and broker read what the attempt writes: they look names up, connect, and can do nothing else."""
        kernel.refuse_core_dumps()
        kernel.drop_capabilities()
        kernel.clear_capabilities()
        if kernel.get_landlock_version():
            python_paths = (sys.base_prefix, sys.prefix, str(Path(__file__).parents[2]))
            kernel.restrict_with_landlock(
                (*_READABLE_PATHS, *_RESOLVER_PATHS, *python_paths), (self._outbox_folder, *_DEVICE_PATHS)
            )
        install_filter(build_attempt_rules())

    def _start_init_process(self, channel: socket.socket, user_namespace: int, network_fd: int) -> tuple[int, str]:
        """The first process inside, and what went wrong there."""
        read_end, write_end = os.pipe()
        child = os.fork()
        if child:
            os.close(write_end)
            with os.fdopen(read_end, "rb") as reply_file:
                reply = reply_file.read().decode(errors="replace")
            return child, reply.removeprefix("ready") or ("" if reply else "its first process ended")
        try:
            self._set_up_namespaces(channel, user_namespace, network_fd)
            os.write(write_end, b"ready")
            egress.close_other_files([])
            while True:
                signal.sigwait([signal.SIGCHLD])
                _reap_children()
        except OSError as error:
            os.write(write_end, f"{error.filename or ''} {error.strerror}".encode())
        finally:
            os._exit(1)

    def _set_up_namespaces(self, channel: socket.socket, user_namespace: int, network_fd: int) -> None:
        kernel.set_process_option(kernel.PDEATHSIG, signal.SIGKILL)
        if self._profile.network == "own":
            kernel.enter_namespace(network_fd) if network_fd >= 0 else kernel.unshare_namespaces(kernel.NEWNET)
            with socket.socket() as loopback_socket:
                fcntl.ioctl(loopback_socket, 0x8914, _LOOPBACK_UP_REQUEST)
            if self._has_egress_proxy():
                egress.send_listeners(channel, egress.open_listeners(self._profile.platform))
        kernel.unshare_namespaces(kernel.NEWNS | kernel.NEWIPC | kernel.NEWUTS)
        kernel.keep_mounts_private()
        self._mount_tree(user_namespace)
        with contextlib.suppress(OSError):  # inside some containers the old one stays: its numbers help nobody
            kernel.mount_filesystem("proc", "/proc", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC)

    def _mount_tree(self, user_namespace: int) -> None:
        """Take what is shown, make everything read-only, cover what is hidden, put back what was taken."""
        writable = {*map(os.path.realpath, (self.work, self._outbox_folder, *self._profile.writable))}
        own_paths = {*map(os.path.realpath, (str(self._folder), *self._profile.readable)), *writable}
        trees = {
            path: self._copy_mount(path, path not in writable, user_namespace if path in own_paths else -1)
            for path in sorted({*own_paths, *map(os.path.realpath, self._profile.shown)}, key=len)
        }
        devices = {
            path: kernel.copy_mount_tree(path)
            for path in (*_DEVICE_PATHS[:-1], *_find_accelerators())
            if Path(path).exists()
        }
        kernel.set_mount_attributes("/", kernel.RDONLY | kernel.NOSUID)
        _mount_devices(devices)
        hidden = {*map(os.path.realpath, self._profile.hidden), *_TEMPORARY_FOLDERS} - {"/"}
        # From the outside in: what is hidden in something shown is hidden, and our own folder in the platform's shown.
        mount_steps = sorted([*((len(path), 0, path) for path in hidden), *((len(path), 1, path) for path in trees)])
        covered_folders = []
        for _, is_shown, path in mount_steps:
            if not is_shown:
                covered_folders += [path] if self._cover_path(path) else []
                continue
            tree, is_folder = trees[path]
            _create_mount_point(path, is_folder)
            kernel.attach_mount_tree(tree, path)
        for path in covered_folders:
            if path not in _TEMPORARY_FOLDERS and path not in trees:
                kernel.set_mount_attributes(path, kernel.RDONLY, is_recursive=False)

    def _cover_path(self, path: str) -> bool:
        """Hide a file, or a folder below something empty; whether it was a folder."""
        if os.path.isfile(path):  # noqa: PTH113
            kernel.attach_mount_tree(kernel.copy_mount_tree(os.devnull, is_recursive=False), path)
        if not os.path.isdir(path):  # noqa: PTH112
            return False
        size = {_TEMPORARY_FOLDERS[0]: self._profile.tmp_bytes, _TEMPORARY_FOLDERS[2]: self._profile.shm_bytes}.get(
            path, 16 << 20
        )
        mode = "1777" if path in _TEMPORARY_FOLDERS else "755"
        kernel.mount_filesystem("tmpfs", path, kernel.NOSUID | kernel.NODEV, f"mode={mode},size={size}")
        return True

    def _copy_mount(self, path: str, read_only: bool, user_namespace: int) -> tuple[int, bool]:
        """With `user_namespace` files that are ours on the disk belong, seen from inside, to the user of the
        processes."""
        tree = kernel.copy_mount_tree(path, is_recursive=user_namespace < 0)
        flags = kernel.NOSUID | kernel.NODEV | (kernel.RDONLY if read_only else 0)
        kernel.set_mount_attributes(tree, flags, user_namespace, is_recursive=user_namespace < 0)
        return tree, os.path.isdir(path)  # noqa: PTH112

    def _create_user_namespace(self) -> int:
        """A user namespace in which we are the user of the processes: how their mounts see owners."""
        release_read, release_write = os.pipe()
        ready_read, ready_write = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.close(release_write)
                kernel.unshare_namespaces(kernel.NEWUSER)
                os.write(ready_write, b".")
                os.read(release_read, 1)
            finally:
                os._exit(0)
        os.close(ready_write)
        try:
            if not os.read(ready_read, 1):
                raise PermissionError(errno.EPERM, "user namespaces are not allowed")
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{child}/{name}").write_text(f"0 {self._profile.uid} 1", encoding="ascii")
            return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            for fd in (release_read, release_write, ready_read):
                os.close(fd)
            os.waitpid(child, 0)


def _enter_own_user_namespace() -> None:
    """A user namespace in which we are who we are, and may make the other namespaces."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare_namespaces(kernel.NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text, encoding="ascii")


def _find_accelerators() -> list[str]:
    """Device files and folders of graphics cards and the like, which their modes guard."""
    return [str(path) for pattern in _ACCELERATOR_PATTERNS for path in Path("/dev").glob(pattern)]


def _mount_devices(devices: Mapping[str, int]) -> None:
    """Replace /dev by one that has these devices, terminals of its own, and no disk, console or kernel log."""
    is_folder_by_path = {path: os.path.isdir(path) for path in devices}  # noqa: PTH112
    kernel.mount_filesystem("tmpfs", "/dev", kernel.NOSUID | kernel.NOEXEC, "mode=755,size=64k")
    for path, tree in devices.items():
        _create_mount_point(path, is_folder_by_path[path])
        kernel.attach_mount_tree(tree, path)
        os.close(tree)
    for name in ("pts", "shm"):
        os.mkdir(f"/dev/{name}", 0o755)  # noqa: PTH102
    with contextlib.suppress(OSError):  # inside some containers: then there are no terminals
        kernel.mount_filesystem(
            "devpts", "/dev/pts", kernel.NOSUID | kernel.NOEXEC, "newinstance,ptmxmode=0666,mode=620"
        )
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"/dev/{name}")  # noqa: PTH211
    kernel.set_mount_attributes("/dev", kernel.RDONLY | kernel.NOSUID | kernel.NOEXEC, is_recursive=False)


def _create_mount_point(path: str, is_folder: bool) -> None:
    """Where something can be mounted; below a cover nothing is there yet."""
    mount_point = Path(path)
    if not mount_point.exists():
        (mount_point if is_folder else mount_point.parent).mkdir(0o755, parents=True, exist_ok=True)
        if not is_folder:
            mount_point.touch()


def _lower_limit(resource_kind: int, value: int) -> None:
    hard = resource.getrlimit(resource_kind)[1]
    if value:
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(resource_kind, (limit, limit))


def _reap_children() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


@contextlib.contextmanager
def _lock_file(path: Path) -> Iterator[None]:
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
