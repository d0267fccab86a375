//! Files of `/proc` about the memory that a process takes, mapping by mapping and as a whole.

use heddle_kernel_core::mempolicy::MemoryPolicy;

use crate::arch::protection_key;
use crate::error::Errno;
use crate::memory::Space;
use crate::memory::source::Object;
use crate::memory::space::{Flags, MappingView, Protection, Usage};
use crate::procfs::process::{mapping_line, space_of};
use crate::procfs::{Subject, Text};

type Shown = Result<(), Errno>;

const PAGE_KIB: u64 = 4;

/// One line, put together without the formatter: a process may have a million of them.
fn line(text: &mut Text, name: &str, kib: u64) -> Shown {
    const NAME_BYTES: usize = 16;
    const ROW_BYTES: usize = 24;
    let mut row = [b' '; ROW_BYTES];
    let mut rest = kib;
    for place in row[NAME_BYTES..].iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if rest > 0 || name.len() >= NAME_BYTES {
        return text.line(format_args!("{name}:{:1$}{kib:8} kB\n", "", 15_usize.saturating_sub(name.len())));
    }
    row[..name.len()].copy_from_slice(name.as_bytes());
    row[name.len()] = b':';
    text.bytes(&row)?;
    text.bytes(b" kB\n")
}

/// The lines that both files have; `in_parts` also shows the owners of the shared pages. Of `locked` the mappings are
/// locked.
fn amounts(text: &mut Text, usage: &Usage, locked: u64, in_parts: bool) -> Shown {
    let kib = |bytes: u64| bytes / 1024;
    line(text, "Rss", kib(usage.resident))?;
    line(text, "Pss", kib(usage.share()))?;
    // Pages with a share are in frames of their own, and so dirty.
    line(text, "Pss_Dirty", kib(usage.share()))?;
    if in_parts {
        let [anonymous, file, memory] = usage.shares();
        line(text, "Pss_Anon", kib(anonymous))?;
        line(text, "Pss_File", kib(file))?;
        line(text, "Pss_Shmem", kib(memory))?;
    }
    line(text, "Shared_Clean", kib(usage.shared_clean))?;
    line(text, "Shared_Dirty", kib(usage.shared_dirty))?;
    line(text, "Private_Clean", 0)?;
    line(text, "Private_Dirty", kib(usage.private_dirty))?;
    line(text, "Referenced", kib(usage.resident))?;
    line(text, "Anonymous", kib(usage.anonymous))?;
    // Large pages are anonymous only; nothing is swapped out or freed lazily.
    line(text, "LazyFree", 0)?;
    line(text, "AnonHugePages", kib(usage.large))?;
    for name in ["ShmemPmdMapped", "FilePmdMapped", "Shared_Hugetlb", "Private_Hugetlb", "Swap", "SwapPss"] {
        line(text, name, 0)?;
    }
    line(text, "Locked", kib(locked))
}

fn flags(text: &mut Text, space: &Space, mapping: &MappingView) -> Shown {
    let (protection, flags) = (mapping.protection, mapping.flags);
    let is_anonymous = matches!(mapping.object, Object::Anonymous(_));
    let may_have_large = space.may_have_large(&(mapping.start..mapping.end), flags, is_anonymous);
    text.bytes(if may_have_large { b"THPeligible:    1\n" } else { b"THPeligible:    0\n" })?;
    if protection_key::are_on() {
        text.line(format_args!("ProtectionKey:  {:8}\n", mapping.key))?;
    }
    text.bytes(b"VmFlags:")?;
    for (is_set, name) in [
        (protection.contains(Protection::READ), "rd"),
        (protection.contains(Protection::WRITE), "wr"),
        (protection.contains(Protection::EXECUTE), "ex"),
        (flags.contains(Flags::SHARED) && !flags.contains(Flags::NEVER_WRITABLE), "sh"),
        (true, "mr"),
        (!flags.contains(Flags::NEVER_WRITABLE), "mw"),
        (true, "me"),
        (flags.contains(Flags::SHARED), "ms"),
        (flags.contains(Flags::GROWS_DOWN), "gd"),
        (flags.contains(Flags::LOCKED), "lo"),
        (flags.contains(Flags::NOT_INHERITED), "dc"),
        (flags.contains(Flags::WIPED_IN_CHILD), "wf"),
        (flags.contains(Flags::NOT_DUMPED), "dd"),
        (flags.contains(Flags::LARGE_PAGES), "hg"),
        (flags.contains(Flags::SMALL_PAGES), "nh"),
    ] {
        if is_set {
            text.bytes(b" ")?;
            text.bytes(name.as_bytes())?;
        }
    }
    text.bytes(b" \n")
}

/// Leaf tables, or mappings, that one part looks at.
const STEPS: usize = 4;

/// How far a file has come that adds up page by page.
#[derive(Default)]
pub struct Sum {
    /// The lowest address mapped, once it is known.
    first: Option<usize>,
    /// The address up to which all is added up, and the end of the last mapping.
    at: usize,
    usage: Usage,
    /// The share of the mappings before the present one, and of those among them that are locked.
    before: u64,
    locked: u64,
}

