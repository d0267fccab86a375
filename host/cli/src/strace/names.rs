//! Numbers by their names.

use heddle_abi::trace::Names;
use linux_raw_sys::general;

use super::tables::{self, Table};

/// The access modes of open(2), which are no flags.
const ACCESS_MODES: [&str; 4] = ["O_RDONLY", "O_WRONLY", "O_RDWR", "O_ACCMODE"];
/// The bits of a socket's type that say which it is.
const SOCKET_TYPE_MASK: u64 = 0xf;
/// The bits of clone(2)'s flags that are a signal.
const CLONE_SIGNAL_MASK: u64 = 0xff;
/// The bits of mmap(2)'s flags that say how a mapping is shared.
const MAPPING_TYPE_MASK: u64 = general::MAP_TYPE as u64;
const AT_FDCWD: i32 = general::AT_FDCWD;
const SIGRTMIN: i32 = 32;
const SIGRTMAX: i32 = 64;

/// The name of a number, or the number.
fn one(table: Table, number: u64) -> String {
    find(table, number).map_or_else(|| format!("{number:#x}"), str::to_owned)
}

fn find(table: Table, number: u64) -> Option<&'static str> {
    table.iter().find(|(_, value)| *value == number).map(|(name, _)| *name)
}

/// The names of flags, behind those in `first`. Bits without a name are a number.
fn flags(first: Vec<String>, table: Table, bits: u64) -> String {
    let mut texts = first;
    let mut rest = bits;
    for (name, value) in table {
        if *value != 0 && rest & value == *value {
            texts.push((*name).to_owned());
            rest &= !value;
        }
    }
    if rest != 0 {
        texts.push(format!("{rest:#x}"));
    }
    if texts.is_empty() { "0".to_owned() } else { texts.join("|") }
}

/// A set of flags without any of another kind.
pub fn bits(table: Table, bits: u64) -> String {
    flags(Vec::new(), table, bits)
}

fn open_flags(word: u64) -> String {
    let mode = ACCESS_MODES[(word & 3) as usize].to_owned();
    let mut rest = word & !3;
    let mut texts = vec![mode];
    // Both hold the bits of another flag.
    for (name, value) in [("O_SYNC", u64::from(general::O_SYNC)), ("O_TMPFILE", tables::guest::O_TMPFILE)] {
        if rest & value == value {
            texts.push(name.to_owned());
            rest &= !value;
        }
    }
    flags(texts, tables::OPEN, rest)
}

/// Whether open(2) with these flags has a third argument.
pub fn may_create(word: u64) -> bool {
    let tmpfile = tables::guest::O_TMPFILE;
    word & u64::from(general::O_CREAT) != 0 || word & tmpfile == tmpfile
}

/// The word of an argument by its names.
pub fn of(set: Names, word: u64) -> String {
    let number = word & u64::from(u32::MAX);
    match set {
        Names::Access if number == 0 => "F_OK".to_owned(),
        Names::Access => bits(tables::ACCESS, number),
        Names::Advice => one(tables::ADVICE, number),
        Names::Arch => one(tables::ARCH, number),
        Names::At => bits(tables::AT, number),
        Names::Clock => match number as i32 {
            clock @ ..0 => clock.to_string(),
            _ => one(tables::CLOCK, number),
        },
        Names::Clone => {
            let signal = word & CLONE_SIGNAL_MASK;
            let mut text = bits(tables::CLONE, word & !CLONE_SIGNAL_MASK);
            if signal != 0 {
                let separator = if text == "0" { String::new() } else { format!("{text}|") };
                text = format!("{separator}{}", self::signal(signal as i32));
            }
            text
        }
        Names::Domain => one(tables::DOMAIN, number),
        Names::EpollOperation => one(tables::EPOLL_OPERATION, number),
        Names::Fcntl => one(tables::FCNTL, number),
        Names::Futex => {
            let options = u64::from(general::FUTEX_PRIVATE_FLAG | general::FUTEX_CLOCK_REALTIME);
            let mut text = one(tables::FUTEX, number & !options);
            for (name, bit) in [
                ("_PRIVATE", general::FUTEX_PRIVATE_FLAG),
                ("|FUTEX_CLOCK_REALTIME", general::FUTEX_CLOCK_REALTIME),
            ] {
                if number & u64::from(bit) != 0 {
                    text.push_str(name);
                }
            }
            text
        }
        Names::Ioctl => one(tables::IOCTL, number),
        Names::Mapping => {
            let kind = match number & MAPPING_TYPE_MASK {
                1 => "MAP_SHARED".to_owned(),
                2 => "MAP_PRIVATE".to_owned(),
                3 => "MAP_SHARED_VALIDATE".to_owned(),
                other => format!("{other:#x}"),
            };
            flags(vec![kind], tables::MAPPING, number & !MAPPING_TYPE_MASK)
        }
        Names::MessageFlags => bits(tables::MESSAGE, number),
        Names::Open => open_flags(number),
        Names::Prctl => one(tables::PRCTL, number),
        Names::Protection if number == 0 => "PROT_NONE".to_owned(),
        Names::Protection => bits(tables::PROTECTION, number),
        Names::Random => bits(tables::RANDOM, number),
        Names::Rename => bits(tables::RENAME, number),
        Names::Resource => one(tables::RESOURCE, number),
        Names::SignalHow => one(tables::SIGNAL_HOW, number),
        Names::SocketLevel => one(tables::SOCKET_LEVEL, number),
        Names::SocketType => {
            let kind = number & SOCKET_TYPE_MASK;
            let first = if kind == 0 { Vec::new() } else { vec![one(tables::SOCKET_TYPE, kind)] };
            let options: Table =
                &[("SOCK_CLOEXEC", general::O_CLOEXEC as u64), ("SOCK_NONBLOCK", general::O_NONBLOCK as u64)];
            flags(first, options, number & !SOCKET_TYPE_MASK)
        }
        Names::Wait => bits(tables::WAIT, number),
        Names::Whence => one(tables::WHENCE, number),
    }
}

