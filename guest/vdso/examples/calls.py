#!/usr/bin/env python3
"""Asynchronous system calls from Python: what calls.c does, by ctypes.

Three coroutines of different levels read from pipes, each by a call that goes on by itself; a fourth sleeps, and then
writes to all three by one entry into the kernel. Prints `written 3`, and then `urgent`, `ordinary` and `background`:
the readers run in the order of their levels. It runs in Heddle.
"""

import ctypes
import os
import sys

AT_HEDDLE_PROCESS = 0x48656401
SUBMIT = 0x48440000
WAITS, DONE = 0, 1  # what a coroutine's function returns
CALL_DONE = 1  # what has become of a call
NO_RESULT = -(2**63)
READ, WRITE, NANOSLEEP = 0, 1, 35  # x86-64
RING_ORDER = 4


class Info(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint64),
        ("kind", ctypes.c_uint32),
        ("level", ctypes.c_uint8),
        ("state", ctypes.c_uint8),
        ("reserved", ctypes.c_uint16),
        ("polls", ctypes.c_uint64),
        ("since_ns", ctypes.c_uint64),
        ("delayed_ns", ctypes.c_uint64),
    ]


class Coroutine(ctypes.Structure):
    _fields_ = [("poll", ctypes.c_void_p), ("done", ctypes.c_void_p), ("info", Info)]


class Call(ctypes.Structure):
    _fields_ = [
        ("number", ctypes.c_uint32),
        ("level", ctypes.c_uint32),
        ("cookie", ctypes.c_uint64),
        ("coroutine", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 6),
        ("state", ctypes.c_uint64),
        ("outcome", ctypes.c_uint64),
    ]


Poll = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.POINTER(Coroutine))
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.getauxval.restype = ctypes.c_ulong
libc.getauxval.argtypes = [ctypes.c_ulong]


class Scheduler:
    """The vDSO's scheduler with one executor, which is the calling thread, and a ring."""

    def __init__(self, coroutines):
        try:
            vdso = ctypes.CDLL("linux-vdso.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
            functions = {name: getattr(vdso, f"__heddle_{name}") for name in
                         ("scheduler_bytes", "scheduler_init", "enter", "leave", "spawn", "run", "ring")}
        except (OSError, AttributeError):
            sys.exit("this is not Heddle")
        pointer, word, half = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32
        for name, result, arguments in (
            ("scheduler_bytes", ctypes.c_size_t, [half, half]),
            ("scheduler_init", pointer, [pointer, ctypes.c_size_t, half, half, pointer]),
            ("enter", ctypes.c_int, [pointer, half]),
            ("leave", None, [pointer, half]),
            ("spawn", word, [pointer, half, pointer, half]),
            ("run", word, [pointer, half]),
            ("ring", ctypes.c_int, [pointer, pointer, half]),
        ):
            functions[name].restype, functions[name].argtypes = result, arguments
        self.functions = functions
        size = functions["scheduler_bytes"](1, coroutines)
        self.memory, start = self.aligned(size)
        pages = libc.getauxval(AT_HEDDLE_PROCESS)
        self.raw = functions["scheduler_init"](start, size, 1, coroutines, pages)
        assert self.raw, "no scheduler"
        self.results, start = self.aligned(128 + (32 << RING_ORDER))
        self.check(functions["enter"](self.raw, 0))
        self.check(functions["ring"](self.raw, start, RING_ORDER))
        self.kept = []

    @staticmethod
    def aligned(size):
        """Zeroed memory, and the address in it that is a multiple of 128."""
        memory = ctypes.create_string_buffer(size + 128)
        return memory, ctypes.addressof(memory) + -ctypes.addressof(memory) % 128

    @staticmethod
    def check(result):
        if result < 0:
            raise OSError(-result, os.strerror(-result))

    def spawn(self, level, generator):
        """Makes a coroutine of a generator that yields calls, and is sent their results."""
        result = ctypes.c_int64(0)
        call = Call()
        has_begun = False

        def poll(pointer):
            nonlocal has_begun
            info = pointer.contents.info
            while True:
                if result.value == NO_RESULT:
                    return WAITS
                try:
                    number, *arguments = generator.send(result.value if has_begun else None)
                except StopIteration:
                    return DONE
                has_begun = True
                result.value = NO_RESULT
                arguments += [0] * (6 - len(arguments))
                call.__init__(number, info.level, ctypes.addressof(result), info.id, (ctypes.c_uint64 * 6)(*arguments))
                if libc.syscall(ctypes.c_long(SUBMIT), ctypes.byref(call), ctypes.c_size_t(1)) != 1:
                    result.value = -ctypes.get_errno()
                elif call.state == CALL_DONE:
                    result.value = ctypes.c_int64(call.outcome).value

        function = Poll(poll)
        coroutine = Coroutine(poll=ctypes.cast(function, ctypes.c_void_p))
        self.kept.append((function, coroutine, generator))
        if not self.functions["spawn"](self.raw, 0, ctypes.addressof(coroutine), level):
            raise OSError("too many coroutines")

    def run(self):
        turns = self.functions["run"](self.raw, 0)
        self.functions["leave"](self.raw, 0)
        return turns


def read_once(descriptor):
    buffer = ctypes.create_string_buffer(32)
    count = yield READ, descriptor, ctypes.addressof(buffer), len(buffer)
    print(buffer.raw[:count].decode(), flush=True)


def write_all(pipes):
    delay = (ctypes.c_long * 2)(0, 1_000_000)
    yield NANOSLEEP, ctypes.addressof(delay), 0
    calls = (Call * len(pipes))()
    texts = [ctypes.create_string_buffer(name.encode()) for name in pipes]
    for call, text, (_, end) in zip(calls, texts, pipes.values()):
        call.number, call.level, call.arguments = WRITE, 60, (end, ctypes.addressof(text), len(text) - 1)
    started = libc.syscall(ctypes.c_long(SUBMIT), calls, ctypes.c_size_t(len(calls)))
    print("written", sum(call.state == CALL_DONE for call in calls[:started]), flush=True)


def main():
    scheduler = Scheduler(8)
    pipes = {}
    for name, level in (("background", 50), ("ordinary", 32), ("urgent", 10)):
        pipes[name] = os.pipe()
        scheduler.spawn(level, read_once(pipes[name][0]))
    scheduler.spawn(60, write_all(pipes))
    scheduler.run()


if __name__ == "__main__":
    main()
