//! The name of a core file: `/proc/sys/kernel/core_pattern`, core(5).

use alloc::vec::Vec;
use core::fmt::Write;

use crate::fallible::{AllocError, try_to_vec, try_with_capacity};

/// The most bytes of a pattern, with a final zero.
const PATTERN_BYTES: usize = 128;
/// The most bytes of a name.
const NAME_BYTES: usize = 4095;

/// The template of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    bytes: [u8; PATTERN_BYTES],
    length: usize,
    /// The process's number is added to a name without one: `core_uses_pid`.
    pub adds_pid: bool,
}

/// The facts that a pattern can name.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names say what they are")]
pub struct DumpFacts<'a> {
    pub pid: i32,
    pub tid: i32,
    pub uid: u32,
    pub gid: u32,
    pub signal: i32,
    /// Seconds since the epoch.
    pub time: u64,
    /// `RLIMIT_CORE`.
    pub limit: u64,
    pub host: &'a [u8],
    /// The thread's name.
    pub name: &'a [u8],
    /// The program's path.
    pub path: &'a [u8],
}

impl Pattern {
    /// The pattern at the start.
    #[must_use]
    pub const fn initial() -> Self {
        let mut bytes = [0; PATTERN_BYTES];
        (bytes[0], bytes[1], bytes[2], bytes[3]) = (b'c', b'o', b'r', b'e');
        Self { bytes, length: 4, adds_pid: false }
    }

    /// The pattern as it was set.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Sets the pattern: a line, cut where it is too long. `false`: it names a program to pipe dumps to, of which there
    /// are none.
    #[must_use]
    pub fn set(&mut self, line: &[u8]) -> bool {
        let line = line.split(|&byte| byte == b'\n' || byte == 0).next().unwrap_or_default();
        if line.first() == Some(&b'|') {
            return false;
        }
        self.length = line.len().min(PATTERN_BYTES - 1);
        self.bytes[..self.length].copy_from_slice(&line[..self.length]);
        true
    }

    /// The name of a dump. `None`: it has none, because the pattern is empty, or it is too long.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn expand(&self, facts: &DumpFacts<'_>) -> Result<Option<Vec<u8>>, AllocError> {
        let mut name = Name { bytes: try_with_capacity(NAME_BYTES)?, is_too_long: false };
        let mut has_pid = false;
        let mut letters = self.as_bytes().iter();
        while let Some(&letter) = letters.next() {
            if letter != b'%' {
                name.push(&[letter]);
                continue;
            }
            // A letter that is not known leaves nothing, and so does a mark at the end.
            let Some(&kind) = letters.next() else { break };
            match kind {
                b'%' => name.push(b"%"),
                b'p' | b'P' => {
                    has_pid = true;
                    name.number(facts.pid);
                }
                b'i' | b'I' => name.number(facts.tid),
                b'u' => name.number(facts.uid),
                b'g' => name.number(facts.gid),
                // Others are not dumped.
                b'd' => name.push(b"1"),
                b's' => name.number(facts.signal),
                b't' => name.number(facts.time),
                b'c' => name.number(facts.limit),
                b'h' => name.part(facts.host),
                b'e' => name.part(facts.name),
                b'f' => name.part(facts.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default()),
                b'E' => name.part(facts.path),
                _ => {}
            }
        }
        if self.adds_pid && !has_pid {
            name.push(b".");
            name.number(facts.pid);
        }
        if name.is_too_long || name.bytes.is_empty() {
            return Ok(None);
        }
        try_to_vec(&name.bytes).map(Some)
    }
}

/// A name that grows in the room that it has.
struct Name {
    bytes: Vec<u8>,
    is_too_long: bool,
}

impl Name {
    fn push(&mut self, bytes: &[u8]) {
        if self.bytes.len() + bytes.len() > NAME_BYTES {
            self.is_too_long = true;
            return;
        }
        crate::fallible::extend_reserved(&mut self.bytes, bytes);
    }

    fn number(&mut self, number: impl core::fmt::Display) {
        let _ = write!(self, "{number}");
    }

    /// A part that leads to no other directory.
    fn part(&mut self, part: &[u8]) {
        if matches!(part, b"." | b"..") {
            self.push(b"!");
            self.push(&part[1..]);
            return;
        }
        for &byte in part {
            self.push(&[if byte == b'/' { b'!' } else { byte }]);
        }
    }
}

impl Write for Name {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}