/// The descriptor of a directory.
pub fn directory(descriptor: i32) -> String {
    if descriptor == AT_FDCWD { "AT_FDCWD".to_owned() } else { descriptor.to_string() }
}

/// A signal.
pub fn signal(number: i32) -> String {
    match number {
        SIGRTMIN..=SIGRTMAX => format!("SIGRT_{}", number - SIGRTMIN),
        _ => u64::try_from(number)
            .ok()
            .and_then(|number| find(tables::SIGNAL, number))
            .map_or_else(|| number.to_string(), str::to_owned),
    }
}

/// The cause of a signal.
pub fn signal_code(signal: i32, code: i32) -> String {
    const CHILD: [&str; 6] =
        ["CLD_EXITED", "CLD_KILLED", "CLD_DUMPED", "CLD_TRAPPED", "CLD_STOPPED", "CLD_CONTINUED"];
    if signal == general::SIGCHLD as i32
        && let Some(name) = usize::try_from(code - 1).ok().and_then(|index| CHILD.get(index))
    {
        return (*name).to_owned();
    }
    match code {
        0 => "SI_USER".to_owned(),
        0x80 => "SI_KERNEL".to_owned(),
        -1 => "SI_QUEUE".to_owned(),
        -2 => "SI_TIMER".to_owned(),
        -3 => "SI_MESGQ".to_owned(),
        -4 => "SI_ASYNCIO".to_owned(),
        -5 => "SI_SIGIO".to_owned(),
        -6 => "SI_TKILL".to_owned(),
        _ => code.to_string(),
    }
}

/// An error that a call has returned.
pub fn error(number: i32) -> String {
    // A call that a signal interrupts ends with a number that no program sees.
    let (name, text) = match number {
        512 => ("ERESTARTSYS", "To be restarted if SA_RESTART is set"),
        513 => ("ERESTARTNOINTR", "To be restarted"),
        514 => ("ERESTARTNOHAND", "To be restarted if no handler"),
        516 => ("ERESTART_RESTARTBLOCK", "Interrupted by signal"),
        _ => {
            let Some(name) = u64::try_from(number).ok().and_then(|number| find(tables::ERROR, number)) else {
                return format!("-1 (errno {number})");
            };
            let text = std::io::Error::from_raw_os_error(number).to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            return format!("-1 {name} ({text})");
        }
    };
    format!("? {name} ({text})")
}

/// The result of fcntl(2), which is flags for some commands.
pub fn fcntl_result(command: u64, result: u64) -> String {
    match u32::try_from(command) {
        Ok(general::F_GETFL) => format!("{result:#x} (flags {})", open_flags(result)),
        Ok(general::F_GETFD) if result == 1 => "0x1 (flags FD_CLOEXEC)".to_owned(),
        _ => (result as i64).to_string(),
    }
}
