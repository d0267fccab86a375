//! The options of a mount that a program serves, mount.fuse(8).

/// The options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseOptions {
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
}

impl FuseOptions {
    /// Reads the options; `None` if one is wrong, or one of the four is missing that there must be.
    #[must_use]
    pub fn parse(options: &[u8]) -> Option<Self> {
        let (mut descriptor, mut root_mode, mut user, mut group) = (None, None, None, None);
        let (mut is_for_all, mut checks_permissions, mut read_max) = (false, false, u32::MAX);
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
                // Of the file's own place in mounts(5), or only for block devices.
                "subtype" | "blksize" => {}
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
        })
    }
}
