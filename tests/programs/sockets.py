# Random calls on sockets, to be run on both kernels with the same numbers and compared:
#     ./heddle run [--kernel linux] --deb python3 --share tests/programs:/opt/t -- python3 /opt/t/sockets.py 0 300
# Each line is a call and its result; the calls of a sequence are chosen by its number.
import ctypes, errno, os, random, select, socket as S, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
LENGTH = 40
# Sequences that come to where STATUS.md says that the kernels differ.
SKIPPED = {67, 73, 89, 159, 176, 205, 257, 268}
FIRST, LAST = int(sys.argv[1]), int(sys.argv[2])
OPTIONS = (
    [(S.SOL_SOCKET, n) for n in (1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 14, 16, 18, 19, 30, 34, 36, 38, 39, 42, 43, 44)]
    + [(S.SOL_SOCKET, n) for n in (45, 99)]
    + [(S.IPPROTO_TCP, n) for n in (1, 3, 4, 5, 6, 7, 9, 12, 18, 25, 99)]
    + [(S.IPPROTO_IP, n) for n in (1, 2, 6, 7, 8, 10, 11, 12, 13, 15, 24, 33, 34, 99)]
    + [(S.IPPROTO_IPV6, n) for n in (16, 18, 19, 25, 26, 49, 51, 66, 67, 99)]
)
VALUES = [-1, 0, 1, 2, 3, 7, 64, 100, 255, 256, 1000, 5000, 100000]
OPERATIONS = (
    "bind bind listen listen connect connect connect accept accept send send send sendto recv recv recv recv shutdown "
    "close poll poll poll name peer ioctl error unspec set get epoll wait pair message"
).split()
NAMES = (("IN", 1), ("PRI", 2), ("OUT", 4), ("ERR", 8), ("HUP", 16), ("NVAL", 32), ("RDHUP", 0x2000))

def call(name, *arguments):
    ctypes.set_errno(0)
    result = getattr(libc, name)(*arguments)
    return result if result >= 0 else "-" + errno.errorcode.get(ctypes.get_errno(), "?")

def encode(family, port, is_any=False):
    if family == "unix": return struct.pack("=H", S.AF_UNIX) + b"\0h%d" % port
    if family == "short": return b"\2\0\1\2"
    if family == "unspec": return struct.pack("=H14x", 0)
    if family == "in":
        address = bytes(4) if is_any else b"\x7f\0\0\1"
        return struct.pack("=H", 2) + struct.pack(">H", port) + address + bytes(8)
    address = "::ffff:127.0.0.1" if family == "map" else "::" if is_any else "::1"
    head = struct.pack("=H", S.AF_INET6) + struct.pack(">HI", port, 0)
    return head + S.inet_pton(S.AF_INET6, address) + bytes(4)

def decode(raw):
    if raw[:2] == b"\1\0": return raw.hex()
    if len(raw) < 16: return raw[:2].hex()
    family, port = struct.unpack("=H", raw[:2])[0], struct.unpack(">H", raw[2:4])[0]
    if family not in (S.AF_INET, S.AF_INET6): return "%d:%s" % (family, raw[2:].hex())
    address = raw[4:8] if family == S.AF_INET else raw[8:24]
    return "%d:%s:%s" % (family, address.hex(), "some" if port >= 32768 else port)

def events(ready):
    return "|".join(name for name, bit in NAMES if ready & bit) or "0"

