//! Watches shared folders, and writes the guest's messages about what changes in them.
//!
//! The kernel relies on what it knows of a file for a second, and for longer in a folder that is watched. inotify(7)
//! watches directories one by one, so a folder is watched once all its directories are. A folder that has too many, or
//! whose file system may be changed by other hosts, is not: then the second stays. inotify does not say who changed
//! something, so the guest hears of its own changes too; fanotify(7) would say it, but only to root, and not of names
//! in an overlay on the kernels of Debian 12.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use heddle_abi::control::{ShareChanged, kind, put_word};
use heddle_streams::Outbox;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::fs::inotify::{CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use crate::guest::share::Share;
use crate::machine::descriptor_path;

#[cfg(test)]
mod tests;

/// Directories of one folder that are watched, at most: each takes about a kilobyte of the host's kernel.
const DIRECTORIES_MAX: usize = 50_000;
/// How long changes are gathered, so that a file that is written to is told about once.
const GATHER: Duration = Duration::from_millis(10);
/// How long after a loss of events folders are watched again: at first, and where losses follow each other, because
/// the guest or somebody else changes more than is told.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(64);
/// File systems that others than this host may change: NFS, SMB, 9P, FUSE, AFS, Ceph.
const REMOTE: [u32; 7] =
    [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997, 0x6573_5546, 0x5346_414f, 0x00c3_6400];

/// Starts to watch these folders. The messages come from the other end of the socket.
pub fn start(shares: &[Share]) -> Option<UnixStream> {
    if shares.is_empty() {
        return None;
    }
    let queue = inotify::init(CreateFlags::CLOEXEC).ok()?;
    let (near, far) = UnixStream::pair().ok()?;
    near.set_nonblocking(true).ok()?;
    let folders = shares.iter().map(|share| share.host.clone()).collect();
    let watch = Watch::new(queue, folders, far);
    thread::Builder::new().name(String::from("watch")).spawn(move || watch.run()).ok()?;
    Some(near)
}

/// A directory that is watched: the folder's number, and the path in it.
type Place = (usize, PathBuf);
/// A change that is told: where, and of which name.
type Told = (usize, PathBuf, Vec<u8>);

struct Watch {
    queue: OwnedFd,
    folders: Vec<PathBuf>,
    /// By the watch's descriptor, which folders that overlap have in common.
    directories: HashMap<i32, Vec<Place>>,
    /// Directories that this user cannot read, and QEMU neither, until their permissions change.
    unreadable: BTreeSet<Place>,
    messages: UnixStream,
    /// Folders that are to be watched again, and when.
    lost: Vec<usize>,
    again_at: Instant,
    /// How long after the next loss.
    pause: Duration,
}

/// One event.
struct Change {
    watch: i32,
    flags: ReadFlags,
    name: Vec<u8>,
}

impl Watch {
    fn new(queue: OwnedFd, folders: Vec<PathBuf>, messages: UnixStream) -> Self {
        Self {
            queue,
            folders,
            directories: HashMap::new(),
            unreadable: BTreeSet::new(),
            messages,
            lost: Vec::new(),
            again_at: Instant::now(),
            pause: PAUSE_MIN,
        }
    }

    /// Watches until nobody hears the messages any more.
    fn run(mut self) {
        let mut hears = (0..self.folders.len()).all(|folder| self.begin(folder));
        while hears {
            let left =
                (!self.lost.is_empty()).then(|| self.again_at.saturating_duration_since(Instant::now()));
            hears = if left == Some(Duration::ZERO) {
                self.begin_again()
            } else {
                self.wait(left).is_some_and(|changes| self.tell(&changes))
            };
            thread::sleep(GATHER);
        }
    }

    /// Watches a folder from now on, if it can be watched; false if nobody hears it.
    fn begin(&mut self, folder: usize) -> bool {
        if self.add(folder, PathBuf::new(), &mut BTreeSet::new()).is_err() {
            self.give_up(folder);
            return true;
        }
        let mut message = Outbox::default();
        put_folder(&mut message, kind::SHARE_WATCHED, folder) && self.send(&message)
    }

    /// Watches the folders again of which events were lost.
    fn begin_again(&mut self) -> bool {
        std::mem::take(&mut self.lost).into_iter().all(|folder| self.begin(folder))
    }

    /// Watches a folder no more.
    fn give_up(&mut self, folder: usize) {
        self.unreadable.retain(|(of, _)| *of != folder);
        for places in self.directories.values_mut() {
            places.retain(|(of, _)| *of != folder);
        }
        let unused: Vec<i32> = self
            .directories
            .iter()
            .filter(|(_, places)| places.is_empty())
            .map(|(watch, _)| *watch)
            .collect();
        for watch in unused {
            self.directories.remove(&watch);
            let _ = inotify::remove_watch(&self.queue, watch);
        }
    }

    fn send(&self, message: &Outbox) -> bool {
        (&self.messages).write_all(message.waiting()).is_ok()
    }

    /// Watches a directory and all below it, and notes each of them. Paths are followed beneath the folder and over no
    /// link, since the guest may put one anywhere at any time.
    fn add(&mut self, folder: usize, path: PathBuf, added: &mut BTreeSet<Told>) -> Result<(), Errno> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, &self.folders[folder], flags | OFlags::PATH, Mode::empty())?;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let mut left = vec![path];
        while let Some(path) = left.pop() {
            let place = if path.as_os_str().is_empty() { Path::new(".") } else { &path };
            let directory = match openat2(&root, place, flags, Mode::empty(), resolve) {
                Ok(directory) => directory,
                // It is gone again, or no directory any more.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(Errno::ACCESS) => {
                    self.unreadable.insert((folder, path));
                    continue;
                }
                Err(error) => return Err(error),
            };
            if REMOTE.contains(&(rustix::fs::fstatfs(&directory)?.f_type as u32)) {
                return Err(Errno::NOTSUP);
            }
            let handle = descriptor_path(&directory);
            let watch = inotify::add_watch(&self.queue, &handle, watched())?;
            let places = self.directories.entry(watch).or_default();
            places.retain(|(of, _)| *of != folder);
            places.push((folder, path.clone()));
            if self.directories.len() + self.unreadable.len() > DIRECTORIES_MAX {
                return Err(Errno::NOSPC);
            }
            let entries = fs::read_dir(&handle).into_iter().flatten().flatten();
            let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            left.extend(directories.map(|entry| path.join(entry.file_name())));
            added.insert((folder, path, Vec::new()));
        }
        Ok(())
    }

    /// Waits for changes, but no longer than this; then there are none.
    fn wait(&self, at_most: Option<Duration>) -> Option<Vec<Change>> {
        let limit = at_most.map(|limit| Timespec::try_from(limit).unwrap_or_default());
        let mut queue = [PollFd::new(&self.queue, PollFlags::IN)];
        match poll(&mut queue, limit.as_ref()) {
            Ok(0) | Err(Errno::INTR) => return Some(Vec::new()),
            Ok(_) => {}
            Err(_) => return None,
        }
        let mut buffer = [MaybeUninit::uninit(); 64 << 10];
        let mut reader = inotify::Reader::new(&self.queue, &mut buffer);
        let mut changes = Vec::new();
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(_) => return None,
            };
            changes.push(Change {
                watch: event.wd(),
                flags: event.events(),
                name: event.file_name().map_or(Vec::new(), |name| name.to_bytes().to_vec()),
            });
            if reader.is_buffer_empty() {
                return Some(changes);
            }
        }
    }

    /// Sends messages about changes; false if nobody hears them.
    fn tell(&mut self, changes: &[Change]) -> bool {
        let (mut told, mut moved) = (BTreeSet::new(), BTreeSet::new());
        let mut message = Outbox::default();
        for change in changes {
            if change.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                return self.tell_of_the_loss();
            }
            if change.flags.contains(ReadFlags::IGNORED) {
                self.directories.remove(&change.watch);
                continue;
            }
            let is_new = change.flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
            for (folder, path) in self.directories.get(&change.watch).cloned().unwrap_or_default() {
                let inner = path.join(OsStr::from_bytes(&change.name));
                let is_directory = change.flags.contains(ReadFlags::ISDIR);
                let is_to_watch =
                    is_directory && (self.unreadable.remove(&(folder, inner.clone())) || is_new);
                if is_directory && change.flags.intersects(ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO) {
                    moved.insert(folder);
                }
                if is_to_watch && self.add(folder, inner, &mut told).is_err() {
                    put_folder(&mut message, kind::SHARE_UNWATCHED, folder);
                    self.give_up(folder);
                    moved.remove(&folder);
                }
                told.insert((folder, path, change.name.clone()));
            }
        }
        let put = |(folder, path, name): &Told| {
            let folder = u32::try_from(*folder).unwrap_or(ShareChanged::ALL);
            ShareChanged { folder, directory: path.as_os_str().as_bytes(), name }.put(&mut message)
        };
        if told.iter().try_for_each(put).is_err() {
            return false;
        }
        // Whatever is below a directory that has moved has another path.
        moved.iter().all(|&folder| put_folder(&mut message, kind::SHARE_WATCHED, folder))
            && self.send(&message)
    }

    /// Events were lost, and with them directories that are not watched.
    fn tell_of_the_loss(&mut self) -> bool {
        let mut message = Outbox::default();
        for folder in 0..self.folders.len() {
            if self.directories.values().flatten().any(|(of, _)| *of == folder) {
                self.lost.push(folder);
            }
            self.give_up(folder);
            put_folder(&mut message, kind::SHARE_UNWATCHED, folder);
        }
        let now = Instant::now();
        if now > self.again_at + PAUSE_MAX {
            self.pause = PAUSE_MIN;
        }
        self.again_at = now + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.send(&message)
    }
}

/// The changes of a directory that are told.
fn watched() -> WatchFlags {
    WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MODIFY
        | WatchFlags::ATTRIB
        | WatchFlags::MOVE
        | WatchFlags::ONLYDIR
}

fn put_folder(message: &mut Outbox, kind: u32, folder: usize) -> bool {
    u32::try_from(folder).is_ok_and(|number| put_word(message, kind, number).is_ok())
}
