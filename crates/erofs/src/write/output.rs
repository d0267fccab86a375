//! Where an image is written to, and the contents of files copied.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::WriteError;
use crate::layout::BLOCK_SIZE;

/// How much is read and written in one go.
const BUFFER_SIZE: usize = 1 << 20;

const ZEROES: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];

/// An image that is being written: whole blocks in order, those of zeroes left out.
pub struct Output<'a, W> {
    out: W,
    /// Bytes done, holes included.
    position: u64,
    /// Bytes of zeroes passed over since the last write.
    hole: u64,
    buffer: Vec<u8>,
    progress: &'a mut dyn FnMut(u64),
}

impl<'a, W: Write + Seek> Output<'a, W> {
    pub fn new(out: W, progress: &'a mut dyn FnMut(u64)) -> Result<Self, WriteError> {
        Ok(Output { out, position: 0, hole: 0, buffer: vec![0; BUFFER_SIZE], progress })
    }

    /// Bytes done.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Writes `bytes`, filled up to whole blocks.
    pub fn bytes(&mut self, mut bytes: &[u8]) -> Result<(), WriteError> {
        self.copy(Path::new(""), bytes.len() as u64, |buffer| bytes.read_exact(buffer))
    }

    /// Writes the contents of the file at `path`, which has `size` bytes.
    pub fn path(&mut self, path: &Path, size: u64) -> Result<(), WriteError> {
        let read_error = |error| WriteError::Read(path.to_owned(), error);
        let mut file = File::open(path).map_err(read_error)?;
        if file.metadata().map_err(read_error)?.len() != size {
            return Err(WriteError::Changed(path.to_owned()));
        }
        self.copy(path, size, |buffer| file.read_exact(buffer))
    }

    /// Writes `size` bytes of `file`, an archive, from `offset` on.
    pub fn part(&mut self, file: &File, offset: u64, size: u64) -> Result<(), WriteError> {
        let mut next = offset;
        self.copy(Path::new("archive"), size, |buffer| {
            file.read_exact_at(buffer, next)?;
            next += buffer.len() as u64;
            Ok(())
        })
    }

    /// Makes the output as long as the image, whatever it ends with.
    pub fn finish(mut self) -> Result<(), WriteError> {
        if self.hole > 0 {
            self.hole -= 1;
            self.write(&[0])?;
        }
        self.out.flush().map_err(WriteError::Write)
    }

    /// Writes `size` bytes, which `fill` puts into each buffer it is given; an error of it concerns `name`.
    fn copy(
        &mut self,
        name: &Path,
        size: u64,
        mut fill: impl FnMut(&mut [u8]) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut left = size;
        while left > 0 {
            let count = left.min(BUFFER_SIZE as u64) as usize;
            fill(&mut buffer[..count]).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => WriteError::Changed(name.to_owned()),
                _ => WriteError::Read(name.to_owned(), error),
            })?;
            let padded = count.next_multiple_of(BLOCK_SIZE);
            buffer[count..padded].fill(0);
            self.blocks(&buffer[..padded])?;
            left -= count as u64;
        }
        self.buffer = buffer;
        Ok(())
    }

    /// Writes whole blocks.
    fn blocks(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let blocks: Vec<&[u8]> = bytes.chunks_exact(BLOCK_SIZE).collect();
        let mut rest = bytes;
        for run in blocks.chunk_by(|a, b| (*a == ZEROES) == (*b == ZEROES)) {
            let (run_bytes, behind) = rest.split_at(run.len() * BLOCK_SIZE);
            rest = behind;
            if run[0] == ZEROES {
                self.hole += run_bytes.len() as u64;
            } else {
                self.write(run_bytes)?;
            }
        }
        self.position += bytes.len() as u64;
        (self.progress)(self.position);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let skipped = i64::try_from(std::mem::take(&mut self.hole)).map_err(|_| WriteError::TooLarge)?;
        if skipped > 0 {
            self.out.seek_relative(skipped).map_err(WriteError::Write)?;
        }
        self.out.write_all(bytes).map_err(WriteError::Write)
    }
}
