//! The options of a mount that a program serves, mount.fuse(8).

use alloc::vec::Vec;
use core::fmt::{self, Write};

use crate::OutOfMemory;
use crate::fallible::extend_reserved;

/// Text that is put together piece by piece.
struct OptionsText(Vec<u8>);

impl Write for OptionsText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.try_reserve(text.len()).map_err(|_| fmt::Error)?;
        extend_reserved(&mut self.0, text.as_bytes());
        Ok(())
    }
}

/// The options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseOptions<'a> {
    /// The descriptor of `/dev/fuse` by which the server speaks.
    pub descriptor: i32,
    /// The mode of the root, of which the type counts.
    pub root_mode: u32,
    /// Whoever mounts it, who alone may use it as a rule.
    pub user: u32,
    /// The group of the same.
    pub group: u32,
    /// Others may use it as well.
    pub is_for_all: bool,
    /// The kernel checks permissions, and not only the server.
    pub checks_permissions: bool,
    /// The most bytes of a `READ`.
    pub read_max: u32,
    /// The name that the kind of file system has behind `fuse.`.
    pub subtype: Option<&'a str>,
}

impl<'a> FuseOptions<'a> {
    /// Reads the options; `None` if one is wrong, or one of the four is missing that there must be.
    #[must_use]
    pub fn parse(options: &'a [u8]) -> Option<Self> {
        let (mut descriptor, mut root_mode, mut user, mut group) = (None, None, None, None);
        let (mut is_for_all, mut checks_permissions, mut read_max) = (false, false, u32::MAX);
        let mut subtype = None;
        let options = core::str::from_utf8(options).ok()?;
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match name {
                "fd" => descriptor = Some(value.parse().ok()?),
                "rootmode" => root_mode = Some(u32::from_str_radix(value, 8).ok()?),
                "user_id" => user = Some(value.parse().ok()?),
                "group_id" => group = Some(value.parse().ok()?),
                "allow_other" if value.is_empty() => is_for_all = true,
                "default_permissions" if value.is_empty() => checks_permissions = true,
                "max_read" => read_max = value.parse().ok()?,
                // It has one name.
                "subtype" if subtype.is_none() => subtype = Some(value),
                // Only for block devices.
                "blksize" => {}
                _ => return None,
            }
        }
        Some(Self {
            descriptor: descriptor?,
            root_mode: root_mode?,
            user: user?,
            group: group?,
            is_for_all,
            checks_permissions,
            read_max: if read_max == 0 { u32::MAX } else { read_max },
            subtype,
        })
    }

    /// The options as `/proc/mounts` has them.
    ///
    /// # Errors
    /// There is no memory.
    pub fn shown(&self) -> Result<Vec<u8>, OutOfMemory> {
        let mut text = OptionsText(Vec::new());
        self.write(&mut text).map_err(|_| OutOfMemory)?;
        Ok(text.0)
    }

    fn write(&self, text: &mut OptionsText) -> fmt::Result {
        write!(text, "user_id={},group_id={}", self.user, self.group)?;
        if self.checks_permissions {
            text.write_str(",default_permissions")?;
        }
        if self.is_for_all {
            text.write_str(",allow_other")?;
        }
        match self.read_max {
            u32::MAX => Ok(()),
            read_max => write!(text, ",max_read={read_max}"),
        }
    }
}
