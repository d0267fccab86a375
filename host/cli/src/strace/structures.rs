//! Structures as strace(1) shows them: the fields that one looks for.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use heddle_abi::trace::{BYTES_MAX, LIST_MAX, Names, Structure};

use super::{Call, CopiedMemory, names, quoted, tables};

const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const SIGNALS: i32 = 64;
const UNLIMITED: u64 = u64::MAX;

/// A number within a structure; 0 where it is too short.
fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|part| part.try_into().ok()).unwrap_or([0; N])
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(number(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(number(bytes, at))
}

fn i32_at(bytes: &[u8], at: usize) -> i32 {
    i32::from_le_bytes(number(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(number(bytes, at))
}

fn i64_at(bytes: &[u8], at: usize) -> i64 {
    i64::from_le_bytes(number(bytes, at))
}

/// The structure in `bytes`, which has all of it.
pub fn text(structure: Structure, bytes: &[u8]) -> Option<String> {
    Some(match structure {
        Structure::Int => format!("[{}]", i32_at(bytes, 0)),
        Structure::IntPair => format!("[{}, {}]", i32_at(bytes, 0), i32_at(bytes, 4)),
        Structure::WaitStatus => format!("[{}]", wait_status(i32_at(bytes, 0))),
        Structure::Timespec => timespec(bytes),
        Structure::TimespecPair => format!("[{}, {}]", timespec(bytes), timespec(bytes.get(16..)?)),
        Structure::TimerSpec => {
            format!("{{it_interval={}, it_value={}}}", timespec(bytes), timespec(bytes.get(16..)?))
        }
        Structure::Timeval => format!("{{tv_sec={}, tv_usec={}}}", i64_at(bytes, 0), i64_at(bytes, 8)),
        Structure::Limit => {
            format!("{{rlim_cur={}, rlim_max={}}}", limit(u64_at(bytes, 0)), limit(u64_at(bytes, 8)))
        }
        Structure::SignalSet => signal_set(u64_at(bytes, 0)),
        Structure::SignalAction => format!(
            "{{sa_handler={}, sa_mask={}, sa_flags={}}}",
            match u64_at(bytes, 0) {
                0 => "SIG_DFL".to_owned(),
                1 => "SIG_IGN".to_owned(),
                handler => format!("{handler:#x}"),
            },
            signal_set(u64_at(bytes, 24)),
            names::bits(tables::SIGNAL_ACTION, u64_at(bytes, 8)),
        ),
        Structure::EpollEvent => event(bytes),
        Structure::Stat => stat(u32_at(bytes, 24), u64_at(bytes, 48), u64_at(bytes, 40)),
        Structure::Statx => stat(u16_at(bytes, 28).into(), u64_at(bytes, 40), 0),
        Structure::CloneArgs => format!(
            "{{flags={}, exit_signal={}, stack={:#x}, stack_size={:#x}}}",
            names::bits(tables::CLONE, u64_at(bytes, 0)),
            names::signal(u64_at(bytes, 32) as i32),
            u64_at(bytes, 40),
            u64_at(bytes, 48),
        ),
    })
}

fn timespec(bytes: &[u8]) -> String {
    format!("{{tv_sec={}, tv_nsec={}}}", i64_at(bytes, 0), i64_at(bytes, 8))
}

fn limit(value: u64) -> String {
    if value == UNLIMITED { "RLIM64_INFINITY".to_owned() } else { value.to_string() }
}

fn wait_status(status: i32) -> String {
    match (status & 0x7f, status >> 8 & 0xff) {
        (0, code) => format!("{{WIFEXITED(s) && WEXITSTATUS(s) == {code}}}"),
        (0x7f, signal) if status == 0xffff => format!("{{WIFCONTINUED(s)}} /* {signal:#x} */"),
        (0x7f, signal) => format!("{{WIFSTOPPED(s) && WSTOPSIG(s) == {}}}", names::signal(signal)),
        (signal, _) => format!("{{WIFSIGNALED(s) && WTERMSIG(s) == {}}}", names::signal(signal)),
    }
}

/// The signals of a set; those outside of it where they are fewer.
fn signal_set(bits: u64) -> String {
    let list = |bits: u64| {
        let signals = (1..=SIGNALS).filter(|signal| bits >> (signal - 1) & 1 == 1);
        let texts: Vec<String> =
            signals.map(|signal| names::signal(signal).trim_start_matches("SIG").to_owned()).collect();
        texts.join(" ")
    };
    if bits.count_ones() > 32 { format!("~[{}]", list(!bits)) } else { format!("[{}]", list(bits)) }
}

/// The type, the permissions and the size of a file, or the numbers of a device.
fn stat(mode: u32, size: u64, device: u64) -> String {
    let kind = match mode & 0o170_000 {
        0o010_000 => "S_IFIFO",
        0o020_000 => "S_IFCHR",
        0o040_000 => "S_IFDIR",
        0o060_000 => "S_IFBLK",
        0o100_000 => "S_IFREG",
        0o120_000 => "S_IFLNK",
        0o140_000 => "S_IFSOCK",
        _ => "0",
    };
    let permissions = mode & 0o7777;
    match kind {
        "S_IFCHR" | "S_IFBLK" => {
            let (major, minor) = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xfff00);
            format!("{{st_mode={kind}|0{permissions:03o}, st_rdev=makedev({major:#x}, {minor:#x}), ...}}")
        }
        _ => format!("{{st_mode={kind}|0{permissions:03o}, st_size={size}, ...}}"),
    }
}

fn event(bytes: &[u8]) -> String {
    format!(
        "{{events={}, data={:#x}}}",
        names::bits(tables::EPOLL_EVENT, u32_at(bytes, 0).into()),
        u64_at(bytes, 4)
    )
}

/// Events of epoll.
pub fn events(memory: &CopiedMemory, address: u64, count: u64) -> Option<String> {
    if count == 0 {
        return Some("[]".to_owned());
    }
    let size = Structure::EpollEvent.size();
    let bytes = memory.bytes(address, size * usize::try_from(count).ok()?.min(LIST_MAX))?;
    let texts: Vec<String> = bytes.chunks_exact(size).map(event).collect();
    Some(format!("[{}]", texts.join(", ")))
}

/// Descriptors of poll(2).
pub fn poll(memory: &CopiedMemory, address: u64, count: u64) -> Option<String> {
    let bytes = memory.bytes(address, 8 * usize::try_from(count).ok()?.min(LIST_MAX))?;
    let mut texts = Vec::new();
    for entry in bytes.chunks_exact(8) {
        let events = |at: usize| names::bits(tables::POLL_EVENT, u16_at(entry, at).into());
        let mut text = format!("{{fd={}, events={}", i32_at(entry, 0), events(4));
        if u16_at(entry, 6) != 0 {
            let _ = write!(text, ", revents={}", events(6));
        }
        texts.push(text + "}");
    }
    Some(format!("[{}]", texts.join(", ")))
}

/// An address of a socket.
pub fn address(bytes: &[u8]) -> Option<String> {
    let family = u16_at(bytes, 0);
    if bytes.len() < 2 {
        return None;
    }
    let port = u16::from_be_bytes(number(bytes, 2));
    Some(match family {
        AF_UNIX => {
            let path = bytes.get(2..)?;
            let (mark, path) = match path.split_first() {
                Some((0, name)) => ("@", name),
                _ => ("", path),
            };
            let end = path.iter().position(|&byte| byte == 0).unwrap_or(path.len());
            format!("{{sa_family=AF_UNIX, sun_path={mark}{}}}", quoted(&path[..end]))
        }
        AF_INET => {
            let host = Ipv4Addr::from(number::<4>(bytes, 4));
            format!("{{sa_family=AF_INET, sin_port=htons({port}), sin_addr=inet_addr(\"{host}\")}}")
        }
        AF_INET6 => {
            let host = Ipv6Addr::from(number::<16>(bytes, 8));
            format!("{{sa_family=AF_INET6, sin6_port=htons({port}), sin6_addr=\"{host}\"}}")
        }
        other => format!("{{sa_family={}, ...}}", names::of(Names::Domain, other.into())),
    })
}

/// A msghdr, of whose buffers `filled` bytes mean anything.
pub fn message(call: &Call<'_>, at: u64, filled: u64) -> Option<String> {
    let header = call.memory.whole(at, heddle_abi::trace::MESSAGE_BYTES)?;
    let (name, name_bytes) = (u64_at(&header, 0), u32_at(&header, 8));
    let (vectors, count, control) = (u64_at(&header, 16), u64_at(&header, 24), u64_at(&header, 40));
    let name = match name {
        0 => "NULL".to_owned(),
        _ => {
            let bytes = call.memory.bytes(name, (name_bytes as usize).min(BYTES_MAX));
            bytes.and_then(|bytes| address(&bytes)).unwrap_or_else(|| format!("{name:#x}"))
        }
    };
    let parts = call.vectors(vectors, count, filled).unwrap_or_else(|| format!("{vectors:#x}"));
    Some(format!(
        "{{msg_name={name}, msg_namelen={name_bytes}, msg_iov={parts}, msg_iovlen={count}, msg_controllen={control}, \
         msg_flags={}}}",
        names::bits(tables::MESSAGE, u32_at(&header, 48).into())
    ))
}
