//! The process file system, proc(5): what the kernel knows, as files. Nothing is stored; each node computes what it
//! shows when it is asked.
//!
//! The tree is a table: an [`Item`] says what a name is, and a [`ProcNode`] is an item applied to a [`Subject`], the
//! process or thread that the path went through.

mod clocks;
mod coroutines;
mod file;
mod ipc;
mod keys;
mod large_pages;
mod link;
mod list;
mod memory;
mod mounts;
pub mod namespace;
mod net;
mod net_class;
mod net_counts;
mod net_settings;
mod node;
mod page_map;
mod process;
mod processor;
mod rules;
mod settings;
mod sockets;
mod system;
mod table;
pub mod text;
mod usage;
mod users;

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::arch::{MAX_CPUS, cpu};
use crate::error::Errno;
use crate::fs::inode::{Inode, LinkTarget, Listed, Metadata, Opening, Statistics, Timestamp, device_number};
use crate::fs::{Dentry, File, FileType, Mount, OpenFile, Path};
use crate::memory::fallible;
use crate::net::namespace::NetNamespace;
use crate::process::keys::KeyViewer;
use crate::process::namespaces::Namespaces;
use crate::process::pid_namespace::{self, Pids};
use crate::process::{Credentials, Process, Thread};

use crate::procfs::rules::ProcRules;
use crate::procfs::text::Text;
use crate::procfs::usage::Sum;

pub use crate::procfs::rules::{ProcOptions, change_rules};

/// Writes what a file shows.
type Show = fn(&Subject, &mut Text) -> Result<(), Errno>;
/// Writes a part of a file's text, from 0 or the position that the part before returned; returns that of the next part.
type ShowPart = fn(&Subject, &mut Text, u64) -> Result<Option<u64>, Errno>;
/// Looks at the next part of what a file adds up, and writes what is known; returns whether there is more.
type ShowSum = fn(&Subject, &mut Text, &mut Sum) -> Result<bool, Errno>;
/// Takes what a program writes to a file.
type Store = fn(&Subject, &[u8]) -> Result<(), Errno>;
/// The same, as far as whoever opened the file may.
type StoreAs = fn(&Subject, &Credentials, &[u8]) -> Result<(), Errno>;
/// The same, as far as both may who opened the file and who writes to it.
type StoreAsBoth = fn(&Subject, &Credentials, &Credentials, &[u8]) -> Result<(), Errno>;
/// The same for a file that takes it from some threads only.
type StoreByThread = fn(&Subject, &Thread, &[u8]) -> Result<(), Errno>;
/// Writes what a file shows to whoever opened it.
type ShowAs = fn(&Subject, &Credentials, &mut Text) -> Result<(), Errno>;
/// Writes something of namespaces, as somebody sees it.
type ShowOwn = fn(&Namespaces, &Credentials, &mut Text) -> Result<(), Errno>;
/// Writes something of the subject, as somebody in these namespaces sees it.
type ShowViewed = fn(&Subject, &Namespaces, &mut Text) -> Result<(), Errno>;
/// Takes what a program writes to something of namespaces.
type StoreOwn = fn(&Namespaces, &[u8]) -> Result<(), Errno>;
/// Writes a part of what a thread may know of keys, as [`ShowPart`].
type ShowKeys = fn(&KeyViewer, &mut Text, u64) -> Result<Option<u64>, Errno>;
/// Finds where a link leads.
type Follow = fn(&Subject, Option<&Arc<Thread>>) -> Result<LinkTarget, Errno>;

