//! The file that backs a guest's memory: the image at one of two offsets, by its length, and a hole behind it as large
//! as any guest. A layer is a file of its own, which has nothing but the image.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};

use heddle_abi::boot::{IMAGE_OFFSET, LARGE_IMAGE_OFFSET, LAYER_BYTES_MAX, LOW_MEMORY_END};
use heddle_erofs::write::{Plan, WriteError};

use crate::Progress;

/// How much longer than offset and image the file is made. The backing file of a guest must be as long as its memory
/// or longer, and takes no space where nothing was written.
pub const HOLE: u64 = 64 << 30;

/// Where an image of this length goes: it must not lie across the end of the machine's low memory.
const fn offset(length: u64) -> u64 {
    if IMAGE_OFFSET + length <= LOW_MEMORY_END { IMAGE_OFFSET } else { LARGE_IMAGE_OFFSET }
}

/// Offset and length of the image in a file of this many bytes.
pub fn place(file_bytes: u64) -> Option<(u64, u64)> {
    let end = file_bytes.checked_sub(HOLE)?;
    let offset = if end <= LOW_MEMORY_END { IMAGE_OFFSET } else { LARGE_IMAGE_OFFSET };
    Some((offset, end.checked_sub(offset)?))
}

/// Writes an image to `file`, which is new and empty, and returns the image's offset and length.
pub fn write(
    file: &mut File,
    plan: &Plan<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<(u64, u64), WriteError> {
    let (offset, total) = (offset(plan.length()), plan.length());
    file.set_len(offset + total + HOLE).map_err(WriteError::Write)?;
    write_at(file, offset, plan, progress)?;
    Ok((offset, total))
}

/// Whether a layer of this length is better than another image as a whole: the layer is read into memory at each start,
/// at 0.8 ms a megabyte, while the image is written once, but stays on the disk.
pub fn is_worthwhile(layer_bytes: u64, lower_bytes: u64) -> bool {
    layer_bytes <= LAYER_BYTES_MAX && layer_bytes <= lower_bytes / 2
}

/// Writes a layer to `file`, which is new and empty.
pub fn write_layer(
    file: &mut File,
    plan: &Plan<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), WriteError> {
    file.set_len(plan.length()).map_err(WriteError::Write)?;
    write_at(file, 0, plan, progress)
}

fn write_at(
    file: &mut File,
    offset: u64,
    plan: &Plan<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), WriteError> {
    let total = plan.length();
    file.seek(SeekFrom::Start(offset)).map_err(WriteError::Write)?;
    plan.write(&mut *file, &mut |done| progress(Progress::Writing { done, total }))?;
    file.flush().map_err(WriteError::Write)
}

#[cfg(test)]
mod tests {
    use super::{HOLE, offset, place};
    use heddle_abi::boot::{IMAGE_OFFSET, LARGE_IMAGE_OFFSET, LOW_MEMORY_END};

    #[test]
    fn the_length_of_a_file_tells_where_its_image_is() {
        let largest_below = LOW_MEMORY_END - IMAGE_OFFSET;
        for length in [4096, largest_below, largest_below + 4096, LARGE_IMAGE_OFFSET, 10 << 30] {
            let offset = offset(length);
            assert_eq!(place(offset + length + HOLE), Some((offset, length)));
            assert_eq!(offset == IMAGE_OFFSET, length <= largest_below);
        }
        assert_eq!(place(HOLE), None);
    }
}
