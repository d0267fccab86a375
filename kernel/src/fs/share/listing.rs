//! Listings of directories.
//!
//! A listing that fits into one message is kept with the directory's names, so that a directory that does not change is
//! listed without a word to the host.

use alloc::vec::Vec;
use core::ops::Range;

use heddle_kernel_core::ninep::{DirectoryEntry, MessageWriter, Reader, kind};
use linux_raw_sys::general as linux;

use crate::error::Errno;
use crate::fs::FileType;
use crate::fs::inode::Listed;
use crate::fs::share::node::SharedNode;
use crate::fs::share::{CHUNK, Fid};
use crate::memory::fallible;

/// Where the walk through entries has ended.
enum ListingEnd {
    /// `visit` has had enough.
    Stopped,
    /// At the end of the entries; the host goes on from here.
    Next(u64),
    /// No entry has the cookie.
    Unknown,
}

/// Shows entries behind a cookie, which is zero or one of theirs; nothing if it is none of theirs.
fn show(entries: &[u8], cookie: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> Result<ListingEnd, Errno> {
    let (mut reader, mut next, mut is_behind) = (Reader::of_fields(entries), cookie, cookie == 0);
    while !reader.is_empty() {
        let entry = DirectoryEntry::read(&mut reader).map_err(Errno::from)?;
        if !is_behind {
            is_behind = entry.next == cookie;
            continue;
        }
        next = entry.next;
        if matches!(entry.name, b"." | b"..") {
            continue;
        }
        let kind = FileType::from_mode(u32::from(entry.kind) << 12).unwrap_or(FileType::Regular);
        if !visit(Listed { name: entry.name, inode: entry.number, kind, next: entry.next }) {
            return Ok(ListingEnd::Stopped);
        }
    }
    Ok(if is_behind { ListingEnd::Next(next) } else { ListingEnd::Unknown })
}

/// The place of the name of the entry that begins at a place in a listing, and where the next one begins.
pub fn name_at(entries: &[u8], at: usize) -> Option<(Range<usize>, usize)> {
    let mut reader = Reader::of_fields(entries.get(at..)?);
    let length = DirectoryEntry::read(&mut reader).ok()?.name.len();
    let next = at + reader.position_from(entries.len() - at);
    Some((next - length..next, next))
}

/// An opened handle of a directory.
fn open(node: &SharedNode) -> Result<Fid, Errno> {
    let open = node.fid.again()?;
    let flags = linux::O_RDONLY | linux::O_DIRECTORY;
    let write = |writer: &mut MessageWriter<'_>| {
        writer.u32(open.number);
        writer.u32(flags);
    };
    node.fid.server.call(kind::OPEN, write, |_| Ok(()))?;
    Ok(open)
}

/// A message's worth of entries. Copied, because who sees them may ask the host too.
fn read(open: &Fid, next: u64) -> Result<Vec<u8>, Errno> {
    let write = |writer: &mut MessageWriter<'_>| {
        writer.u32(open.number);
        writer.u64(next);
        writer.u32(CHUNK as u32);
    };
    let read = |reader: &mut Reader<'_>| {
        let length = reader.u32()? as usize;
        Ok(fallible::try_to_vec(reader.bytes(length)?))
    };
    open.server.call(kind::READDIR, write, read)?
}

/// The last entry's cookie.
fn last_cookie(entries: &[u8]) -> Result<u64, Errno> {
    match show(entries, 0, &mut |_| true)? {
        ListingEnd::Next(next) => Ok(next),
        ListingEnd::Stopped | ListingEnd::Unknown => Err(Errno::EIO),
    }
}

/// Lists a directory, as [`crate::fs::Inode::list`].
pub fn list(node: &SharedNode, cookie: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> Result<(), Errno> {
    node.refresh()?;
    // A cookie of an older listing, whose entry is gone, tells the host all the same where to go on.
    if let Some(entries) = node.state.listing()
        && !matches!(show(&entries, cookie, visit)?, ListingEnd::Unknown)
    {
        return Ok(());
    }
    let asked = node.state.ask_name(&node.fid.server);
    let open = open(node)?;
    let mut entries = read(&open, cookie)?;
    if cookie == 0 && !entries.is_empty() {
        let second = read(&open, last_cookie(&entries)?)?;
        if second.is_empty() {
            // Kept, if there is memory for that.
            let entries = fallible::try_arc(entries)?;
            let mut old = None;
            node.state.answer_name(&asked, |names| old = names.set_listing(Some(entries.clone())));
            drop(old);
            return show(&entries, cookie, visit).map(drop);
        }
        if matches!(show(&entries, 0, visit)?, ListingEnd::Stopped) {
            return Ok(());
        }
        entries = second;
    }
    while !entries.is_empty() {
        let ListingEnd::Next(next) = show_all(&entries, visit)? else { return Ok(()) };
        entries = read(&open, next)?;
    }
    Ok(())
}

/// Shows all of these entries.
fn show_all(entries: &[u8], visit: &mut dyn FnMut(Listed<'_>) -> bool) -> Result<ListingEnd, Errno> {
    show(entries, 0, visit)
}
