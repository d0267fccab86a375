//! Addresses of UNIX domain sockets: paths, and names in a table of their own ("abstract").

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt::Write;
use linux_raw_sys::{general as linux, net};

use crate::error::Errno;
use crate::fs::access::Access;
use crate::fs::dentry::copy_name;
use crate::fs::inode::{Contents, Creation};
use crate::fs::lookup::LookupFlags;
use crate::fs::view::View;
use crate::fs::{File, FileType, access, downcast_arc, landlock, notify};
use crate::memory::fallible;
use crate::net::namespace::NetNamespace;
use crate::net::{Socket, Style};
use crate::process::Thread;

use heddle_kernel_core::fallible::{extend_reserved, push_reserved};

/// Bytes of the family at the start of an address.
const FAMILY_BYTES: usize = core::mem::offset_of!(net::sockaddr_un, sun_path);
/// The longest path or name.
const NAME_LIMIT: usize = size_of::<net::sockaddr_un>() - FAMILY_BYTES;

/// An address.
#[derive(Debug, PartialEq, Eq)]
pub enum Address {
    /// A path in the file system, without the zero at its end.
    Path(Box<[u8]>),
    /// An abstract name, without the zero before it.
    Abstract(Box<[u8]>),
    /// To be chosen: binding to nothing.
    Unnamed,
}

impl Address {
    /// Reads a `struct sockaddr_un`; `None` for one of the family `AF_UNSPEC`.
    ///
    /// # Errors
    /// `EINVAL`, `EAFNOSUPPORT`, `ENOMEM`.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, Errno> {
        let family = bytes.first_chunk().map(|family| u16::from_ne_bytes(*family)).ok_or(Errno::EINVAL)?;
        match u32::from(family) {
            net::AF_UNSPEC => return Ok(None),
            net::AF_UNIX if bytes.len() <= FAMILY_BYTES + NAME_LIMIT => {}
            _ => return Err(Errno::EINVAL),
        }
        Ok(Some(match &bytes[FAMILY_BYTES..] {
            [] => Self::Unnamed,
            [0, name @ ..] => Self::Abstract(copy_name(name)?),
            path => {
                let end = path.iter().position(|&byte| byte == 0).unwrap_or(path.len());
                Self::Path(copy_name(&path[..end])?)
            }
        }))
    }

    /// The result of binding a socket to it that has an address already. As in Linux a path that is taken counts first.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EINVAL`.
    pub(super) fn bind_again(&self, thread: &Arc<Thread>) -> Result<(), Errno> {
        match self {
            Self::Unnamed => Ok(()),
            Self::Abstract(_) => Err(Errno::EINVAL),
            Self::Path(path) => {
                let walked = View::of(thread, linux::AT_FDCWD, path)
                    .and_then(|view| view.walk(thread, path, LookupFlags::empty()));
                let is_taken = walked.is_ok_and(|found| found.vacant().is_err());
                Err(if is_taken { Errno::EADDRINUSE } else { Errno::EINVAL })
            }
        }
    }

    /// The address as a `struct sockaddr_un` of its proper length; of nothing, for a socket without one.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn encode(address: Option<&Self>) -> Result<Vec<u8>, Errno> {
        let mut bytes = Self::room(true)?;
        Self::encode_into(address, &mut bytes);
        Ok(bytes)
    }

    /// Room for an encoded address, if one is `wanted`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn room(wanted: bool) -> Result<Vec<u8>, Errno> {
        fallible::try_with_capacity(if wanted { FAMILY_BYTES + NAME_LIMIT + 1 } else { 0 })
    }

    /// As [`Address::encode`], into what [`Address::room`] made.
    pub fn encode_into(address: Option<&Self>, bytes: &mut Vec<u8>) {
        extend_reserved(bytes, &(net::AF_UNIX as u16).to_ne_bytes());
        match address {
            Some(Self::Path(path)) => {
                extend_reserved(bytes, path);
                push_reserved(bytes, 0);
            }
            Some(Self::Abstract(name)) => {
                push_reserved(bytes, 0);
                extend_reserved(bytes, name);
            }
            Some(Self::Unnamed) | None => {}
        }
    }
}

