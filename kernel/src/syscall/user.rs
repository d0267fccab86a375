//! Small structures of C in user memory: on 64-bit machines those that system calls pass are rows of words.

use crate::error::Errno;
use crate::memory::Space;
use crate::memory::user::PageFault;

const WORD_BYTES: usize = size_of::<u64>();

/// Reads `N` 64-bit words.
///
/// # Errors
/// The page that is missing.
pub fn read_words<const N: usize>(space: &Space, address: usize) -> Result<[u64; N], PageFault> {
    let mut words = [0; N];
    for (index, word) in words.iter_mut().enumerate() {
        let mut bytes = [0; WORD_BYTES];
        space.read_bytes(address.wrapping_add(index * WORD_BYTES), &mut bytes)?;
        *word = u64::from_ne_bytes(bytes);
    }
    Ok(words)
}

/// Writes 64-bit words.
///
/// # Errors
/// The page that is missing.
pub fn write_words(space: &Space, address: usize, words: &[u64]) -> Result<(), PageFault> {
    for (index, word) in words.iter().enumerate() {
        space.write_bytes(address.wrapping_add(index * WORD_BYTES), &word.to_ne_bytes())?;
    }
    Ok(())
}

/// Reads a C `int` or `unsigned int`.
///
/// # Errors
/// The page that is missing.
pub fn read_int(space: &Space, address: usize) -> Result<u32, PageFault> {
    let mut bytes = [0; size_of::<u32>()];
    space.read_bytes(address, &mut bytes)?;
    Ok(u32::from_ne_bytes(bytes))
}

/// Writes a C `int` or `unsigned int`.
///
/// # Errors
/// The page that is missing.
pub fn write_int(space: &Space, address: usize, value: u32) -> Result<(), PageFault> {
    space.write_bytes(address, &value.to_ne_bytes())
}

/// Repeats an access until it needs no page that is missing. For calls that are past their start.
///
/// # Errors
/// `EFAULT`, `ENOMEM`.
pub async fn resolve<T>(
    space: &Space,
    mut access: impl FnMut(&Space) -> Result<T, PageFault>,
) -> Result<T, Errno> {
    loop {
        match access(space) {
            Ok(value) => return Ok(value),
            Err(fault) => space.fault_in(fault).await?,
        }
    }
}
