//! Watches shared folders, and writes the guest's messages about what changes in them.
//!
//! The kernel relies on what it knows of a file for a second, and for longer in a folder that is watched. inotify(7)
//! watches directories one by one, so a folder is watched once all its directories are. A folder that has too many, or
//! whose file system may be changed by other hosts, is not: then the second stays. inotify does not say who changed
//! something, so the guest hears of its own changes too; fanotify(7) would say it, but only to root, and not of names in
//! an overlay on the kernels of Debian 12.

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
use std::time::Duration;

use heddle_abi::control::{ShareChanged, kind, put_word};
use heddle_streams::Outbox;
use rustix::fs::inotify;
use rustix::fs::inotify::{CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::guest::share::Share;

/// Directories of one folder that are watched, at most: each takes about a kilobyte of the host's kernel.
const DIRECTORIES_MAX: usize = 50_000;
/// How long changes are gathered, so that a file that is written to is told about once.
const GATHER: Duration = Duration::from_millis(10);
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
    let watch = Watch { queue, folders, directories: HashMap::new(), messages: far };
    thread::Builder::new().name(String::from("watch")).spawn(move || watch.run()).ok()?;
    Some(near)
}

/// A directory that is watched: the folder's number, and the path in it.
type Place = (usize, PathBuf);

struct Watch {
    queue: OwnedFd,
    folders: Vec<PathBuf>,
    directories: HashMap<i32, Place>,
    messages: UnixStream,
}

/// One event.
struct Change {
    watch: i32,
    flags: ReadFlags,
    name: Vec<u8>,
}

impl Watch {
    /// Watches until nobody hears the messages any more.
    fn run(mut self) {
        for folder in 0..self.folders.len() {
            let path = &self.folders[folder];
            let is_local = rustix::fs::statfs(path).is_ok_and(|found| !REMOTE.contains(&(found.f_type as u32)));
            if !is_local || self.add(folder, PathBuf::new()).is_err() {
                self.directories.retain(|_, (of, _)| *of != folder);
                continue;
            }
            let mut message = Outbox::default();
            if !put_folder(&mut message, kind::SHARE_WATCHED, folder) || !self.send(&message) {
                return;
            }
        }
        while let Some(changes) = self.wait() {
            if !self.tell(&changes) {
                return;
            }
            thread::sleep(GATHER);
        }
    }

    fn send(&self, message: &Outbox) -> bool {
        (&self.messages).write_all(message.waiting()).is_ok()
    }

    /// Watches a directory and all below it.
    fn add(&mut self, folder: usize, path: PathBuf) -> Result<(), Errno> {
        let mut left = vec![path];
        while let Some(path) = left.pop() {
            let place = self.folders[folder].join(&path);
            let flags = WatchFlags::CREATE
                | WatchFlags::DELETE
                | WatchFlags::MODIFY
                | WatchFlags::ATTRIB
                | WatchFlags::MOVE
                | WatchFlags::ONLYDIR
                | WatchFlags::DONT_FOLLOW;
            let watch = match inotify::add_watch(&self.queue, &place, flags) {
                Ok(watch) => watch,
                // It is gone again.
                Err(Errno::NOENT | Errno::NOTDIR) => continue,
                Err(error) => return Err(error),
            };
            self.directories.insert(watch, (folder, path.clone()));
            if self.directories.len() > DIRECTORIES_MAX {
                return Err(Errno::NOSPC);
            }
            // What is in a directory that cannot be read, the guest cannot see either.
            let entries = fs::read_dir(&place).into_iter().flatten().flatten();
            let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            left.extend(directories.map(|entry| path.join(entry.file_name())));
        }
        Ok(())
    }

    /// Waits for changes.
    fn wait(&self) -> Option<Vec<Change>> {
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
        let mut told = BTreeSet::new();
        let mut message = Outbox::default();
        let mut is_all = false;
        for change in changes {
            is_all |= change.flags.contains(ReadFlags::QUEUE_OVERFLOW);
            if change.flags.contains(ReadFlags::IGNORED) {
                self.directories.remove(&change.watch);
                continue;
            }
            let Some((folder, path)) = self.directories.get(&change.watch).cloned() else { continue };
            let is_new = change.flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
            if is_new && change.flags.contains(ReadFlags::ISDIR) {
                let inner = path.join(OsStr::from_bytes(&change.name));
                if self.add(folder, inner.clone()).is_err() {
                    put_folder(&mut message, kind::SHARE_UNWATCHED, folder);
                    self.directories.retain(|_, (of, _)| *of != folder);
                    continue;
                }
                told.insert((folder, inner, Vec::new()));
            }
            told.insert((folder, path, change.name.clone()));
        }
        let all = ShareChanged { folder: ShareChanged::ALL, directory: b"", name: b"" };
        let put = |message: &mut Outbox, (folder, path, name): &(usize, PathBuf, Vec<u8>)| {
            let folder = u32::try_from(*folder).unwrap_or(ShareChanged::ALL);
            ShareChanged { folder, directory: bytes(path), name }.put(message)
        };
        let is_put = if is_all {
            all.put(&mut message)
        } else {
            told.iter().try_for_each(|change| put(&mut message, change))
        };
        is_put.is_ok() && self.send(&message)
    }
}

fn put_folder(message: &mut Outbox, kind: u32, folder: usize) -> bool {
    u32::try_from(folder).is_ok_and(|number| put_word(message, kind, number).is_ok())
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}
