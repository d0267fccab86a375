//! Messages: a header, and numbers as text.
//!
//! | bytes | contents |
//! |---|---|
//! | 0 to 4 | length of the text, little-endian |
//! | 4 | kind: 0 a matrix, 1 the product, 2 a new priority for another connection, 3 a matrix under the server's lock |
//! | 5 | priority of the connection, 0 the most urgent; it counts in the connection's first message |
//! | 6 to 8 | rows of the matrix |
//! | 8 to 16 | number of the request, which its reply repeats; kind 2: the port of the other connection's client |

/// Bytes of a header.
pub const HEADER_BYTES: usize = 16;
/// The longest text that is taken.
const TEXT_MAX_BYTES: usize = 1 << 20;
/// Priorities that a connection may have.
pub const PRIORITIES: u8 = 8;

/// The kinds of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A matrix, of which the square is wanted.
    Matrix = 0,
    /// The square.
    Product = 1,
    /// The new priority of another connection. The reply is the same message.
    Priority = 2,
    /// A matrix, whose square is computed while the server's one lock is held.
    Locked = 3,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The kind.
    pub kind: Kind,
    /// The priority, below [`PRIORITIES`].
    pub priority: u8,
    /// Rows and columns.
    pub rows: u16,
    /// The number.
    pub number: u64,
    /// The text.
    pub text: Vec<u8>,
}

impl Message {
    /// Appends the message as bytes.
    pub fn encode(&self, to: &mut Vec<u8>) {
        encode(to, self.kind, self.priority, self.rows, self.number, &self.text);
    }
}

/// Appends a message of these parts as bytes.
pub fn encode(to: &mut Vec<u8>, kind: Kind, priority: u8, rows: u16, number: u64, text: &[u8]) {
    to.extend_from_slice(&(text.len() as u32).to_le_bytes());
    to.push(kind as u8);
    to.push(priority);
    to.extend_from_slice(&rows.to_le_bytes());
    to.extend_from_slice(&number.to_le_bytes());
    to.extend_from_slice(text);
}

/// Puts messages together from pieces of a stream.
#[derive(Debug, Default)]
pub struct Framer {
    bytes: Vec<u8>,
    /// Up to where messages have been taken out.
    taken: usize,
}

impl Framer {
    /// Adds what came.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.taken = 0;
        } else if self.taken > TEXT_MAX_BYTES {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message that is complete.
    ///
    /// # Errors
    /// The bytes are no message.
    pub fn next(&mut self) -> Result<Option<Message>, String> {
        let rest = &self.bytes[self.taken..];
        let Some((header, rest)) = rest.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = match header[4] {
            0 => Kind::Matrix,
            1 => Kind::Product,
            2 => Kind::Priority,
            3 => Kind::Locked,
            kind => return Err(format!("a message of kind {kind}")),
        };
        if length > TEXT_MAX_BYTES || header[5] >= PRIORITIES {
            return Err(format!("a message of {length} bytes, priority {}", header[5]));
        }
        let Some(text) = rest.get(..length) else { return Ok(None) };
        let [_, _, _, _, _, priority, rows_low, rows_high, number @ ..] = *header;
        let message = Message {
            kind,
            priority,
            rows: u16::from_le_bytes([rows_low, rows_high]),
            number: u64::from_le_bytes(number),
            text: text.to_vec(),
        };
        self.taken += HEADER_BYTES + length;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_of_pieces_of_any_size() {
        let messages: Vec<Message> = (0..20_u16)
            .map(|rows| Message {
                kind: Kind::Matrix,
                priority: (rows % 8) as u8,
                rows,
                number: u64::from(rows) << 40,
                text: vec![b'0' + rows as u8; usize::from(rows) * 7],
            })
            .collect();
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| message.encode(&mut bytes));
        for size in [1, 3, 16, 17, 100, 10_000] {
            let (mut framer, mut got) = (Framer::default(), Vec::new());
            for piece in bytes.chunks(size) {
                framer.push(piece);
                while let Some(message) = framer.next().unwrap() {
                    got.push(message);
                }
            }
            assert_eq!(got, messages);
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [[255; HEADER_BYTES], [9; HEADER_BYTES]] {
            let mut framer = Framer::default();
            framer.push(&bytes);
            assert!(framer.next().is_err());
        }
    }
}
