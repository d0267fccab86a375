//! Places in a program's text where a `syscall` becomes a jump into the kernel: which those are on x86-64, and the
//! bytes that take their place. Why they are these, `arch/x86_64/direct.rs` of the kernel says.
//!
//! The jump has seven bytes and a `syscall` two. So what lies beside it has to belong to it in every way in which the
//! program may come by: an instruction of five bytes before, whose last byte is followed by nothing but the call, or
//! bytes between functions, where a jump of two bytes can lead.

/// Bytes of the jump.
pub const JUMP_LENGTH: usize = 7;
/// Bytes of `syscall`.
pub const CALL_LENGTH: usize = 2;
/// The bytes behind a `syscall` that may decide.
pub const AFTER_LENGTH: usize = 32;

const CALL: [u8; CALL_LENGTH] = [0x0f, 0x05];
/// `mov $NUMBER, %eax`, up to the number.
const MOVE: u8 = 0xb8;
/// `mov 8(%rsp), %r9`.
const NINTH: [u8; 5] = [0x4c, 0x8b, 0x4c, 0x24, 0x08];
/// `cmp $VALUE, %rax`, up to the value, and its length.
const COMPARE: [u8; 2] = [0x48, 0x3d];
const COMPARE_LENGTH: usize = 6;
/// `jae` and `ja` over at most 127 bytes, and their length.
const BRANCHES: [u8; 2] = [0x73, 0x77];
const BRANCH_LENGTH: usize = 2;
const RETURN: u8 = 0xc3;
/// `jmp` over at most 127 bytes, and `jmp *ADDRESS`.
const SHORT_JUMP: u8 = 0xeb;
const JUMP: [u8; 3] = [0xff, 0x24, 0x25];

/// How the jump takes the place of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceKind {
    /// In place of `mov $NUMBER, %eax` and the call.
    Move,
    /// In place of `mov 8(%rsp), %r9` and the call, of the C library's `syscall`.
    Ninth,
    /// In the bytes that fill up a function, so many behind the call, where a short jump leads in its place.
    Padding(u8),
}

impl PlaceKind {
    /// Where the place begins, before the end of the call.
    #[must_use]
    pub const fn length(self) -> usize {
        match self {
            Self::Move | Self::Ninth => JUMP_LENGTH,
            Self::Padding(_) => CALL_LENGTH,
        }
    }
}

/// The kind of a place by the bytes up to the end of the call, and those behind it, as far as they can be read. It
/// was just used for call `number`. `None`: it stays as it is.
#[must_use]
pub fn recognize(before: &[u8; JUMP_LENGTH + 1], after: &[u8], number: u32) -> Option<PlaceKind> {
    let [prefix, instruction @ .., first, second] = before;
    if [*first, *second] != CALL {
        return None;
    }
    let [operation, value @ ..] = instruction;
    // With a prefix, which the byte before may be, it loads another register. That the number is the call's own tells
    // it from the end of a longer instruction.
    let has_prefix = matches!(prefix, 0x40..=0x4f | 0x66);
    if *operation == MOVE && !has_prefix && u32::from_le_bytes(*value) == number {
        return Some(PlaceKind::Move);
    }
    if *instruction == NINTH {
        return Some(PlaceKind::Ninth);
    }
    padding(after).map(PlaceKind::Padding)
}

/// The place of the bytes that fill up a function which returns at once after its call.
fn padding(after: &[u8]) -> Option<u8> {
    let mut at = 0;
    if after.starts_with(&COMPARE) {
        at += COMPARE_LENGTH;
        if BRANCHES.contains(after.get(at)?) {
            at += BRANCH_LENGTH;
        }
    }
    if *after.get(at)? != RETURN {
        return None;
    }
    at += 1;
    (is_long_nop(after.get(at..)?)).then_some(at as u8)
}

/// Whether one instruction without effect begins here that is as long as the jump. Compilers put such where the next
/// function begins at a round address.
fn is_long_nop(bytes: &[u8]) -> bool {
    let prefixes = bytes.iter().take_while(|byte| [0x66, 0x2e].contains(*byte)).count();
    let rest = &bytes[prefixes..];
    rest.starts_with(&[0x0f, 0x1f, 0x80, 0, 0, 0, 0]) || rest.starts_with(&[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0])
}

/// The jump through the word at an address, of which the lower 32 bits say all.
#[must_use]
pub const fn jump(word: usize) -> [u8; JUMP_LENGTH] {
    let [x, y, z] = JUMP;
    let [a, b, c, d] = (word as u32).to_le_bytes();
    [x, y, z, a, b, c, d]
}

/// The jump that takes the place of a call alone, to so many bytes behind it.
#[must_use]
pub const fn short_jump(distance: u8) -> [u8; CALL_LENGTH] {
    [SHORT_JUMP, distance]
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: [u8; 22] = [
        0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff, 0x77, 0x5b, 0xc3, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0,
        0x48, 0x83, 0xec,
    ];

    #[test]
    fn a_number_that_is_loaded() {
        let code = [0x17, 0xb8, 1, 0, 0, 0, 0x0f, 0x05];
        assert_eq!(recognize(&code, &[], 1), Some(PlaceKind::Move));
        // The bytes are those of something else: the call has another number.
        assert_eq!(recognize(&code, &[], 2), None);
        // `mov $1, %r8d`.
        assert_eq!(recognize(&[0x41, 0xb8, 1, 0, 0, 0, 0x0f, 0x05], &[], 1), None);
        // `int3` in place of the call.
        assert_eq!(recognize(&[0x17, 0xb8, 1, 0, 0, 0, 0xcc, 0x05], &[], 1), None);
    }

    #[test]
    fn the_librarys_call_by_number() {
        let code = [0xc8, 0x4c, 0x8b, 0x4c, 0x24, 0x08, 0x0f, 0x05];
        assert_eq!(recognize(&code, &[], 110), Some(PlaceKind::Ninth));
        assert_eq!(recognize(&[0xc8, 0x4c, 0x8b, 0x4c, 0x24, 0x10, 0x0f, 0x05], &[], 110), None);
    }

    #[test]
    fn bytes_between_functions() {
        let code = [0x00, 0x00, 0x74, 0x17, 0x31, 0xc0, 0x0f, 0x05];
        assert_eq!(recognize(&code, &READ, 0), Some(PlaceKind::Padding(9)));
        // The function goes on, or fewer bytes are free, or can be seen.
        let mut goes_on = READ;
        goes_on[8] = 0x90;
        assert_eq!(recognize(&code, &goes_on, 0), None);
        let mut short = READ;
        short[9..15].copy_from_slice(&[0x66, 0x0f, 0x1f, 0x44, 0, 0]);
        assert_eq!(recognize(&code, &short, 0), None);
        for length in 0..READ.len() {
            assert_eq!(recognize(&code, &READ[..length], 0).is_some(), length >= 19);
        }
        // Without a comparison.
        assert_eq!(recognize(&code, &[0xc3, 0x0f, 0x1f, 0x80, 0, 0, 0, 0], 0), Some(PlaceKind::Padding(1)));
    }

    #[test]
    fn the_jumps_second_half_is_a_call() {
        assert_eq!(jump(0xffff_ffff_80cd_0808), [0xff, 0x24, 0x25, 0x08, 0x08, 0xcd, 0x80]);
        assert_eq!(short_jump(9), [0xeb, 9]);
    }
}
