//! The file that backs a guest's memory: the image at one of two offsets, by its length, and a hole behind it as large
//! as any guest.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

use heddle_abi::boot::{IMAGE_OFFSET, LARGE_IMAGE_OFFSET};
use heddle_erofs::write::{Plan, Tree, WriteError};

use crate::Progress;

/// How much longer than offset and image the file is made. The backing file of a guest must be as long as its memory
/// or longer, and takes no space where nothing was written.
pub const HOLE: u64 = 64 << 30;

/// Where an image of this length goes: it must not lie across the end of the machine's low memory.
const fn offset(length: u64) -> u64 {
    if IMAGE_OFFSET + length <= LARGE_IMAGE_OFFSET { IMAGE_OFFSET } else { LARGE_IMAGE_OFFSET }
}

/// Offset and length of the image in a file of this many bytes.
pub fn place(file_bytes: u64) -> Option<(u64, u64)> {
    let end = file_bytes.checked_sub(HOLE)?;
    let offset = if end <= LARGE_IMAGE_OFFSET { IMAGE_OFFSET } else { LARGE_IMAGE_OFFSET };
    Some((offset, end.checked_sub(offset)?))
}

/// Writes the image of `tree` to `file`, which is new and empty, and returns the image's offset and length.
pub fn write(
    file: &mut File,
    tree: &Tree,
    progress: &mut dyn FnMut(Progress),
) -> Result<(u64, u64), WriteError> {
    let plan = Plan::new(tree)?;
    let total = plan.length();
    let offset = offset(total);
    file.set_len(offset + total + HOLE).map_err(WriteError::Write)?;
    file.seek(SeekFrom::Start(offset)).map_err(WriteError::Write)?;
    plan.write(&mut *file, &mut |done| progress(Progress::Writing { done, total }))?;
    file.flush().map_err(WriteError::Write)?;
    Ok((offset, total))
}

#[cfg(test)]
mod tests {
    use super::{HOLE, offset, place};
    use heddle_abi::boot::{IMAGE_OFFSET, LARGE_IMAGE_OFFSET};

    #[test]
    fn the_length_of_a_file_tells_where_its_image_is() {
        let largest_below = LARGE_IMAGE_OFFSET - IMAGE_OFFSET;
        for length in [4096, largest_below, largest_below + 4096, LARGE_IMAGE_OFFSET, 10 << 30] {
            let offset = offset(length);
            assert_eq!(place(offset + length + HOLE), Some((offset, length)));
            assert_eq!(offset == IMAGE_OFFSET, length <= largest_below);
        }
        assert_eq!(place(HOLE), None);
    }
}
