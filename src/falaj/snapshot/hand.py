"""Writing small files, each whole or not at all; and, run as a program, doing so beside another process.

A file is given its name when its bytes are in it, so whoever is killed leaves no half one. Nothing waits for the disk:
what a failure of the machine itself cuts short no longer has the stamp that was noted of it.

Of thousands of small files the bytes are the least: to make, to name and to look at each is work of the kernel's, and
while a thread of Python waits for that the others get in its way. So a checkout hands them to processes of their own
(snapshot/scribes.py). This file is all that such a process loads: the standard library, and nothing of the house. It
gets bytes that were checked, in memory that both see, and open folders; it never sees a path, a key or a ticket.
"""

import errno
import mmap
import os
import signal
import socket
import struct
import sys

BATCH_FILES, BATCH_FOLDERS = 256, 32
"""The most that one message tells of; with the longest names it stays below what a socket takes at once."""
SLOT_BYTES, SLOTS = 1 << 20, 6
"""The shared memory: what one message may tell of, and how many may be under way."""
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMELESS = os.O_WRONLY | getattr(os, "O_TMPFILE", os.O_DIRECTORY) | os.O_CLOEXEC
"""Where there are no such files, what opens nothing."""
STAMP = struct.Struct("<QqqQI")
"""As snapshot/folder_scan.py stamps a file."""
ORDER = struct.Struct("<HHIIB")
"""Of one file: which of the folders, the mode, where its bytes begin and end, how long the name is that follows."""
FAILED = struct.Struct("<iI")
"""What the system said, and of which file; an answer of stamps is never as short."""
_MESSAGE_BYTES = BATCH_FILES * (ORDER.size + 255)


def write_file(inbox: int, new: bytes, there: tuple[int, bytes], mode: int, data: bytes | memoryview) -> os.stat_result:
    """Write a new file under no name, or under one of the inbox, then put it in its place; what it is now."""
    try:
        return _write_nameless(there, mode, data)
    except FileExistsError:
        raise
    except OSError:  # there are no such files here; or what is wrong is wrong with any, and told by the other way
        return replace_file(inbox, new, there, mode, data, b"")


def put_in_place(inbox: int, new: bytes, there: tuple[int, bytes], own: bytes) -> os.stat_result:
    """Give a whole file of the inbox its folder and its name; what it is now. FileExistsError where something has that
    name: but for what is ours and has the stamp `own` still, which is replaced."""
    folder, name = there
    try:
        if own or not _linked(inbox, new, there):
            _check_own(there, own)
            os.rename(new, name, src_dir_fd=inbox, dst_dir_fd=folder)
    except OSError:
        os.unlink(new, dir_fd=inbox)
        raise
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def stamp_of(found: os.stat_result) -> bytes:
    """What tells a file that somebody wrote since."""
    return STAMP.pack(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_mode)


def write_at(fd: int, data: bytes | memoryview, at: int) -> None:
    """Write all of it."""
    done = os.pwrite(fd, data, at)
    while done < len(data):
        done += os.pwrite(fd, memoryview(data)[done:], at + done)


def serve(line: socket.socket, inbox: tuple[int, bytes], shared: memoryview) -> None:
    """Do what messages ask for until there are no more: whoever sends them has ended then."""
    while True:
        message, folders, _, _ = socket.recv_fds(line, _MESSAGE_BYTES, BATCH_FOLDERS)
        if not message:
            return
        try:
            line.send(_obey(message, folders, inbox, shared))
        finally:
            for folder in folders:
                os.close(folder)


def _linked(inbox: int, new: bytes, there: tuple[int, bytes]) -> bool:
    """Name it where nothing has that name, which a rename would take away; False where no file has two names."""
    try:
        os.link(new, there[1], src_dir_fd=inbox, dst_dir_fd=there[0])
    except FileExistsError:
        raise
    except OSError:
        return False
    os.unlink(new, dir_fd=inbox)
    return True


def _check_own(there: tuple[int, bytes], own: bytes) -> None:
    try:
        now = stamp_of(os.stat(there[1], dir_fd=there[0], follow_symlinks=False))
    except FileNotFoundError:
        return
    if now != own:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), there[1])


def _write_nameless(there: tuple[int, bytes], mode: int, data: bytes | memoryview) -> os.stat_result:
    """To name a file once is a third less of the kernel's work than twice, and writers do not meet in the inbox."""
    folder, name = there
    fd = os.open(b".", _NAMELESS, mode, dir_fd=folder)
    try:
        write_at(fd, data, 0)
        os.link(b"/proc/self/fd/%d" % fd, name, dst_dir_fd=folder)
        return os.fstat(fd)
    finally:
        os.close(fd)


def replace_file(
    inbox: int, new: bytes, there: tuple[int, bytes], mode: int, data: bytes | memoryview, own: bytes
) -> os.stat_result:
    """Write a file under a name of the inbox, then put it in its place."""
    fd = os.open(new, NEW, mode, dir_fd=inbox)  # where the name is taken the file is somebody's, and stays
    try:
        write_at(fd, data, 0)
    except OSError:
        os.unlink(new, dir_fd=inbox)
        raise
    finally:
        os.close(fd)
    return put_in_place(inbox, new, there, own)


def _obey(message: bytes, folders: list[int], inbox: tuple[int, bytes], shared: memoryview) -> bytes:
    stamps, at = list[bytes](), 0
    try:
        while at < len(message):
            folder, mode, begin, end, length = ORDER.unpack_from(message, at)
            at += ORDER.size + length
            there = (folders[folder], message[at - length : at])
            now = write_file(*inbox, there, mode, shared[begin:end])
            stamps.append(stamp_of(now))
    except OSError as error:
        return FAILED.pack(error.errno or 0, len(stamps))
    return b"".join(stamps)


def main() -> None:
    """Serve on the descriptors that were given: the line, the inbox, the shared memory; and under the name."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us hears it too, and ends us
    line, inbox, shared = map(int, sys.argv[1:4])
    new = os.fsencode(sys.argv[4])
    with mmap.mmap(shared, SLOTS * SLOT_BYTES) as memory, memoryview(memory) as view:
        serve(socket.socket(fileno=line), (inbox, new), view)
        os._exit(0)  # somebody waits for our end, and there is nothing to tidy up


if __name__ == "__main__":
    main()
