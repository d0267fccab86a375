//! The size of a kernel: the bytes that its ELF file asks to be loaded.

use std::path::Path;

use anyhow::{Context, Result};

const OFFSET_HEADERS: usize = 0x20;
const OFFSET_HEADER_SIZE: usize = 0x36;
const OFFSET_HEADER_COUNT: usize = 0x38;
const OFFSET_FILE_SIZE: usize = 0x20;
const TYPE_LOAD: u64 = 1;

/// Bytes of the file that are loaded; debug information is not.
///
/// # Errors
/// If it is no ELF file of 64 bits.
pub fn loaded_bytes(path: &Path) -> Result<u64> {
    let file = std::fs::read(path).with_context(|| path.display().to_string())?;
    sum(&file).with_context(|| format!("{}: no ELF file", path.display()))
}

fn sum(file: &[u8]) -> Option<u64> {
    let number = |offset: usize, bytes: usize| {
        let part = file.get(offset..offset.checked_add(bytes)?)?;
        Some(part.iter().rev().fold(0_u64, |value, &byte| value << 8 | u64::from(byte)))
    };
    let start = usize::try_from(number(OFFSET_HEADERS, 8)?).ok()?;
    let size = usize::try_from(number(OFFSET_HEADER_SIZE, 2)?).ok()?;
    let count = usize::try_from(number(OFFSET_HEADER_COUNT, 2)?).ok()?;
    let mut total = 0;
    for index in 0..count {
        let header = start.checked_add(index * size)?;
        if number(header, 4)? == TYPE_LOAD {
            total += number(header.checked_add(OFFSET_FILE_SIZE)?, 8)?;
        }
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loaded_segments_count() {
        let mut file = vec![0; 64 + 2 * 56];
        file[OFFSET_HEADERS] = 64;
        file[OFFSET_HEADER_SIZE] = 56;
        file[OFFSET_HEADER_COUNT] = 2;
        file[64] = 1;
        file[64 + OFFSET_FILE_SIZE + 1] = 2;
        file[64 + 56] = 4;
        file[64 + 56 + OFFSET_FILE_SIZE] = 9;
        assert_eq!(sum(&file), Some(512));
        assert_eq!(sum(&file[..100]), None);
    }
}
