//! The operations that a ring is restricted to: `IORING_REGISTER_RESTRICTIONS`.

use linux_raw_sys::io_uring::{io_uring_op as Op, io_uring_register_op as Register};

use super::InvalidEntry;

/// Operations and registrations that Linux 6.1 knows.
const ENTRIES: u8 = Op::IORING_OP_SENDMSG_ZC as u8 + 1;
const REGISTRATIONS: u8 = Register::IORING_REGISTER_FILE_ALLOC_RANGE as u8 + 1;

/// An element of the list that a program registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restriction {
    /// This registration is allowed.
    Register(u8),
    /// This operation is allowed.
    Entry(u8),
    /// These flags of entries are allowed.
    FlagsAllowed(u8),
    /// These flags of entries are required.
    FlagsRequired(u8),
}

/// The restrictions of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restrictions {
    /// Whether there are any.
    pub is_set: bool,
    registrations: u64,
    entries: u64,
    flags_allowed: u8,
    flags_required: u8,
}

impl Restrictions {
    /// Adds an element.
    ///
    /// # Errors
    /// [`InvalidEntry`]: there is no such operation.
    pub const fn add(&mut self, restriction: Restriction) -> Result<(), InvalidEntry> {
        match restriction {
            Restriction::Register(number) if number < REGISTRATIONS => self.registrations |= 1 << number,
            Restriction::Entry(number) if number < ENTRIES => self.entries |= 1 << number,
            Restriction::FlagsAllowed(flags) => self.flags_allowed = flags,
            Restriction::FlagsRequired(flags) => self.flags_required = flags,
            _ => return Err(InvalidEntry),
        }
        Ok(())
    }

    /// Whether a registration is allowed.
    #[must_use]
    pub const fn allows_register(&self, number: u8) -> bool {
        !self.is_set || number < 64 && self.registrations & 1 << number != 0
    }

    /// Whether an entry is allowed.
    #[must_use]
    pub const fn allows_entry(&self, opcode: u8, flags: u8) -> bool {
        let is_listed = opcode < 64 && self.entries & 1 << opcode != 0;
        let has_required = flags & self.flags_required == self.flags_required;
        let others = flags & !(self.flags_allowed | self.flags_required);
        !self.is_set || is_listed && has_required && others == 0
    }
}
