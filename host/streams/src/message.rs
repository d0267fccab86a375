//! Messages of [`heddle_abi::control`] on a byte stream that delivers them in pieces.

use std::io;
use std::os::fd::AsFd;

use heddle_abi::control::{Full, HEADER_BYTES, Sink, parse_header};

/// One received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// One of [`heddle_abi::control::kind`].
    pub kind: u32,
    /// The bytes after the header.
    pub payload: Vec<u8>,
}

/// The peer announced a message longer than any that the protocol has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Collects received bytes and cuts them into messages.
#[derive(Debug, Default)]
pub struct Messages {
    bytes: Vec<u8>,
}

impl Messages {
    /// Reads once from `source`; `false` says that it ended.
    ///
    /// # Errors
    /// The error of reading, except that nothing to read is no error.
    pub fn fill(&mut self, source: impl AsFd) -> io::Result<bool> {
        let mut chunk = [0; 4096];
        match rustix::io::read(source, &mut chunk) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.push(&chunk[..count]);
                Ok(true)
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next complete message.
    ///
    /// # Errors
    /// [`Malformed`] when the stream cannot be in step any more.
    pub fn take(&mut self) -> Result<Option<Message>, Malformed> {
        let Some((header, rest)) = self.bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let (length, kind) = parse_header(*header).ok_or(Malformed)?;
        let Some(payload) = rest.get(..length) else {
            return Ok(None);
        };
        let message = Message { kind, payload: payload.to_vec() };
        self.bytes.drain(..HEADER_BYTES + length);
        Ok(Some(message))
    }
}

impl Message {
    /// Passes the message on.
    ///
    /// # Errors
    /// [`Full`] as the sink says, and if it is longer than a message may be.
    pub fn put(&self, sink: &mut impl Sink) -> Result<(), Full> {
        let length = u32::try_from(self.payload.len()).map_err(|_| Full)?;
        sink.put(&length.to_le_bytes())?;
        sink.put(&self.kind.to_le_bytes())?;
        sink.put(&self.payload)
    }
}

/// Messages that wait to be sent.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Sink for Outbox {
    fn put(&mut self, bytes: &[u8]) -> Result<(), Full> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

impl Outbox {
    /// Whether everything was sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// The bytes that wait.
    #[must_use]
    pub fn waiting(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// How many bytes wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Sends as much as `sink` takes now.
    ///
    /// # Errors
    /// The error of writing, except that a full sink is no error.
    pub fn drain(&mut self, sink: impl AsFd) -> io::Result<()> {
        while !self.is_empty() {
            match rustix::io::write(&sink, &self.bytes[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use heddle_abi::control::{PAYLOAD_MAX_BYTES, kind, put_word};

    use super::*;

    #[test]
    fn messages_arrive_whole_however_they_are_cut() {
        let mut outbox = Outbox::default();
        put_word(&mut outbox, kind::SIGNAL, 2).unwrap();
        put_word(&mut outbox, kind::READER_GONE, 1).unwrap();
        for cut in 0..outbox.bytes.len() {
            let mut messages = Messages::default();
            let mut taken = Vec::new();
            for part in [&outbox.bytes[..cut], &outbox.bytes[cut..]] {
                messages.push(part);
                while let Some(message) = messages.take().unwrap() {
                    taken.push((message.kind, message.payload[0]));
                }
            }
            assert_eq!(taken, [(kind::SIGNAL, 2), (kind::READER_GONE, 1)], "cut at {cut}");
        }
    }

    #[test]
    fn an_absurd_length_is_refused() {
        let mut messages = Messages::default();
        messages.push(&u32::try_from(PAYLOAD_MAX_BYTES + 1).unwrap().to_le_bytes());
        messages.push(&kind::EXIT.to_le_bytes());
        assert_eq!(messages.take(), Err(Malformed));
    }
}
