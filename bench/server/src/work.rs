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
    let mut answer = Answer::to(request)?;
    while answer.step() {}
    Ok(answer.finish())
}

/// A reply in the making, a row a step: between two, what is preempted by asking can ask.
#[derive(Debug)]
pub struct Answer {
    reply: Message,
    matrix: Vec<u32>,
    sums: Vec<u32>,
    next: usize,
}

impl Answer {
    /// Begins the reply to a request.
    ///
    /// # Errors
    /// Its text is no such matrix.
    pub fn to(request: &Message) -> Result<Self, String> {
        let Message { priority, rows, number, .. } = *request;
        if request.kind == Kind::Priority {
            return Ok(Answer { reply: request.clone(), matrix: Vec::new(), sums: Vec::new(), next: 0 });
        }
        let count = usize::from(rows);
        let matrix = parse(count, &request.text).ok_or("the text is not a matrix")?;
        let text = Vec::with_capacity(count * count * PRODUCT_BYTES);
        let reply = Message { kind: Kind::Product, priority, rows, number, text };
        Ok(Answer { reply, matrix, sums: vec![0; count], next: 0 })
    }

    /// Computes the next row of the square. `false`: there is none.
    pub fn step(&mut self) -> bool {
        let rows = self.sums.len();
        let Some(row) =
            self.matrix.get(self.next * rows..(self.next + 1) * rows).filter(|row| !row.is_empty())
        else {
            return false;
        };
        self.next += 1;
        self.sums.fill(0);
        for (factor, other) in row.iter().zip(self.matrix.chunks_exact(rows)) {
            self.sums.iter_mut().zip(other).for_each(|(sum, value)| *sum += factor * value);
        }
        self.sums.iter().for_each(|&sum| number(&mut self.reply.text, sum, PRODUCT_BYTES));
        true
    }

    /// The reply, when all rows are computed.
    #[must_use]
    pub fn finish(self) -> Message {
        self.reply
    }
}

/// The numbers of a matrix's text.
fn parse(rows: usize, text: &[u8]) -> Option<Vec<u32>> {
    if text.len() != rows * rows * GIVEN_BYTES {
        return None;
    }
    let digit = |byte: u8| byte.is_ascii_digit().then(|| u32::from(byte - b'0'));
    let given = |bytes: &[u8]| Some(digit(bytes[0])? * 10 + digit(bytes[1])?);
    text.chunks_exact(GIVEN_BYTES).map(given).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn square(rows: u16, text: &[u8]) -> Result<Vec<u8>, String> {
        let request = Message { kind: Kind::Matrix, priority: 0, rows, number: 0, text: text.to_vec() };
        answer(&request).map(|reply| reply.text)
    }

    #[test]
    fn squares_are_right_and_have_the_paper_s_sizes() {
        assert_eq!(square(2, b"01 02 03 04 ").unwrap(), b"00007 00010 00015 00022 ");
        assert_eq!(square(1, b"70 ").unwrap(), b"04900 ");
        assert_eq!(square(0, b"").unwrap(), b"");
        let text = matrix(20, 7);
        assert_eq!((text.len(), square(20, &text).unwrap().len()), (1200, 2400));
        assert!(square(2, b"01 02 03 ").is_err());
        assert!(square(1, b"xx ").is_err());
    }
}
