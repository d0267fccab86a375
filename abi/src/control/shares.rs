//! Messages about shared folders.

use super::{Full, Reader, Sink, header, kind, put_bytes};

/// A FIFO or a socket in a shared folder that the host is asked to make, or to give other permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecialFile<'a> {
    /// The request's number, which comes back with the answer.
    pub number: u32,
    /// The folder's number.
    pub folder: u32,
    /// Type and permissions.
    pub mode: u32,
    /// Owner and group of a new file; `None` where the file is there already.
    pub owner: Option<(u32, u32)>,
    /// The path, relative to the folder.
    pub path: &'a [u8],
}

/// Somebody on the host has changed something in a shared folder, perhaps the guest itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareChanged<'a> {
    /// The folder's number; [`ShareChanged::ALL`] for all of them.
    pub folder: u32,
    /// A directory in it, relative to the folder.
    pub directory: &'a [u8],
    /// The name in the directory; empty for the directory itself.
    pub name: &'a [u8],
}

impl<'a> SpecialFile<'a> {
    /// Writes a [`kind::SPECIAL_FILE`] message.
    ///
    /// # Errors
    /// [`Full`] as the sink says.
    pub fn put(&self, sink: &mut impl Sink) -> Result<(), Full> {
        header(sink, kind::SPECIAL_FILE, 28 + self.path.len())?;
        let (uid, gid) = self.owner.unwrap_or_default();
        let is_new = u32::from(self.owner.is_some());
        for word in [self.number, self.folder, self.mode, is_new, uid, gid] {
            sink.put(&word.to_le_bytes())?;
        }
        put_bytes(sink, self.path)
    }

    /// Reads the payload of [`kind::SPECIAL_FILE`].
    #[must_use]
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        let (number, folder, mode) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let (is_new, uid, gid) = (reader.u32()? != 0, reader.u32()?, reader.u32()?);
        let owner = is_new.then_some((uid, gid));
        Some(Self { number, folder, mode, owner, path: reader.bytes()? })
    }

    /// Writes a [`kind::SPECIAL_FILE_DONE`] message.
    ///
    /// # Errors
    /// [`Full`] as the sink says.
    pub fn put_done(sink: &mut impl Sink, number: u32, error: u32) -> Result<(), Full> {
        header(sink, kind::SPECIAL_FILE_DONE, 8)?;
        sink.put(&number.to_le_bytes())?;
        sink.put(&error.to_le_bytes())
    }

    /// Reads the payload of [`kind::SPECIAL_FILE_DONE`]: number and error.
    #[must_use]
    pub fn parse_done(payload: &[u8]) -> Option<(u32, u32)> {
        let mut reader = Reader(payload);
        Some((reader.u32()?, reader.u32()?))
    }
}

impl<'a> ShareChanged<'a> {
    /// Anything in any folder may have changed.
    pub const ALL: u32 = u32::MAX;

    /// Writes a [`kind::SHARE_CHANGED`] message.
    ///
    /// # Errors
    /// [`Full`] as the sink says.
    pub fn put(&self, sink: &mut impl Sink) -> Result<(), Full> {
        header(sink, kind::SHARE_CHANGED, 12 + self.directory.len() + self.name.len())?;
        sink.put(&self.folder.to_le_bytes())?;
        put_bytes(sink, self.directory)?;
        put_bytes(sink, self.name)
    }

    /// Reads the payload of [`kind::SHARE_CHANGED`].
    #[must_use]
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        Some(Self { folder: reader.u32()?, directory: reader.bytes()?, name: reader.bytes()? })
    }
}