/// Makes a socket known under an address.
pub(super) fn register(
    socket: &Arc<Socket>,
    thread: &Arc<Thread>,
    address: Address,
) -> Result<Arc<Address>, Errno> {
    // Nothing may fail once the name is taken.
    let address = fallible::try_arc(address)?;
    match &*address {
        Address::Path(path) => {
            let view = View::of(thread, linux::AT_FDCWD, path)?;
            let found = view.walk(thread, path, LookupFlags::empty())?;
            let name = found.vacant().map_err(|_| Errno::EADDRINUSE)?;
            landlock::check_make(&view.credentials, &found.directory, &Contents::Socket)?;
            access::check_create(&found.directory, &view.credentials)?;
            let permissions = 0o777 & !thread.directories().umask();
            let creation =
                Creation { contents: Contents::Socket, permissions, credentials: &view.credentials };
            let parent = &found.directory.entry;
            let created = parent.node.create(parent, name, &creation);
            let entry =
                created.map_err(|error| if error == Errno::EEXIST { Errno::EADDRINUSE } else { error })?;
            let weak: Weak<dyn File> = Arc::downgrade(socket) as Weak<dyn File>;
            entry.node.bind_socket(weak)?;
            notify::report_name(parent, name, FileType::Socket, linux::IN_CREATE);
        }
        Address::Abstract(name) => {
            if !claim(name, socket)? {
                return Err(Errno::EADDRINUSE);
            }
        }
        Address::Unnamed => {
            for number in 0..0x10_0000_u32 {
                let mut name = [0; 5];
                let mut rest = &mut name[..];
                // Five digits fit five bytes.
                let _ = write!(DecimalDigits(&mut rest), "{number:05x}");
                let address = fallible::try_arc(Address::Abstract(copy_name(&name)?))?;
                if claim(&name, socket)? {
                    return Ok(address);
                }
            }
            return Err(Errno::ENOSPC);
        }
    }
    Ok(address)
}

struct DecimalDigits<'a, 'b>(&'a mut &'b mut [u8]);

impl Write for DecimalDigits<'_, '_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let (head, rest) =
            core::mem::take(self.0).split_at_mut_checked(text.len()).ok_or(core::fmt::Error)?;
        head.copy_from_slice(text.as_bytes());
        *self.0 = rest;
        Ok(())
    }
}

/// An abstract name as the table has it: each style of sockets has names of its own.
struct Key {
    bytes: [u8; 1 + NAME_LIMIT],
    length: usize,
}

impl Key {
    fn new(style: Style, name: &[u8]) -> Self {
        let mut bytes = [0; 1 + NAME_LIMIT];
        let length = name.len().min(NAME_LIMIT);
        bytes[0] = style.number() as u8;
        bytes[1..=length].copy_from_slice(&name[..length]);
        Self { bytes, length: 1 + length }
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Takes an abstract name unless somebody has it.
fn claim(name: &[u8], socket: &Arc<Socket>) -> Result<bool, Errno> {
    let key = Key::new(socket.style, name);
    let name = key.as_slice();
    let mut names = socket.namespace.names.lock();
    if names.get(name).is_some_and(|known| known.strong_count() > 0) {
        return Ok(false);
    }
    names.insert(name, Arc::downgrade(socket)).map_err(|_| Errno::ENOMEM)?;
    Ok(true)
}

/// Gives an abstract name back. A path stays, as the file it is.
pub(super) fn forget(namespace: &NetNamespace, address: &Address, style: Style) {
    let Address::Abstract(name) = address else { return };
    let key = Key::new(style, name);
    let name = key.as_slice();
    let mut names = namespace.names.lock();
    // Connections share the address of the socket that accepted them; only the one that took the name gives it back.
    let gone = names.get(name).is_some_and(|known| known.strong_count() == 0);
    if gone {
        names.remove(name);
    }
}

/// The socket that is bound to an address, for one of the same style.
///
/// # Errors
/// `ECONNREFUSED` (nobody), `EPROTOTYPE` (one of another style), `EACCES`, and those of path resolution.
pub fn find_target(thread: &Arc<Thread>, address: &Address, by: &Socket) -> Result<Arc<Socket>, Errno> {
    let style = by.style;
    match address {
        Address::Unnamed => Err(Errno::EINVAL),
        Address::Abstract(name) => {
            let key = Key::new(style, name);
            let known = by.namespace.names.lock().get(key.as_slice()).cloned().ok_or(Errno::ECONNREFUSED)?;
            crate::net::upgrade(&known)
        }
        Address::Path(path) => {
            let view = View::of(thread, linux::AT_FDCWD, path)?;
            let place = view.walk(thread, path, LookupFlags::FOLLOW)?.existing()?;
            access::check_place(&place, &view.credentials, Access::WRITE)?;
            if place.entry.node.kind() != FileType::Socket {
                return Err(Errno::ECONNREFUSED);
            }
            let bound = place.entry.node.bound_socket().ok_or(Errno::ECONNREFUSED)?;
            let bound: Arc<Socket> = downcast_arc(&bound).ok_or(Errno::ECONNREFUSED)?;
            if bound.style == style { Ok(bound) } else { Err(Errno::EPROTOTYPE) }
        }
    }
}
