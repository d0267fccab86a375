//! Extended attributes, which a server keeps.

use heddle_kernel_core::fuse::{FuseMessage, FuseReader, opcode};

use crate::error::Errno;
use crate::fs::fuse::node::FuseNode;
use crate::fs::xattr::{ServedAttributes, ServedValue};

/// The longest value and list, as everywhere.
const VALUE_MAX: usize = 64 << 10;
/// Bytes of an answer that says how long a value is.
const LENGTH_BYTES: usize = 8;

impl FuseNode {
    /// Asks for a value, or for how long it is where there is no room for any.
    fn ask_value(&self, mut message: FuseMessage, name: &[u8], room: usize) -> Result<ServedValue, Errno> {
        let room = room.min(VALUE_MAX);
        message.u32(room as u32);
        message.u32(0);
        if !name.is_empty() {
            message.name(name);
        }
        let answer = known(self.ask(message, room.max(LENGTH_BYTES)))?;
        match room {
            0 => Ok(ServedValue::Length((FuseReader::new(&answer).u32()? as usize).min(VALUE_MAX))),
            // A list is names, each with a zero behind it.
            _ if name.is_empty() && !is_list(&answer) => Err(Errno::EIO),
            _ if answer.len() > room => Err(Errno::EIO),
            _ => Ok(ServedValue::Bytes(answer)),
        }
    }
}

/// Whether bytes are names with a zero behind each.
fn is_list(bytes: &[u8]) -> bool {
    bytes
        .strip_suffix(&[0])
        .map_or(bytes.is_empty(), |names| names.split(|&byte| byte == 0).all(|name| !name.is_empty()))
}

/// The server's answer; a request that it does not know is one that the file system has not.
fn known<T>(answer: Result<T, Errno>) -> Result<T, Errno> {
    answer.map_err(|error| if error == Errno::ENOSYS { Errno::EOPNOTSUPP } else { error })
}

impl ServedAttributes for FuseNode {
    fn get(&self, name: &[u8], room: usize) -> Result<ServedValue, Errno> {
        self.connection().check_caller()?;
        self.ask_value(self.message(opcode::GETXATTR, LENGTH_BYTES + name.len() + 1)?, name, room)
    }

    fn list(&self, room: usize) -> Result<ServedValue, Errno> {
        self.connection().check_caller()?;
        self.ask_value(self.message(opcode::LISTXATTR, LENGTH_BYTES)?, &[], room)
    }

    fn set(&self, name: &[u8], value: &[u8], flags: u32) -> Result<(), Errno> {
        self.connection().check_caller()?;
        let mut message = self.message(opcode::SETXATTR, LENGTH_BYTES + name.len() + 1 + value.len())?;
        message.u32(value.len() as u32);
        message.u32(flags);
        message.name(name);
        message.bytes(value);
        let answer = known(self.ask(message, 0));
        self.expire();
        answer.map(drop)
    }

    fn remove(&self, name: &[u8]) -> Result<(), Errno> {
        self.connection().check_caller()?;
        let mut message = self.message(opcode::REMOVEXATTR, name.len() + 1)?;
        message.name(name);
        let answer = known(self.ask(message, 0));
        self.expire();
        answer.map(drop)
    }
}
