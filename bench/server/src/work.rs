//! The work of a request: the square of a matrix, whose numbers come and go as text. A matrix of 20 rows is 1,200 bytes
//! and its square 2,400, as in the paper.

use crate::wire::{Kind, Message};

/// Bytes of a number in a request: two digits and a space.
const GIVEN_BYTES: usize = 3;
/// Bytes of a number in a reply: five digits, which a square of 20 rows has at most, and a space.
const PRODUCT_BYTES: usize = 6;
/// The largest number of a matrix that is made here: 20 × 70² has five digits.
const NUMBER_MAX: u64 = 70;

/// The text of a matrix of this many rows, by seed.
#[must_use]
pub fn matrix(rows: u16, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut text = Vec::new();
    for _ in 0..u32::from(rows) * u32::from(rows) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        number(&mut text, (10 + (state >> 33) % (NUMBER_MAX - 9)) as u32, GIVEN_BYTES);
    }
    text
}

/// Appends a number with leading zeros, and a space.
fn number(text: &mut Vec<u8>, mut number: u32, bytes: usize) {
    let end = text.len() + bytes;
    text.resize(end, b' ');
    for place in (end - bytes..end - 1).rev() {
        text[place] = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// The reply to a request.
///
/// # Errors
/// Its text is no such matrix.
pub fn answer(request: &Message) -> Result<Message, String> {
    let text = square(request.rows, &request.text).ok_or("the text is not a matrix")?;
    let Message { priority, rows, number, .. } = *request;
    Ok(Message { kind: Kind::Product, priority, rows, number, text })
}

/// The text of a matrix's square.
#[must_use]
pub fn square(rows: u16, text: &[u8]) -> Option<Vec<u8>> {
    let rows = usize::from(rows);
    if text.len() != rows * rows * GIVEN_BYTES {
        return None;
    }
    let digit = |byte: u8| byte.is_ascii_digit().then(|| u32::from(byte - b'0'));
    let given = |bytes: &[u8]| Some(digit(bytes[0])? * 10 + digit(bytes[1])?);
    let matrix: Vec<u32> = text.chunks_exact(GIVEN_BYTES).map(given).collect::<Option<_>>()?;
    let mut product = vec![0; rows];
    let mut reply = Vec::with_capacity(rows * rows * PRODUCT_BYTES);
    for row in matrix.chunks_exact(rows.max(1)) {
        product.fill(0);
        for (factor, other) in row.iter().zip(matrix.chunks_exact(rows)) {
            product.iter_mut().zip(other).for_each(|(sum, value)| *sum += factor * value);
        }
        product.iter().for_each(|&sum| number(&mut reply, sum, PRODUCT_BYTES));
    }
    Some(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_are_right_and_have_the_paper_s_sizes() {
        assert_eq!(square(2, b"01 02 03 04 ").unwrap(), b"00007 00010 00015 00022 ");
        assert_eq!(square(1, b"70 ").unwrap(), b"04900 ");
        let text = matrix(20, 7);
        assert_eq!((text.len(), square(20, &text).unwrap().len()), (1200, 2400));
        assert_eq!(square(2, b"01 02 03 "), None);
        assert_eq!(square(1, b"xx "), None);
    }
}
