//! Numbers as names: the digits of one, without an allocation.

/// The most digits of a number, and a mark before them.
const BYTES_MAX: usize = 21;

/// The digits of a number.
#[derive(Clone, Copy, Debug)]
pub struct Decimal {
    bytes: [u8; BYTES_MAX],
    first: usize,
}

impl Decimal {
    /// Those of this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        let (mut digits, mut rest) = (Self { bytes: [0; BYTES_MAX], first: BYTES_MAX }, number);
        loop {
            digits.first -= 1;
            digits.bytes[digits.first] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                return digits;
            }
        }
    }

    /// The same with a mark before them.
    #[must_use]
    pub const fn marked(mark: u8, number: u64) -> Self {
        let mut digits = Self::new(number);
        digits.first -= 1;
        digits.bytes[digits.first] = mark;
        digits
    }

    /// The digits.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.first..]
    }
}

#[cfg(test)]
mod tests {
    use super::Decimal;

    #[test]
    fn numbers_are_written_with_their_digits() {
        for number in [0, 9, 10, 4_294_967_295, u64::MAX] {
            assert_eq!(Decimal::new(number).as_bytes(), number.to_string().as_bytes());
            assert_eq!(Decimal::marked(b'#', number).as_bytes(), format!("#{number}").as_bytes());
        }
    }
}