/// The kind of a name in the table.
enum What {
    /// A directory with these names.
    Directory(&'static [Item]),
    /// A directory with these names, of which the last are one for every CPU that there may be.
    Processors(&'static [Item]),
    /// A directory with these names and one for every process.
    Processes(&'static [Item]),
    /// A directory with a name for every thread of the process.
    Threads,
    /// A directory with a name for every descriptor.
    Descriptors(&'static Item),
    /// A file.
    Text(Show),
    /// A file that may be long, so that it is made part by part.
    Parts(ShowPart),
    /// The same for a list of mounts, whose changes can be waited for.
    Mounts(ShowPart),
    /// The same for one that adds up what the parts look at.
    Sums(ShowSum),
    /// A file that can be written.
    Writable(Show, Store),
    /// A file that can be written, to what the opener's rights allow.
    Controlled(Show, StoreAs),
    /// The keys that whoever opens it may view.
    Keys(ShowKeys),
    /// A file that shows numbers of users, as the opener sees them.
    Seen(ShowAs),
    /// The same for one that can be written, to what the opener's rights allow.
    WritableSeen(ShowAs, StoreAs),
    /// The same, where the writer's rights count as well.
    WritableMap(ShowAs, StoreAsBoth),
    /// A file that can be written by some threads.
    WritableByThread(Show, StoreByThread),
    /// A file about the namespaces of whoever opens it.
    Own(ShowOwn),
    /// A file about the subject as the namespaces of whoever opens it show it.
    Viewed(ShowViewed),
    /// A file about the opener's namespaces that can be written.
    WritableOwn(ShowOwn, StoreOwn),
    /// The memory of a process.
    Memory,
    /// The pages of a process.
    PageMap,
    /// A link.
    Link(Follow),
}

/// A name in the table.
struct Item {
    name: &'static [u8],
    permissions: u32,
    what: What,
    /// Only visible to processes that may look into the process.
    is_guarded: bool,
}

/// The subject of a node.
#[derive(Clone)]
struct Subject {
    /// A process, by its number in the first namespace.
    pid: Option<i32>,
    /// One of its threads.
    tid: Option<i32>,
    /// One of its descriptors.
    descriptor: Option<i32>,
    /// The file system: `/sys`, or else `/proc`.
    is_sys: bool,
    /// The PID namespace whose numbers are shown: that of whoever mounted the file system.
    view: Pids,
    /// How much is shown of processes.
    rules: Option<Arc<ProcRules>>,
}

impl Subject {
    const NOTHING: Self =
        Self { pid: None, tid: None, descriptor: None, is_sys: false, view: None, rules: None };

    /// The number to show for one of the first namespace.
    fn shown(&self, number: i32) -> i32 {
        pid_namespace::shown(number, &self.view)
    }

    /// The process.
    fn process(&self) -> Result<Arc<Process>, Errno> {
        self.pid.and_then(crate::process::table::process).ok_or(Errno::ESRCH)
    }

    /// The thread, or the one that stands for the process; a zombie has none.
    fn thread(&self) -> Result<Arc<Thread>, Errno> {
        let thread = match self.tid {
            Some(tid) => crate::process::table::thread(tid),
            None => self.process()?.main_thread(),
        };
        thread.ok_or(Errno::ESRCH)
    }

    /// The network namespace of the thread.
    fn network(&self) -> Result<Arc<NetNamespace>, Errno> {
        NetNamespace::of(&*self.thread()?)
    }

    /// The open file.
    fn open(&self) -> Result<Arc<OpenFile>, Errno> {
        let descriptor = self.descriptor.ok_or(Errno::ENOENT)?;
        self.thread()?.descriptors().get(descriptor).map_err(|_| Errno::ENOENT)
    }

    /// Whether it still exists.
    fn exists(&self) -> bool {
        let process = self.pid.is_none() || self.process().is_ok();
        let thread = self.tid.is_none() || self.thread().is_ok();
        process && thread && (self.descriptor.is_none() || self.open().is_ok())
    }
}

/// A node: an item applied to a subject.
struct ProcNode {
    item: &'static Item,
    subject: Subject,
}

/// The numbers of the file systems.
const DEVICE: u64 = device_number(0, 5);
const DEVICE_SYS: u64 = device_number(0, 20);
/// The number of `/proc` itself.
const ROOT_INODE: u64 = 1;
const SYSFS_MAGIC: u32 = linux_raw_sys::general::SYSFS_MAGIC;

/// A mount of the process file system, with the numbers of this PID namespace.
///
/// # Errors
/// `ENOMEM`.
pub fn mount(view: Pids) -> Result<Arc<Mount>, Errno> {
    let rules = Some(fallible::try_arc(ProcRules::default())?);
    let subject = Subject { view, rules, ..Subject::NOTHING };
    let root = fallible::try_arc(ProcNode { item: &table::ROOT, subject })?;
    Mount::new(Dentry::new(root, None, b"")?, "proc", b"proc", 0)
}

/// A mount of what is there of sysfs, sysfs(5): the interfaces that a network namespace has by now.
///
/// # Errors
/// `ENOMEM`.
pub fn mount_sys(namespace: &NetNamespace) -> Result<Arc<Mount>, Errno> {
    let has_device = namespace.has_device() && crate::net::interface::ethernet().is_some();
    let item = if has_device { &table::SYS_ETHERNET } else { &table::SYS };
    let root = fallible::try_arc(ProcNode { item, subject: Subject { is_sys: true, ..Subject::NOTHING } })?;
    Mount::new(Dentry::new(root, None, b"")?, "sysfs", b"sysfs", 0)
}

/// The process whose directory in `/proc` an open file is, or `ESRCH` if it has gone; `None` for any other file.
#[must_use]
pub fn process_of(open: &OpenFile) -> Option<Result<Arc<Process>, Errno>> {
    let node: &dyn core::any::Any = &*open.place.as_ref()?.entry.node;
    let node = node.downcast_ref::<ProcNode>()?;
    if !core::ptr::eq(node.item, &raw const table::PROCESS) || node.subject.tid.is_some() {
        return None;
    }
    Some(node.subject.process())
}

impl ProcNode {
    /// Whether epoll(7) takes it: not what a process has, but for its mounts.
    fn is_pollable(&self) -> bool {
        let has = |folder: &Item| match folder.what {
            What::Directory(items) => items.as_ptr_range().contains(&core::ptr::from_ref(self.item)),
            _ => false,
        };
        let is_of_process = self.subject.descriptor.is_some() || has(&table::PROCESS) || has(&table::THREAD);
        !is_of_process || matches!(self.item.what, What::Mounts(_))
    }

    /// A number that two nodes share only by the rarest chance.
    fn inode(item: &Item, subject: &Subject) -> u64 {
        if core::ptr::eq(item, &raw const table::ROOT) {
            return ROOT_INODE;
        }
        // FNV-1a.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut mix = |number: u64| hash = (hash ^ number).wrapping_mul(0x100_0000_01b3);
        mix(core::ptr::from_ref(item).addr() as u64);
        for number in [subject.pid, subject.tid, subject.descriptor] {
            mix(u64::from(number.unwrap_or(-1) as u32));
        }
        hash >> 16 | 1
    }

    const fn device(&self) -> u64 {
        if self.subject.is_sys { DEVICE_SYS } else { DEVICE }
    }

    /// The names that don't depend on the subject.
    fn items(&self) -> &'static [Item] {
        match self.item.what {
            What::Processors(items) => {
                let absent = MAX_CPUS.saturating_sub(cpu::count());
                items.get(..items.len().saturating_sub(absent)).unwrap_or(items)
            }
            What::Directory(items) | What::Processes(items) => items,
            _ => &[],
        }
    }

    /// The node that `name` stands for.
    fn child(&self, name: &[u8]) -> Result<Self, Errno> {
        if self.is_process() && !self.subject.is_open() {
            return Err(Errno::EPERM);
        }
        // Nothing is below a process that is gone.
        if self.subject.pid.is_some() {
            self.subject.process()?;
        }
        if let Some(item) = self.items().iter().find(|item| item.name == name && self.shows(item)) {
            return Ok(Self { item, subject: self.subject.clone() });
        }
        let number = || {
            let text = core::str::from_utf8(name).ok()?;
            let number = text.parse().ok()?;
            // Only the usual spelling of a number is a name.
            (text == "0" || !text.starts_with(['0', '+', '-'])).then_some(number)
        };
        let (item, subject) = match &self.item.what {
            What::Processes(_) => {
                let view = self.subject.view.clone();
                let number = pid_namespace::named(number().ok_or(Errno::ENOENT)?, &view);
                // A thread's number leads to its process, though only processes are listed.
                let pid = match crate::process::table::process(number) {
                    Some(process) => process.pid,
                    None => crate::process::table::thread(number).ok_or(Errno::ENOENT)?.process.pid,
                };
                (
                    &table::PROCESS,
                    Subject {
                        pid: Some(pid),
                        tid: (pid != number).then_some(number),
                        view,
                        rules: self.subject.rules.clone(),
                        ..Subject::NOTHING
                    },
                )
            }
            What::Threads => {
                let tid = pid_namespace::named(number().ok_or(Errno::ENOENT)?, &self.subject.view);
                (&table::THREAD, Subject { tid: Some(tid), ..self.subject.clone() })
            }
            What::Descriptors(item) => {
                let descriptor = number().ok_or(Errno::ENOENT)?;
                (*item, Subject { descriptor: Some(descriptor), ..self.subject.clone() })
            }
            _ => return Err(Errno::ENOENT),
        };
        let child = Self { item, subject };
        let subject = &child.subject;
        let is_own = |thread: Arc<Thread>| thread.process.pid == subject.pid.unwrap_or(0);
        let belongs = subject.tid.is_none() || subject.thread().is_ok_and(is_own);
        let is_shown = !child.is_process() || subject.is_shown();
        if subject.exists() && belongs && is_shown { Ok(child) } else { Err(Errno::ENOENT) }
    }

    /// The names of a directory are `.`, the one in its parent, and one in each of its own; threads are counted.
    fn links(&self, kind: FileType) -> u32 {
        let threads = || self.subject.process().map_or(0, |process| process.thread_count());
        match self.item.what {
            What::Threads => 2 + threads() as u32,
            _ if kind == FileType::Directory => 2,
            _ => 1,
        }
    }

    /// Whether it is the directory of a process.
    fn is_process(&self) -> bool {
        core::ptr::eq(self.item, &raw const table::PROCESS)
    }

    /// Whether a name that does not depend on the subject is shown: in a subset only links to processes.
    fn shows(&self, item: &Item) -> bool {
        let is_root = matches!(self.item.what, What::Processes(_));
        !is_root
            || !self.subject.is_subset()
            || matches!(item.what, What::Link(_)) && item.name.ends_with(b"self")
    }
}

impl Inode for ProcNode {
    fn keeps_entries(&self) -> bool {
        false
    }

    fn kind(&self) -> FileType {
        match self.item.what {
            What::Directory(_)
            | What::Processors(_)
            | What::Processes(_)
            | What::Threads
            | What::Descriptors(_) => FileType::Directory,
            What::Text(_)
            | What::Parts(_)
            | What::Mounts(_)
            | What::Sums(_)
            | What::Writable(..)
            | What::Controlled(..)
            | What::Keys(_)
            | What::Seen(_)
            | What::WritableSeen(..)
            | What::WritableMap(..)
            | What::WritableByThread(..)
            | What::Own(_)
            | What::Viewed(_)
            | What::WritableOwn(..)
            | What::Memory
            | What::PageMap => FileType::Regular,
            What::Link(_) => FileType::Symlink,
        }
    }

    fn metadata(&self) -> Metadata {
        let credentials = self.subject.thread().ok().map(|thread| thread.credentials());
        // Files that others may not read belong to root, but not directories: the process itself lists its descriptors.
        let is_closed = self.kind() != FileType::Directory
            && self.subject.process().is_ok_and(|process| !process.is_dumpable());
        let owner = credentials.filter(|_| !is_closed);
        let (uid, gid) = owner.map_or((0, 0), |credentials| (credentials.euid, credentials.egid));
        let now = Timestamp::now();
        let kind = self.kind();
        Metadata {
            device: self.device(),
            permissions: self.item.permissions,
            links: self.links(kind),
            uid,
            gid,
            accessed: now,
            modified: now,
            changed: now,
            born: now,
            ..Metadata::anonymous(kind, Self::inode(self.item, &self.subject))
        }
    }

    fn statistics(&self) -> Statistics {
        Statistics {
            magic: if self.subject.is_sys { SYSFS_MAGIC } else { linux_raw_sys::general::PROC_SUPER_MAGIC },
            blocks: 0,
            free: 0,
            nodes: 0,
            free_nodes: 0,
            device: self.device(),
        }
    }

    fn lookup(&self, this: &Arc<Dentry>, name: &[u8]) -> Result<Arc<Dentry>, Errno> {
        if self.kind() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        Dentry::new(fallible::try_arc(self.child(name)?)?, Some(this.clone()), name)
    }

    fn list(&self, cookie: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> Result<(), Errno> {
        list::list(self, cookie, visit)
    }

    fn follow(&self, thread: Option<&Arc<Thread>>) -> Result<LinkTarget, Errno> {
        match self.item.what {
            What::Link(follow) => follow(&self.subject, thread),
            _ => Err(Errno::EINVAL),
        }
    }

    fn read_link(&self, thread: &Arc<Thread>) -> Result<Vec<u8>, Errno> {
        match self.follow(Some(thread))? {
            LinkTarget::Text(path) => Ok(path),
            LinkTarget::Path(place) => place.path(&thread.directories().root()),
        }
    }

    fn open(self: Arc<Self>, opening: &Opening<'_>) -> Result<Arc<dyn File>, Errno> {
        if !self.subject.exists() {
            return Err(Errno::ENOENT);
        }
        if self.item.is_guarded && self.subject.thread().is_ok() {
            link::check(&self.subject, opening.thread)?;
        }
        if matches!(self.item.what, What::Memory) {
            return memory::open(self);
        }
        if matches!(self.item.what, What::PageMap) {
            return page_map::open(self, opening.thread);
        }
        file::open(self, opening.thread)
    }
}

/// A path below the process file system, as bytes.
fn number_path(number: i32, rest: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut text = Text::new();
    text.line(format_args!("{number}"))?;
    text.bytes(rest)?;
    Ok(text.into_bytes())
}

/// The target of a link to a path.
const fn at(place: Path) -> LinkTarget {
    LinkTarget::Path(place)
}
