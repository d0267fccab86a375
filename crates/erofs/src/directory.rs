//! Directories: blocks of entries, all names in byte order, so that both a block and an entry are found by
//! bisection.

use core::cmp::Ordering;

use crate::layout::{self, BLOCK_SIZE, DIRENT_SIZE, u16_at, u64_at};
use crate::{Error, FileType, Image, Inode, NAME_LIMIT};

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The name: not empty, without NUL and slash. `.` and `..` are entries like others.
    pub name: &'a [u8],
    /// The number of the inode it names.
    pub nid: u64,
    /// The type of that inode, as the directory records it.
    pub file_type: FileType,
    /// Where [`Image::entries`] continues after this entry.
    pub next: u64,
}

/// A directory block with its entry count checked.
struct Block<'a> {
    bytes: &'a [u8],
    count: usize,
    /// Number of the block in the directory.
    index: u64,
}

impl<'a> Block<'a> {
    /// Block number `index` of a directory, or nothing if the directory ends before it.
    fn read(image: &Image<'a>, directory: &Inode, index: u64) -> Result<Option<Self>, Error> {
        let Some(start) = index.checked_mul(BLOCK_SIZE as u64) else {
            return Ok(None);
        };
        let Some(part) = directory.part_in(image.bytes(), start) else {
            return Ok(None);
        };
        let bytes = &part[..part.len().min(BLOCK_SIZE)];
        let names = u16_at(bytes, layout::DIRENT_NAME_OFFSET).ok_or(Error::Directory)?;
        let count = usize::from(names) / DIRENT_SIZE;
        if count == 0 || usize::from(names) >= bytes.len() {
            return Err(Error::Directory);
        }
        Ok(Some(Block { bytes, count, index }))
    }

    fn entry(&self, number: usize) -> Result<Entry<'a>, Error> {
        let at = number * DIRENT_SIZE;
        let name_offset = |at| u16_at(self.bytes, at + layout::DIRENT_NAME_OFFSET).map(usize::from);
        let name = name_offset(at).and_then(|start| {
            if number + 1 < self.count {
                return self.bytes.get(start..name_offset(at + DIRENT_SIZE)?);
            }
            // Only the last name does not end where a following entry's name begins, but at padding or the block's end.
            let rest = self.bytes.get(start..)?;
            rest.get(..rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len()))
        });
        let name = name.ok_or(Error::Directory)?;
        let plain =
            (1..=NAME_LIMIT).contains(&name.len()) && !name.iter().any(|&byte| byte == 0 || byte == b'/');
        let nid = u64_at(self.bytes, at).ok_or(Error::Directory)?;
        let kind = self.bytes.get(at + layout::DIRENT_TYPE).copied().and_then(FileType::from_entry_code);
        match kind {
            Some(file_type) if plain => {
                let next = self.index * BLOCK_SIZE as u64 + (at + DIRENT_SIZE) as u64;
                Ok(Entry { name, nid, file_type, next })
            }
            _ => Err(Error::Directory),
        }
    }
}

impl<'a> Image<'a> {
    /// Finds `name` in a directory.
    pub fn lookup(&self, directory: &Inode, name: &[u8]) -> Result<Option<Entry<'a>>, Error> {
        if directory.file_type != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        // The last block whose first name is not after `name`: `low` blocks start at or before it.
        let (mut low, mut high) = (0, directory.size.div_ceil(BLOCK_SIZE as u64));
        while low < high {
            let middle = low + (high - low) / 2;
            let block = Block::read(self, directory, middle)?.ok_or(Error::Directory)?;
            match block.entry(0)?.name.cmp(name) {
                Ordering::Equal => return block.entry(0).map(Some),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        let Some(index) = low.checked_sub(1) else {
            return Ok(None);
        };
        let block = Block::read(self, directory, index)?.ok_or(Error::Directory)?;
        let (mut low, mut high) = (1, block.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = block.entry(middle)?;
            match entry.name.cmp(name) {
                Ordering::Equal => return Ok(Some(entry)),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        Ok(None)
    }

    /// The entries of a directory from `cookie` on: 0, or the [`next`](Entry::next) of the last entry seen. A
    /// cookie from elsewhere does no harm.
    pub fn entries(&self, directory: &Inode, cookie: u64) -> Result<Entries<'a>, Error> {
        if directory.file_type != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        Ok(Entries { image: *self, directory: *directory, cookie, failed: false })
    }
}

/// The entries of a directory, in byte order of their names; ends after an error.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    image: Image<'a>,
    directory: Inode,
    cookie: u64,
    failed: bool,
}

impl<'a> Entries<'a> {
    fn step(&mut self) -> Result<Option<Entry<'a>>, Error> {
        loop {
            let index = self.cookie / BLOCK_SIZE as u64;
            let Some(block) = Block::read(&self.image, &self.directory, index)? else {
                return Ok(None);
            };
            let number = (self.cookie as usize % BLOCK_SIZE).div_ceil(DIRENT_SIZE);
            if number < block.count {
                let entry = block.entry(number)?;
                self.cookie = entry.next;
                return Ok(Some(entry));
            }
            match (index + 1).checked_mul(BLOCK_SIZE as u64) {
                Some(cookie) => self.cookie = cookie,
                None => return Ok(None),
            }
        }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let step = self.step();
        self.failed = step.is_err();
        step.transpose()
    }
}