impl Sum {
    /// Goes on through the mappings, so many steps, and shows each that is through to `visit`, with its usage and how
    /// much of it is locked. Returns whether there are more.
    fn go_on(
        &mut self,
        space: &Space,
        mut visit: impl FnMut(&mut Usage, &MappingView, u64) -> Result<(), Errno>,
    ) -> Result<bool, Errno> {
        for _ in 0..STEPS {
            let Some(mapping) = space.mapping_at_or_above(self.at) else { return Ok(false) };
            self.first = self.first.or(Some(mapping.start));
            self.at = space.add_usage(&mapping, self.at.max(mapping.start), &mut self.usage);
            if self.at >= mapping.end {
                let is_locked = mapping.flags.contains(Flags::LOCKED);
                let locked = if is_locked { self.usage.share().saturating_sub(self.before) } else { 0 };
                self.locked += locked;
                visit(&mut self.usage, &mapping, locked)?;
                self.before = self.usage.share();
            }
        }
        Ok(true)
    }
}

/// Shows the next mappings.
pub fn by_mapping(subject: &Subject, text: &mut Text, sum: &mut Sum) -> Result<bool, Errno> {
    let Some(space) = space_of(subject) else { return Ok(false) };
    sum.go_on(&space, |usage, mapping, locked| {
        mapping_line(mapping, text)?;
        line(text, "Size", (mapping.end - mapping.start) as u64 / 1024)?;
        line(text, "KernelPageSize", PAGE_KIB)?;
        line(text, "MMUPageSize", PAGE_KIB)?;
        amounts(text, &core::mem::take(usage), locked, false)?;
        flags(text, &space, mapping)
    })
}

/// Shows the next mappings with their memory policies, `numa_maps`: all pages are of node 0.
pub fn by_node(subject: &Subject, text: &mut Text, sum: &mut Sum) -> Result<bool, Errno> {
    let Some(space) = space_of(subject) else { return Ok(false) };
    let own = subject.thread().map_or(MemoryPolicy::DEFAULT, |thread| thread.memory_policy());
    sum.go_on(&space, |usage, mapping, _| {
        let usage = core::mem::take(usage);
        let policy = if mapping.policy.is_default() { own } else { mapping.policy };
        text.line(format_args!("{:08x} {policy}", mapping.start))?;
        match &mapping.object {
            Object::Source(source) => {
                text.bytes(b" file=")?;
                text.escaped(&source.path().unwrap_or_default(), b"\n\t= ")?;
            }
            Object::Anonymous(_) if mapping.flags.contains(Flags::HEAP) => text.bytes(b" heap")?,
            Object::Anonymous(Some("[stack]")) => text.bytes(b" stack")?,
            Object::Anonymous(_) => {}
        }
        let pages = |bytes: u64| bytes / (PAGE_KIB * 1024);
        let all = pages(usage.resident);
        if all == 0 {
            return text.bytes(b"\n");
        }
        let (anonymous, dirty) = (pages(usage.anonymous), pages(usage.shared_dirty + usage.private_dirty));
        for (name, count) in [("anon", anonymous), ("dirty", dirty)] {
            if count > 0 {
                text.line(format_args!(" {name}={count}"))?;
            }
        }
        if all != anonymous && all != dirty {
            text.line(format_args!(" mapped={all}"))?;
        }
        if usage.mappers_max > 1 {
            text.line(format_args!(" mapmax={}", usage.mappers_max))?;
        }
        text.line(format_args!(" N0={all} kernelpagesize_kB={PAGE_KIB}\n"))
    })
}

/// `io`: the bytes that reads and writes moved, of a thread, or of all threads that the process had and the children
/// that it waited for. There are no devices that bytes would be stored on.
pub fn transfers(subject: &Subject, text: &mut Text) -> Shown {
    let counts = match subject.tid {
        Some(_) => subject.thread()?.counts(),
        None => {
            let process = subject.process()?;
            process.counts() + process.children_counts()
        }
    };
    text.line(format_args!(
        "rchar: {}\nwchar: {}\nsyscr: {}\nsyscw: {}\n\
         read_bytes: 0\nwrite_bytes: 0\ncancelled_write_bytes: 0\n",
        counts.bytes_read, counts.bytes_written, counts.reads, counts.writes
    ))
}

pub fn rollup(subject: &Subject, text: &mut Text, sum: &mut Sum) -> Result<bool, Errno> {
    let Some(space) = space_of(subject) else { return Err(Errno::ESRCH) };
    if sum.go_on(&space, |_, _, _| Ok(()))? {
        return Ok(true);
    }
    let (first, end) = sum.first.map_or((0, 0), |first| (first, sum.at));
    text.line(format_args!("{first:08x}-{end:08x} ---p 00000000 00:00 0 {:26} [rollup]\n", ""))?;
    amounts(text, &sum.usage, sum.locked, true)?;
    Ok(false)
}
