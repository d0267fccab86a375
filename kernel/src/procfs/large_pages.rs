//! `/sys/kernel/mm/transparent_hugepage`: who gets large pages.

use crate::error::Errno;
use crate::memory::frame::LARGE_BYTES;
use crate::memory::large_policy;
use crate::memory::large_policy::{EFFORTS, LargePolicy};
use crate::procfs::{Subject, Text};

type Shown = Result<(), Errno>;

/// A line of names, the chosen one in brackets.
fn choice(text: &mut Text, names: impl Iterator<Item = &'static str>, chosen: usize) -> Shown {
    for (place, name) in names.enumerate() {
        let space = if place > 0 { " " } else { "" };
        let [open, close] = if place == chosen { ["[", "]"] } else { ["", ""] };
        text.line(format_args!("{space}{open}{name}{close}"))?;
    }
    text.bytes(b"\n")
}

/// The place of a name that was written, with a line's end or without.
fn place_of(bytes: &[u8], mut names: impl Iterator<Item = &'static str>) -> Result<usize, Errno> {
    let written = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    names.position(|name| name.as_bytes() == written).ok_or(Errno::EINVAL)
}

fn policies() -> impl Iterator<Item = &'static str> {
    LargePolicy::ALL.iter().map(|policy| policy.name())
}

pub fn enabled(_: &Subject, text: &mut Text) -> Shown {
    choice(text, policies(), large_policy::current() as usize)
}

pub fn set_enabled(_: &Subject, bytes: &[u8]) -> Shown {
    large_policy::set(LargePolicy::ALL[place_of(bytes, policies())?]);
    Ok(())
}

pub fn effort(_: &Subject, text: &mut Text) -> Shown {
    choice(text, EFFORTS.into_iter(), large_policy::effort())
}

pub fn set_effort(_: &Subject, bytes: &[u8]) -> Shown {
    large_policy::set_effort(place_of(bytes, EFFORTS.into_iter())?);
    Ok(())
}

pub fn size(_: &Subject, text: &mut Text) -> Shown {
    text.line(format_args!("{LARGE_BYTES}\n"))
}
