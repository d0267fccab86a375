//! Linux's structures as bytes, by the layouts of `linux-raw-sys`, without a cast between the two.

/// A number as it lies in memory.
pub trait Plain: Copy {
    /// Reads it from the start of `bytes`.
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! plain {
    ($($number:ty)*) => {
        $(impl Plain for $number {
            fn from_bytes(bytes: &[u8]) -> Self {
                let mut number = [0; size_of::<$number>()];
                let length = number.len().min(bytes.len());
                number[..length].copy_from_slice(&bytes[..length]);
                Self::from_ne_bytes(number)
            }
        })*
    };
}

plain!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize);

/// Gives `value` the type of the field that `_field` reads.
pub const fn typed<S, T>(_field: fn(&S) -> T, value: T) -> T {
    value
}

/// Reads a number of the type of the field that `_field` reads.
pub fn read<S, T: Plain>(_field: fn(&S) -> T, bytes: &[u8], offset: usize) -> T {
    T::from_bytes(bytes.get(offset..).unwrap_or_default())
}

/// `encode!(Type { field: value, … })`: the bytes of a structure with these fields, and zeroes elsewhere.
macro_rules! encode {
    ($type:ty { $($($field:ident).+ : $value:expr),* $(,)? }) => {{
        let mut bytes = [0_u8; size_of::<$type>()];
        $({
            let value = $crate::syscall::record::typed(|s: &$type| s.$($field).+, $value as _);
            let offset = core::mem::offset_of!($type, $($field).+);
            bytes[offset..offset + size_of_val(&value)].copy_from_slice(&value.to_ne_bytes());
        })*
        bytes
    }};
}

/// `field!(bytes, Type, field)`: a field of the structure that `bytes` is.
macro_rules! field {
    ($bytes:expr, $type:ty, $($field:ident).+) => {
        $crate::syscall::record::read(
            |s: &$type| s.$($field).+, $bytes, core::mem::offset_of!($type, $($field).+),
        )
    };
}

pub(crate) use encode;
pub(crate) use field;
