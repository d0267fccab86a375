//! A server of a small file system in memory, which answers what the protocol says.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::harness::OrFail;
use crate::mounts::mount_with;

pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
}

const HEADER_BYTES: usize = 40;
const ROOT: u64 = 1;
/// `FOPEN_DIRECT_IO`: no kernel keeps bytes.
const DIRECT_IO: u32 = 1;

/// A request.
pub struct Asked {
    pub opcode: u32,
    pub unique: u64,
    pub node: u64,
    pub uid: u32,
    pub fields: Vec<u8>,
}

impl Asked {
    /// Reads the bytes of a request.
    pub fn parse(bytes: &[u8]) -> Self {
        Self {
            opcode: word(bytes, 4),
            unique: long(bytes, 8),
            node: long(bytes, 16),
            uid: word(bytes, 24),
            fields: bytes[HEADER_BYTES..].to_vec(),
        }
    }

    /// The name that begins at a place of the fields.
    pub fn name(&self, at: usize) -> String {
        let bytes = self.fields[at..].split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    }
}

pub fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]))
}

pub fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]))
}

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

fn longs(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// A value for somebody who has so much room; without any it is the length that is asked for.
fn limited(value: Vec<u8>, room: u32) -> Result<Vec<u8>, i32> {
    match room as usize {
        0 => Ok(words(&[value.len() as u32, 0])),
        room if value.len() > room => Err(libc::ERANGE),
        _ => Ok(value),
    }
}

struct Node {
    mode: u32,
    links: u32,
    uid: u32,
    bytes: Vec<u8>,
    children: BTreeMap<String, u64>,
    extended: BTreeMap<String, Vec<u8>>,
    /// The looks at it that the kernel has not given back.
    looks: u64,
}

/// The files, and a record of what was asked.
pub struct Files {
    nodes: BTreeMap<u64, Node>,
    next: u64,
    opened: u64,
    pub asked: Vec<u32>,
    /// The numbers of users that asked.
    pub users: Vec<u32>,
}

impl Files {
    fn new() -> Self {
        let mut files =
            Self { nodes: BTreeMap::new(), next: ROOT, opened: 0, asked: Vec::new(), users: Vec::new() };
        files.make(libc::S_IFDIR | 0o755);
        files.nodes.get_mut(&ROOT).into_iter().for_each(|root| root.looks = 0);
        files
    }

    fn make(&mut self, mode: u32) -> u64 {
        let (bytes, children, extended) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let node = Node { mode, links: 1, uid: 0, bytes, children, extended, looks: 0 };
        self.nodes.insert(self.next, node);
        self.next += 1;
        self.next - 1
    }

    /// A file in the root that the kernel has not heard of.
    pub fn add_file(&mut self) {
        let _ = self.add(ROOT, "file", libc::S_IFREG | 0o644);
    }

    /// Looks that the kernel holds, and files that it has open.
    pub fn held(&self) -> (u64, u64) {
        (self.nodes.iter().filter(|(id, _)| **id != ROOT).map(|(_, node)| node.looks).sum(), self.opened)
    }

    pub fn count(&self, opcode: u32) -> usize {
        self.asked.iter().filter(|&&asked| asked == opcode).count()
    }

    fn attributes(&self, id: u64) -> Vec<u8> {
        let node = &self.nodes[&id];
        let mut bytes = longs(&[id, node.bytes.len() as u64, 0, 11, 12, 13]);
        bytes.extend(words(&[0, 0, 0, node.mode, node.links, node.uid, 0, 0, 4096, 0]));
        bytes
    }

    fn entry(&mut self, id: u64) -> Vec<u8> {
        self.nodes.get_mut(&id).into_iter().for_each(|node| node.looks += 1);
        let mut bytes = longs(&[id, 0, 0, 0, 0]);
        bytes.extend(self.attributes(id));
        bytes
    }

    fn found(&self, node: u64, name: &str) -> Result<u64, i32> {
        self.nodes.get(&node).and_then(|node| node.children.get(name)).copied().ok_or(libc::ENOENT)
    }

    fn node(&mut self, id: u64) -> Result<&mut Node, i32> {
        self.nodes.get_mut(&id).ok_or(libc::ENOENT)
    }

    fn add(&mut self, directory: u64, name: &str, mode: u32) -> Result<u64, i32> {
        if self.found(directory, name).is_ok() {
            return Err(libc::EEXIST);
        }
        let id = self.make(mode);
        self.node(directory)?.children.insert(name.to_owned(), id);
        Ok(id)
    }

    fn set(&mut self, asked: &Asked) -> Result<Vec<u8>, i32> {
        let (valid, fields) = (word(&asked.fields, 0), &asked.fields);
        let node = self.node(asked.node)?;
        if valid & 1 != 0 {
            node.mode = node.mode & libc::S_IFMT | word(fields, 68) & 0o7777;
        }
        if valid & 2 != 0 {
            node.uid = word(fields, 76);
        }
        if valid & 8 != 0 {
            node.bytes.resize(long(fields, 16) as usize, 0);
        }
        self.with_attributes(asked.node)
    }

    fn with_attributes(&mut self, id: u64) -> Result<Vec<u8>, i32> {
        self.node(id)?;
        let mut bytes = longs(&[0, 0]);
        bytes.extend(self.attributes(id));
        Ok(bytes)
    }

    fn list(&mut self, asked: &Asked) -> Result<Vec<u8>, i32> {
        let (from, most) = (long(&asked.fields, 8) as usize, word(&asked.fields, 16) as usize);
        let mut bytes = Vec::new();
        let children = self.node(asked.node)?.children.clone();
        for (place, (name, id)) in children.iter().enumerate().skip(from) {
            let mut entry = longs(&[*id, place as u64 + 1]);
            entry.extend(words(&[name.len() as u32, self.nodes[id].mode >> 12]));
            entry.extend(name.as_bytes());
            entry.resize(entry.len().next_multiple_of(8), 0);
            if bytes.len() + entry.len() > most {
                break;
            }
            bytes.extend(entry);
        }
        Ok(bytes)
    }

    fn forget(&mut self, id: u64, looks: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.looks = node.looks.wrapping_sub(looks);
        }
    }

    fn opened(&mut self) -> Vec<u8> {
        self.opened += 1;
        let mut bytes = longs(&[self.opened + 100]);
        bytes.extend(words(&[DIRECT_IO, 0]));
        bytes
    }

    /// The answer to a request; `None` if it has none.
    pub fn answer(&mut self, asked: &Asked) -> Option<Result<Vec<u8>, i32>> {
        self.asked.push(asked.opcode);
        self.users.push(asked.uid);
        match asked.opcode {
            opcode::FORGET => {
                self.forget(asked.node, long(&asked.fields, 0));
                None
            }
            opcode::BATCH_FORGET => {
                for number in 0..word(&asked.fields, 0) as usize {
                    let at = 8 + number * 16;
                    self.forget(long(&asked.fields, at), long(&asked.fields, at + 8));
                }
                None
            }
            opcode::INTERRUPT => None,
            _ => Some(self.try_answer(asked)),
        }
    }

    fn try_answer_about_attributes(&mut self, asked: &Asked) -> Result<Vec<u8>, i32> {
        let (node, fields) = (asked.node, &asked.fields);
        Ok(match asked.opcode {
            opcode::SETXATTR => {
                let (name, length) = (asked.name(8), word(fields, 0) as usize);
                let value = fields[8 + name.len() + 1..][..length].to_vec();
                self.node(node)?.extended.insert(name, value);
                Vec::new()
            }
            opcode::GETXATTR => {
                let value = self.node(node)?.extended.get(&asked.name(8)).cloned().ok_or(libc::ENODATA)?;
                limited(value, word(fields, 0))?
            }
            opcode::LISTXATTR => {
                let names =
                    self.node(node)?.extended.keys().flat_map(|name| format!("{name}\0").into_bytes());
                limited(names.collect(), word(fields, 0))?
            }
            opcode::REMOVEXATTR => {
                self.node(node)?.extended.remove(&asked.name(0)).ok_or(libc::ENODATA)?;
                Vec::new()
            }
            _ => return Err(libc::ENOSYS),
        })
    }

    fn try_answer(&mut self, asked: &Asked) -> Result<Vec<u8>, i32> {
        let (node, fields) = (asked.node, &asked.fields);
        Ok(match asked.opcode {
            opcode::INIT => {
                let mut bytes = words(&[7, 31, word(fields, 8), 0, 0, 1 << 16, 1]);
                bytes.resize(64, 0);
                bytes
            }
            opcode::LOOKUP => {
                let found = self.found(node, &asked.name(0))?;
                self.entry(found)
            }
            opcode::GETATTR => self.with_attributes(node)?,
            opcode::SETATTR => self.set(asked)?,
            opcode::READLINK => self.node(node)?.bytes.clone(),
            opcode::SYMLINK => {
                let name = asked.name(0);
                let target = asked.name(name.len() + 1).into_bytes();
                let id = self.add(node, &name, libc::S_IFLNK | 0o777)?;
                self.node(id)?.bytes = target;
                self.entry(id)
            }
            opcode::MKDIR => {
                let id = self.add(node, &asked.name(8), libc::S_IFDIR | word(fields, 0))?;
                self.entry(id)
            }
            opcode::CREATE => {
                let id = self.add(node, &asked.name(16), word(fields, 4))?;
                let mut bytes = self.entry(id);
                bytes.extend(self.opened());
                bytes
            }
            opcode::LINK => {
                let id = long(fields, 0);
                self.node(node)?.children.insert(asked.name(8), id);
                self.node(id)?.links += 1;
                self.entry(id)
            }
            opcode::UNLINK | opcode::RMDIR => {
                let id = self.found(node, &asked.name(0))?;
                if !self.node(id)?.children.is_empty() {
                    return Err(libc::ENOTEMPTY);
                }
                self.node(id)?.links -= 1;
                self.node(node)?.children.remove(&asked.name(0));
                Vec::new()
            }
            opcode::RENAME => {
                let name = asked.name(8);
                let id = self.node(node)?.children.remove(&name).ok_or(libc::ENOENT)?;
                let new_name = asked.name(8 + name.len() + 1);
                self.node(long(fields, 0))?.children.insert(new_name, id);
                Vec::new()
            }
            opcode::OPEN | opcode::OPENDIR => self.opened(),
            opcode::RELEASE | opcode::RELEASEDIR => {
                self.opened -= 1;
                Vec::new()
            }
            opcode::READ => {
                let (from, most) = (long(fields, 8) as usize, word(fields, 16) as usize);
                let bytes = &self.node(node)?.bytes;
                let from = from.min(bytes.len());
                bytes[from..(from + most).min(bytes.len())].to_vec()
            }
            opcode::WRITE => {
                let (from, length) = (long(fields, 8) as usize, word(fields, 16) as usize);
                let bytes = &mut self.node(node)?.bytes;
                bytes.resize(bytes.len().max(from + length), 0);
                bytes[from..from + length].copy_from_slice(&fields[40..40 + length]);
                words(&[length as u32, 0])
            }
            opcode::STATFS => {
                let mut bytes = longs(&[1000, 600, 500, 70, 60]);
                bytes.extend(words(&[4096, 255, 4096, 0]));
                bytes.resize(80, 0);
                bytes
            }
            opcode::READDIR => self.list(asked)?,
            opcode::SETXATTR..=opcode::REMOVEXATTR => self.try_answer_about_attributes(asked)?,
            opcode::FLUSH | opcode::FSYNC | opcode::DESTROY => Vec::new(),
            _ => return Err(libc::ENOSYS),
        })
    }
}

