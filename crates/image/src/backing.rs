//! The file that backs a guest's memory: the image at its fixed offset, and a hole behind it as large as any guest.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

use heddle_abi::boot::IMAGE_OFFSET;
use heddle_erofs::write::{Plan, Tree, WriteError};

use crate::Progress;

/// How much longer than offset and image the file is made. The backing file of a guest must be as long as its memory
/// or longer, and takes no space where nothing was written.
pub const HOLE: u64 = 64 << 30;

/// Writes the image of `tree` to `file`, which is new and empty, and returns the image's length.
pub fn write(file: &mut File, tree: &Tree, progress: &mut dyn FnMut(Progress)) -> Result<u64, WriteError> {
    let plan = Plan::new(tree)?;
    let total = plan.length();
    file.set_len(IMAGE_OFFSET + total + HOLE).map_err(WriteError::Write)?;
    file.seek(SeekFrom::Start(IMAGE_OFFSET)).map_err(WriteError::Write)?;
    plan.write(&mut *file, &mut |done| progress(Progress::Writing { done, total }))?;
    file.flush().map_err(WriteError::Write)?;
    Ok(total)
}