class Sequence:
    def __init__(self, seed):
        self.choose = random.Random(seed)
        self.base, self.sockets, self.watching = 2000 + seed * 4 % 28000, [], None
        self.style = self.choose.choice(["tcp", "tcp", "mixed", "unix", "udp", "options"])
        for self.step in range(LENGTH):
            if not self.sockets or self.choose.random() < 0.10:
                self.make()
                continue
            index = self.choose.randrange(len(self.sockets))
            self.me, (self.fd, self.family, self.kind) = "s%d" % index, self.sockets[index]
            operations = "set get set get close bind connect".split() if self.style == "options" else OPERATIONS
            operation = self.choose.choice(operations)
            getattr(self, operation)()
            if operation == "close" and self.closed: self.sockets[index] = (-1, self.family, self.kind)
        for fd, *_ in self.sockets:
            if fd >= 0: os.close(fd)
        if self.watching: self.watching.close()

    def note(self, *words): print(self.step, self.me, self.family, self.kind, *words)

    def add(self, fd, family, kind):
        self.sockets.append((fd, family, kind))
        call("fcntl", fd, 4, os.O_RDWR | os.O_NONBLOCK)

    def make(self):
        families = {"tcp": ["in", "in", "in6"], "udp": ["in", "in6"], "unix": ["unix"]}
        family = self.choose.choice(families.get(self.style, ["in", "in6", "unix"]))
        kinds = {"tcp": [1], "udp": [2]}.get(self.style) or ([1, 1, 2, 5] if family == "unix" else [1, 1, 2])
        kind = self.choose.choice(kinds)
        self.add(call("socket", {"in": 2, "in6": 10, "unix": 1}[family], kind, 0), family, kind)

    def target(self):
        family = self.family
        if self.choose.random() < 0.05: family = self.choose.choice(["unix", "unspec", "short"])
        if family == "in6" and self.style == "tcp" and self.choose.random() < 0.15: family = "map"
        return encode(family, self.base + self.choose.randrange(3), self.choose.random() < 0.2)

    def with_target(self, name):
        target = self.target()
        self.note(name, decode(target), call(name, self.fd, target, len(target)))

    def bind(self): self.with_target("bind")
    def connect(self): self.with_target("connect")

    def unspec(self):
        if self.choose.random() < 0.4:
            self.note("connect nobody", call("connect", self.fd, encode("unspec", 0), 16))

    def listen(self):
        backlog = self.choose.choice([0, 1, 5, -1])
        self.note("listen", backlog, call("listen", self.fd, backlog))

    def accept(self):
        name, size = ctypes.create_string_buffer(128), ctypes.c_uint(128)
        result = call("accept4", self.fd, name, ctypes.byref(size), 0)
        is_made = isinstance(result, int)
        self.note("accept", decode(name.raw[:size.value]) if is_made else result)
        if is_made: self.add(result, self.family, self.kind)

    def send(self):
        count, flags = self.choose.choice([0, 1, 10, 100, 1000]), self.choose.choice([0, 0, 0, 0x40, 1, 0x8000, 0x80])
        if self.family == "unix": flags &= ~1
        if self.kind == 2: flags &= ~0x8001
        text = bytes([65 + self.step % 26]) * count
        self.note("send", count, hex(flags), call("send", self.fd, text, count, flags | 0x4000))

    def sendto(self):
        target, count = self.target(), self.choose.choice([0, 1, 50])
        result = call("sendto", self.fd, b"t" * count, count, 0x4000, target, len(target))
        self.note("sendto", decode(target), count, result)

    def recv(self):
        count = self.choose.choice([0, 1, 5, 64, 5000])
        flags = self.choose.choice([0, 0, 0, 0, 2, 2, 0x20, 0x100, 0x140, 1, 3, 0x2000])
        if self.family == "unix": flags &= ~0x2001
        buffer, name = ctypes.create_string_buffer(count + 1), ctypes.create_string_buffer(128)
        size = ctypes.c_uint(128)
        result = call("recvfrom", self.fd, buffer, count, flags | 0x40, name, ctypes.byref(size))
        more = ()
        if isinstance(result, int) and not flags & 0x20:
            more = buffer.raw[:min(result, count)][:3], size.value, decode(name.raw[:min(size.value, 128)])
        self.note("recv", count, hex(flags), result, *more)

    def message(self):
        count = self.choose.choice([1, 20, 300])
        buffer, control = ctypes.create_string_buffer(count), ctypes.create_string_buffer(256)
        vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), count)
        header = (ctypes.c_size_t * 7)(0, 0, ctypes.addressof(vector), 1, ctypes.addressof(control), 256, 0)
        result = call("recvmsg", self.fd, header, 0x40)
        self.note("recvmsg", count, result, *((header[5], hex(header[6])) if isinstance(result, int) else ()))

    def shutdown(self):
        how = self.choose.choice([0, 1, 2, 0, 1, 2, 3])
        self.note("shutdown", how, call("shutdown", self.fd, how))

    def close(self):
        self.closed = self.choose.random() < 0.5
        if not self.closed: return
        if self.choose.random() < 0.3: call("setsockopt", self.fd, 1, 13, struct.pack("ii", 1, 0), 8)
        self.note("close", call("close", self.fd))

    def poll(self):
        poll, open_ones = select.poll(), [(index, fd) for index, (fd, *_) in enumerate(self.sockets) if fd >= 0]
        for _, fd in open_ones: poll.register(fd, 0x2007)
        ready = dict(poll.poll(0))
        print(self.step, "poll", *("s%d:%s" % (index, events(ready.get(fd, 0))) for index, fd in open_ones))

    def name(self): self.address("getsockname")
    def peer(self): self.address("getpeername")

    def address(self, which):
        room = self.choose.choice([128, 128, 128, 16, 4, 0])
        name, size = ctypes.create_string_buffer(128), ctypes.c_uint(room)
        result = call(which, self.fd, name, ctypes.byref(size))
        self.note(which, result, size.value, decode(name.raw[:min(size.value, room)]) if result == 0 else "")

    def ioctl(self):
        value, request = ctypes.c_int(-1), self.choose.choice([0x541B, 0x8905])
        self.note("ioctl", hex(request), call("ioctl", self.fd, request, ctypes.byref(value)), value.value)

    def error(self): self.get((1, 4))

    def get(self, which=None):
        level, option = which or self.choose.choice(OPTIONS)
        room = self.choose.choice([4, 4, 4, 4, 1, 0, 8])
        value, size = ctypes.create_string_buffer(64), ctypes.c_uint(room)
        result = call("getsockopt", self.fd, level, option, value, ctypes.byref(size))
        shown = value.raw[:min(8, size.value)].hex() if result == 0 else ""
        self.note("getsockopt", level, option, room, result, size.value, shown)

    def set(self):
        (level, option), room = self.choose.choice(OPTIONS), self.choose.choice([4, 4, 4, 4, 1, 0, 8])
        value = self.choose.choice(VALUES)
        result = call("setsockopt", self.fd, level, option, struct.pack("ii", value, 0), room)
        self.note("setsockopt", level, option, value, room, result)

    def epoll(self):
        if not self.watching: self.watching = select.epoll()
        try:
            self.watching.register(self.fd, 0x2007)
            self.note("epoll")
        except (OSError, ValueError) as error:
            self.note("epoll", getattr(error, "errno", "closed"))

    def wait(self):
        if self.watching:
            found = dict(self.watching.poll(0))
            shown = ((index, fd) for index, (fd, *_) in enumerate(self.sockets) if fd >= 0 and fd in found)
            print(self.step, "epoll", *("s%d:%s" % (index, events(found[fd])) for index, fd in shown))

    def pair(self):
        if self.style not in ("unix", "mixed"): return
        two, kind = (ctypes.c_int * 2)(), self.choose.choice([1, 2, 5])
        if call("socketpair", 1, kind, 0, two) == 0:
            for fd in two: self.add(fd, "unix", kind)

for seed in range(FIRST, LAST):
    if seed in SKIPPED: continue
    print("== sequence", seed)
    Sequence(seed)
