//! Records of process accounting, acct(5), in version 3.

/// Bytes of a record.
pub const RECORD_BYTES: usize = 64;
/// Times are in this part of a second.
pub const TICKS_PER_SECOND: u64 = 100;

const VERSION: u8 = 3;
const NAME_BYTES: usize = 16;

/// The process has forked, and executed nothing since.
pub const FORKED: u8 = 1;
/// It left a core dump.
pub const DUMPED: u8 = 8;
/// A signal ended it.
pub const SIGNALED: u8 = 16;

/// A process that has ended. Times are in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of acct(5)")]
pub struct Record {
    pub flags: u8,
    pub terminal: u16,
    pub exit_code: u32,
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
    pub ppid: u32,
    /// Seconds of real time.
    pub begin_s: u32,
    pub elapsed: u64,
    pub user: u64,
    pub system: u64,
    pub memory_kib: u64,
    pub minor_faults: u64,
    pub name: [u8; NAME_BYTES],
}

impl Record {
    /// As it is in the file. Major faults, swaps and transfers are 0, as in Linux but for the faults.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&[self.flags, VERSION]);
        put(&self.terminal.to_le_bytes());
        for word in [self.exit_code, self.uid, self.gid, self.pid, self.ppid, self.begin_s] {
            put(&word.to_le_bytes());
        }
        put(&float_bits(self.elapsed).to_le_bytes());
        for count in [self.user, self.system, self.memory_kib, 0, 0, self.minor_faults, 0, 0] {
            put(&compressed(count).to_le_bytes());
        }
        put(&self.name);
        bytes
    }
}

/// A `comp_t`: thirteen bits of a number, and three of an exponent to base 8. A number that is too large is the
/// largest.
const fn compressed(mut value: u64) -> u16 {
    const MANTISSA_BITS: u32 = 13;
    const MANTISSA_MAX: u64 = (1 << MANTISSA_BITS) - 1;
    const EXPONENT_MAX: u16 = 7;
    let (mut exponent, mut rounds_up) = (0, false);
    while value > MANTISSA_MAX {
        rounds_up = value & 4 != 0;
        value >>= 3;
        exponent += 1;
    }
    if rounds_up {
        value += 1;
        if value > MANTISSA_MAX {
            value >>= 3;
            exponent += 1;
        }
    }
    if exponent > EXPONENT_MAX { u16::MAX } else { exponent << MANTISSA_BITS | value as u16 }
}

/// The bits of a `float` that is not larger than the number.
const fn float_bits(value: u64) -> u32 {
    const MANTISSA_BITS: u32 = 23;
    const BIAS: u32 = 127;
    if value == 0 {
        return 0;
    }
    let zeros = value.leading_zeros();
    // The highest bit is implied.
    let mantissa = (value << zeros << 1 >> (u64::BITS - MANTISSA_BITS)) as u32;
    (BIAS + u64::BITS - 1 - zeros) << MANTISSA_BITS | mantissa
}

#[cfg(test)]
mod tests {
    use super::{RECORD_BYTES, Record, compressed, float_bits};

    fn expanded(value: u16) -> u64 {
        u64::from(value & 0x1fff) << (3 * (value >> 13))
    }

    #[test]
    fn numbers_are_compressed_to_the_nearest() {
        for value in [0, 1, 8191] {
            assert_eq!(u64::from(compressed(value)), value);
        }
        for value in [8192, 8195, 8196, 65_535, 1_000_000, 123_456_789, 10_000_000_000] {
            let found = expanded(compressed(value));
            assert!(found.abs_diff(value) <= value / 2048 + 1, "{value} {found}");
        }
        assert_eq!(compressed(u64::MAX), u16::MAX);
        // Rounding carries into the exponent.
        assert_eq!(expanded(compressed(8 * 8191 + 7)), 65_536);
    }

    #[test]
    fn floats_are_cut() {
        for value in [0, 1, 2, 3, 100, 16_777_215, 16_777_216] {
            assert_eq!(f32::from_bits(float_bits(value)) as u64, value);
        }
        assert_eq!(f32::from_bits(float_bits(16_777_217)) as u64, 16_777_216);
        assert_eq!(f32::from_bits(float_bits(u64::MAX)) as u128, (1_u128 << 64) - (1 << 40));
    }

    #[test]
    fn fields_are_at_their_places() {
        let name = *b"0123456789abcdef";
        let record =
            Record { flags: 2, pid: 7, ppid: 8, begin_s: 9, minor_faults: 5, name, ..Record::default() };
        let bytes = record.to_bytes();
        assert_eq!(bytes.len(), RECORD_BYTES);
        assert_eq!((bytes[0], bytes[1], bytes[16], bytes[20], bytes[24]), (2, 3, 7, 8, 9));
        assert_eq!((bytes[42], &bytes[48..]), (5, &name[..]));
    }
}