/// The descriptor of `/dev/fuse`, and the files.
#[derive(Clone)]
pub struct Server {
    device: Arc<Mutex<Option<Arc<File>>>>,
    files: Arc<Mutex<Files>>,
}

impl Server {
    /// Opens the device, and mounts what it serves.
    pub fn mount(target: &Path, options: &str) -> Result<Self, String> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").or_fail()?;
        let needed = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = format!("{needed}{options}");
        mount_with(Some(Path::new("served")), target, Some("fuse"), 0, Some(&options)).or_fail()?;
        let device = Arc::new(Mutex::new(Some(Arc::new(device))));
        Ok(Self { device, files: Arc::new(Mutex::new(Files::new())) })
    }

    /// Looks at the files.
    pub fn with<R>(&self, look: impl FnOnce(&mut Files) -> R) -> R {
        look(&mut self.files.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The descriptor by which it serves.
    pub fn device(&self) -> std::io::Result<Arc<File>> {
        let device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        device.clone().ok_or_else(|| std::io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Ends the connection, for which nobody may be reading.
    pub fn close(&self) {
        let device = self.device.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(device);
    }

    /// Has it serve by another descriptor.
    pub fn replace_device(&self, device: File) {
        let before = self.device.lock().unwrap_or_else(PoisonError::into_inner).replace(Arc::new(device));
        drop(before);
    }

    /// Waits until there is something to read.
    pub fn wait(&self) -> Result<(), String> {
        let device = self.device().or_fail()?;
        let mut polled = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::NONE).or_fail()?;
        Ok(())
    }

    /// Writes bytes, whatever they say.
    pub fn write_bytes(&self, bytes: &[u8]) -> std::io::Result<usize> {
        (&*self.device()?).write(bytes)
    }

    /// Reads a request; the error number if there is none any more.
    pub fn next(&self) -> Result<Asked, i32> {
        let mut bytes = vec![0; 256 << 10];
        let number = |error: std::io::Error| error.raw_os_error().unwrap_or(0);
        let length = (&*self.device().map_err(number)?).read(&mut bytes).map_err(number)?;
        Ok(Asked::parse(&bytes[..length]))
    }

    /// Answers a request by what the files say.
    pub fn answer(&self, asked: &Asked) {
        if let Some(answer) = self.with(|files| files.answer(asked)) {
            let (error, fields) = answer.map_or_else(|error| (-error, Vec::new()), |fields| (0, fields));
            let _ = self.say(asked.unique, error, &fields);
        }
    }

    /// Writes an answer.
    pub fn say(&self, unique: u64, error: i32, fields: &[u8]) -> std::io::Result<usize> {
        let mut bytes = words(&[16 + fields.len() as u32, error.cast_unsigned()]);
        bytes.extend(longs(&[unique]));
        bytes.extend(fields);
        self.write_bytes(&bytes)
    }

    /// Answers until there is nothing more to answer; returns the error that said so.
    pub fn serve(&self, mut before: impl FnMut(&Asked)) -> i32 {
        loop {
            match self.next() {
                Ok(asked) => {
                    before(&asked);
                    self.answer(&asked);
                }
                Err(libc::ENOENT | libc::EINTR) => {}
                Err(error) => return error,
            }
        }
    }

    /// The same in a thread of its own.
    pub fn start(&self, before: impl FnMut(&Asked) + Send + 'static) -> JoinHandle<i32> {
        let server = self.clone();
        std::thread::spawn(move || server.serve(before))
    }
}
