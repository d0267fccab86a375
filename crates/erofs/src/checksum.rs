//! CRC-32C as EROFS uses it: started with all ones, not inverted at the end.

use crate::layout::{BLOCK_SIZE, SUPER_OFFSET, superblock};

/// The remainder of each 4-bit value; half a byte a step keeps the table in two cache lines.
const TABLE: [u32; 16] = {
    let mut table = [0; 16];
    let mut value = 0;
    while value < 16 {
        let mut remainder = value as u32;
        let mut bit = 0;
        while bit < 4 {
            remainder = (remainder >> 1) ^ (if remainder & 1 == 1 { 0x82f6_3b78 } else { 0 });
            bit += 1;
        }
        table[value] = remainder;
        value += 1;
    }
    table
};

fn update(crc: u32, byte: u8) -> u32 {
    let crc = crc ^ u32::from(byte);
    let crc = (crc >> 4) ^ TABLE[(crc & 15) as usize];
    (crc >> 4) ^ TABLE[(crc & 15) as usize]
}

/// The checksum of the superblock in `block`, the image's first: from the superblock to the block's end, the
/// checksum itself taken as zero.
pub fn of_superblock(block: &[u8]) -> u32 {
    let stored = SUPER_OFFSET + superblock::CHECKSUM..SUPER_OFFSET + superblock::CHECKSUM + 4;
    let covered = block.iter().enumerate().take(BLOCK_SIZE).skip(SUPER_OFFSET);
    covered.fold(!0, |crc, (offset, &byte)| update(crc, if stored.contains(&offset) { 0 } else { byte }))
}

#[cfg(test)]
mod tests {
    #[test]
    fn check_value() {
        let crc = b"123456789".iter().fold(!0, |crc, &byte| super::update(crc, byte));
        assert_eq!(!crc, 0xe306_9283, "the check value of CRC-32C");
    }
}
