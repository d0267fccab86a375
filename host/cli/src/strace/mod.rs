//! The lines of `--strace`: the kernel's records of system calls (`heddle_abi::trace`) in strace(1)'s form.

mod names;
mod structures;
mod tables;

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::io::{self, Write};

use heddle_abi::trace::{self, Argument, LIST_MAX, Structure, VECTOR_BYTES};

use crate::log::Log;

/// The text that precedes a record in a line of the log.
const MARK: &str = " strace ";
/// The most bytes of a buffer that are shown.
const SHOWN_MAX: usize = 32;
/// The words from here up are errors.
const ERROR_MIN: u64 = 4096_u64.wrapping_neg();
const NS_PER_S: u64 = 1_000_000_000;

/// The system calls in a log, passed on while the machine runs.
pub struct Trace<'a> {
    log: &'a mut Log,
    output: Box<dyn Write>,
    prefix: &'static str,
    start_ns: Option<u64>,
    threads: HashSet<String>,
}

impl<'a> Trace<'a> {
    /// Passes the system calls in `log` on to `output`, each with this prefix.
    #[must_use]
    pub fn new(log: &'a mut Log, output: Box<dyn Write>, prefix: &'static str) -> Self {
        Self { log, output, prefix, start_ns: None, threads: HashSet::new() }
    }

    /// Passes on what is new.
    ///
    /// # Errors
    /// The error of writing.
    pub fn show(&mut self) -> io::Result<()> {
        for line in self.log.new_lines() {
            let Some(record) = line.split_once(MARK).and_then(|(_, text)| CallRecord::parse(text)) else {
                continue;
            };
            let start_ns = *self.start_ns.get_or_insert(record.start_ns);
            let passed_us = record.start_ns.saturating_sub(start_ns) / 1000;
            self.threads.insert(record.tid.to_owned());
            // As strace does, the thread is named as soon as there is another.
            let thread =
                if self.threads.len() > 1 { format!("[pid {:>3}] ", record.tid) } else { String::new() };
            let (seconds, us) = (passed_us / 1_000_000, passed_us % 1_000_000);
            writeln!(self.output, "{}{thread}{seconds}.{us:06} {}", self.prefix, record.describe())?;
        }
        self.output.flush()
    }
}

/// CopiedMemory of a program as far as a record holds it: pieces by their addresses.
#[derive(Debug, Default)]
struct CopiedMemory(BTreeMap<u64, Vec<u8>>);

impl CopiedMemory {
    fn parse(text: &str) -> Self {
        let mut memory = Self::default();
        for piece in text.split(',').filter(|piece| !piece.is_empty()) {
            if let Some((address, bytes)) = piece.split_once(':')
                && let Ok(address) = u64::from_str_radix(address, 16)
                && let Some(bytes) = bytes_of(bytes)
            {
                // Of two copies of one place the later is what the call has written.
                memory.0.insert(address, bytes);
            }
        }
        memory
    }

    /// The bytes from an address on, up to `length`, as far as they are known: `None` if the first is not.
    fn bytes(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        let mut found = Vec::new();
        let mut at = address;
        while found.len() < length
            && let Some((start, piece)) = self.0.range(..=at).next_back()
            && let Some(rest) = piece.get(usize::try_from(at - start).unwrap_or(usize::MAX)..)
            && !rest.is_empty()
        {
            found.extend_from_slice(rest);
            at += rest.len() as u64;
        }
        found.truncate(length);
        (!found.is_empty() || length == 0).then_some(found)
    }

    /// All of so many bytes.
    fn whole(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        self.bytes(address, length).filter(|bytes| bytes.len() == length)
    }

    fn word(&self, address: u64) -> Option<u64> {
        Some(u64::from_le_bytes(self.whole(address, 8)?.try_into().ok()?))
    }

    /// A string, quoted.
    fn text(&self, address: u64) -> Option<String> {
        let bytes = self.bytes(address, trace::TEXT_MAX)?;
        let end = bytes.iter().position(|&byte| byte == 0);
        let dots = if end.is_none() { "..." } else { "" };
        Some(format!("{}{dots}", quoted(&bytes[..end.unwrap_or(bytes.len())])))
    }

    /// The start of a buffer with so many bytes, quoted.
    fn buffer(&self, address: u64, length: u64) -> Option<String> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let bytes = self.bytes(address, length.min(SHOWN_MAX))?;
        Some(format!("{}{}", quoted(&bytes), if bytes.len() < length { "..." } else { "" }))
    }
}

fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// Bytes in quotes, as in C.
fn quoted(bytes: &[u8]) -> String {
    let mut text = String::from('"');
    for (index, &byte) in bytes.iter().enumerate() {
        match byte {
            b'"' => text.push_str("\\\""),
            b'\\' => text.push_str("\\\\"),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            0x0b => text.push_str("\\v"),
            0x0c => text.push_str("\\f"),
            b' '..=b'~' => text.push(char::from(byte)),
            // A digit behind it would belong to a shorter form.
            _ if bytes.get(index + 1).is_some_and(u8::is_ascii_digit) => {
                let _ = write!(text, "\\{byte:03o}");
            }
            _ => {
                let _ = write!(text, "\\{byte:o}");
            }
        }
    }
    text.push('"');
    text
}

/// A record of the log.
#[derive(Debug)]
struct CallRecord<'t> {
    tid: &'t str,
    start_ns: u64,
    duration_ns: u64,
    event: Event<'t>,
}

#[derive(Debug)]
enum Event<'t> {
    /// A call with its result, if it has one.
    Call {
        name: &'t str,
        arguments: [u64; 6],
        result: Option<u64>,
        memory: CopiedMemory,
    },
    Signal {
        signal: i32,
        code: i32,
    },
    Exit {
        status: i32,
    },
}

impl<'t> CallRecord<'t> {
    fn parse(text: &'t str) -> Option<Self> {
        let mut words = text.split(' ');
        let tid = words.next()?;
        let start_ns = words.next()?.parse().ok()?;
        let duration_ns = words.next()?.parse().ok()?;
        let event = match words.next()? {
            trace::SIGNAL => {
                Event::Signal { signal: words.next()?.parse().ok()?, code: words.next()?.parse().ok()? }
            }
            trace::EXIT => Event::Exit { status: words.next()?.parse().ok()? },
            name => {
                let mut arguments = [0; 6];
                for argument in &mut arguments {
                    *argument = u64::from_str_radix(words.next()?, 16).ok()?;
                }
                let result = match words.next()? {
                    trace::UNFINISHED => None,
                    result => Some(u64::from_str_radix(result, 16).ok()?),
                };
                Event::Call {
                    name,
                    arguments,
                    result,
                    memory: CopiedMemory::parse(words.next().unwrap_or_default()),
                }
            }
        };
        Some(Self { tid, start_ns, duration_ns, event })
    }

    fn describe(&self) -> String {
        match &self.event {
            Event::Call { name, arguments, result, memory } => {
                let call = Call { name, arguments, result: *result, memory };
                let duration =
                    format!("{}.{:06}", self.duration_ns / NS_PER_S, self.duration_ns % NS_PER_S / 1000);
                match result {
                    // A call that ends the thread has no result that anybody could see.
                    _ if matches!(*name, "exit" | "exit_group") => format!("{} = ?", call.text()),
                    None => format!("{} = ?", call.text()),
                    Some(_) => format!("{} = {} <{duration}>", call.text(), call.outcome()),
                }
            }
            Event::Signal { signal, code } => {
                let name = names::signal(*signal);
                format!("--- {name} {{si_signo={name}, si_code={}}} ---", names::signal_code(*signal, *code))
            }
            Event::Exit { status } => match (status & 0x7f, status >> 8 & 0xff) {
                (0, code) => format!("+++ exited with {code} +++"),
                (signal, _) => {
                    let core = if status & 0x80 != 0 { " (core dumped)" } else { "" };
                    format!("+++ killed by {}{core} +++", names::signal(signal))
                }
            },
        }
    }
}

/// A call to be shown.
struct Call<'t> {
    name: &'t str,
    arguments: &'t [u64; 6],
    result: Option<u64>,
    memory: &'t CopiedMemory,
}

