//! Buffers that asynchronous calls own while they are in flight.
#![allow(unsafe_code)] // The traits promise this.

/// Bytes to be read.
///
/// # Safety
/// The bytes stay where they are when the buffer is moved, and as they are until it is changed.
pub unsafe trait Buffer: Send + 'static {
    /// The bytes.
    fn bytes(&self) -> &[u8];
}

/// Bytes to be written.
///
/// # Safety
/// As for [`Buffer`]; and [`BufferMut::bytes_mut`] gives the same bytes.
pub unsafe trait BufferMut: Buffer {
    /// The bytes.
    fn bytes_mut(&mut self) -> &mut [u8];
}

macro_rules! buffers {
    ($($(#[$meta:meta])* $type:ty,)*) => {
        $(
            $(#[$meta])*
            // SAFETY: the bytes are in an allocation of their own, or for ever.
            unsafe impl Buffer for $type {
                fn bytes(&self) -> &[u8] {
                    self
                }
            }
        )*
    };
}

buffers! {
    Vec<u8>,
    Box<[u8]>,
    &'static [u8],
    std::sync::Arc<[u8]>,
}

// SAFETY: as above.
unsafe impl Buffer for String {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

// SAFETY: as above.
unsafe impl Buffer for &'static str {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

// SAFETY: as above.
unsafe impl BufferMut for Vec<u8> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

// SAFETY: as above.
unsafe impl BufferMut for Box<[u8]> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// The rest of a buffer, from some place on.
pub(crate) struct Rest<B> {
    pub whole: B,
    pub from: usize,
}

impl<B: Buffer> Rest<B> {
    /// All of it.
    pub fn of(whole: B) -> Rest<B> {
        Rest { whole, from: 0 }
    }
}

// SAFETY: the bytes are those of the whole buffer, whose promise this is.
unsafe impl<B: Buffer> Buffer for Rest<B> {
    fn bytes(&self) -> &[u8] {
        self.whole.bytes().get(self.from..).unwrap_or_default()
    }
}

// SAFETY: as above.
unsafe impl<B: BufferMut> BufferMut for Rest<B> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.whole.bytes_mut().get_mut(self.from..).unwrap_or_default()
    }
}