impl Call<'_> {
    fn text(&self) -> String {
        let Some(kinds) = trace::arguments(self.name) else {
            let words = self.arguments.map(|word| format!("{word:#x}"));
            return format!("{}({})", self.name, words.join(", "));
        };
        let shown = kinds.iter().enumerate().filter(|(index, _)| self.is_shown(*index));
        let texts: Vec<String> = shown.map(|(index, kind)| self.argument(index, *kind)).collect();
        format!("{}({})", self.name, texts.join(", "))
    }

    /// Whether an argument means anything: a mode does where a file may be made.
    fn is_shown(&self, index: usize) -> bool {
        let flags = match (self.name, index) {
            ("open", 2) => self.arguments[1],
            ("openat", 3) => self.arguments[2],
            _ => return true,
        };
        names::may_create(flags)
    }

    fn argument(&self, index: usize, kind: Argument) -> String {
        let word = self.arguments[index];
        let failed = self.result.is_none_or(|result| result >= ERROR_MIN);
        let of_memory = |text: Option<String>| match text {
            _ if word == 0 => "NULL".to_owned(),
            Some(text) => text,
            None => format!("{word:#x}"),
        };
        let argument = |index: usize| self.arguments.get(index).copied().unwrap_or(0);
        let memory = self.memory;
        match kind {
            Argument::Hex if word == 0 => "0".to_owned(),
            Argument::Hex => format!("{word:#x}"),
            Argument::Int | Argument::Descriptor => (word as i32).to_string(),
            Argument::Unsigned => word.to_string(),
            Argument::Offset => (word as i64).to_string(),
            Argument::Directory => names::directory(word as i32),
            Argument::Path => of_memory(memory.text(word)),
            Argument::Strings => of_memory(self.strings(word)),
            Argument::Environment => of_memory(self.count(word)),
            Argument::Input(length) => of_memory(memory.buffer(word, argument(length))),
            Argument::Output if failed => of_memory(None),
            Argument::Output => of_memory(memory.buffer(word, self.result.unwrap_or(0))),
            Argument::InputVectors(count) => of_memory(self.vectors(word, argument(count), u64::MAX)),
            Argument::OutputVectors(count) => {
                of_memory(self.vectors(word, argument(count), self.result.unwrap_or(0)))
            }
            Argument::Message => of_memory(structures::message(self, word, u64::MAX)),
            Argument::MessageOut => of_memory(structures::message(self, word, self.result.unwrap_or(0))),
            Argument::Address(length) => {
                let length = usize::try_from(argument(length)).unwrap_or(usize::MAX).min(128);
                of_memory(memory.bytes(word, length).and_then(|bytes| structures::address(&bytes)))
            }
            Argument::AddressOut(_) => {
                of_memory(memory.bytes(word, trace::BYTES_MAX).and_then(|bytes| structures::address(&bytes)))
            }
            Argument::Octal => format!("0{:03o}", word as u32),
            Argument::Signal => names::signal(word as i32),
            Argument::Names(set) => names::of(set, word),
            Argument::In(structure) | Argument::Out(structure) => of_memory(self.structure(structure, word)),
            Argument::Poll(count) => of_memory(structures::poll(memory, word, argument(count))),
            Argument::Events => {
                let count = self.result.filter(|&result| result < ERROR_MIN).unwrap_or(0);
                of_memory(structures::events(memory, word, count))
            }
        }
    }

    fn structure(&self, structure: Structure, address: u64) -> Option<String> {
        structures::text(structure, &self.memory.whole(address, structure.size())?)
    }

    fn strings(&self, list: u64) -> Option<String> {
        let mut texts = Vec::new();
        for index in 0..LIST_MAX as u64 {
            match self.memory.word(list + index * 8) {
                Some(0) => return Some(format!("[{}]", texts.join(", "))),
                Some(text) => texts.push(self.memory.text(text).unwrap_or_else(|| format!("{text:#x}"))),
                None => break,
            }
        }
        texts.push("...".to_owned());
        (texts.len() > 1).then(|| format!("[{}]", texts.join(", ")))
    }

    fn count(&self, list: u64) -> Option<String> {
        self.memory.word(list)?;
        let count = (0..LIST_MAX as u64).find(|index| self.memory.word(list + index * 8) == Some(0));
        let count = count.map_or_else(|| format!("{LIST_MAX} or more"), |count| count.to_string());
        Some(format!("{list:#x} /* {count} vars */"))
    }

    /// Buffers of which `filled` bytes mean anything.
    fn vectors(&self, address: u64, count: u64, mut filled: u64) -> Option<String> {
        let mut texts = Vec::new();
        for index in 0..count.min(LIST_MAX as u64) {
            let at = address + index * VECTOR_BYTES as u64;
            let (base, length) = (self.memory.word(at)?, self.memory.word(at + 8)?);
            let part = length.min(filled);
            filled -= part;
            let bytes = self.memory.buffer(base, part).unwrap_or_else(|| format!("{base:#x}"));
            texts.push(format!("{{iov_base={bytes}, iov_len={length}}}"));
        }
        if count > LIST_MAX as u64 {
            texts.push("...".to_owned());
        }
        Some(format!("[{}]", texts.join(", ")))
    }

    /// The result as strace shows it.
    fn outcome(&self) -> String {
        let result = self.result.unwrap_or(0);
        if result >= ERROR_MIN {
            return names::error(result.wrapping_neg() as i32);
        }
        match self.name {
            "mmap" | "brk" | "mremap" | "shmat" => format!("{result:#x}"),
            "umask" => format!("0{result:03o}"),
            "fcntl" => names::fcntl_result(self.arguments[1], result),
            _ => (result as i64).to_string(),
        }
    }
}

#[cfg(test)]
mod tests;
