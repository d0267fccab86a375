//! Restartable sequences as rseq(2) has them: the kernel's reading of a section's description.

/// Critical sections are described by four words: version and flags, start, length, and where an interrupted one goes.
pub const WORDS: usize = 4;
/// Size of the program's signature, which stands right before the abort address of a critical section.
pub const SIGNATURE_BYTES: usize = 4;

/// A critical section that the program is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    start: usize,
    length: usize,
    /// The address at which the program continues if the section was interrupted.
    pub abort: usize,
}

/// The description is not one that the kernel may act on: a segmentation fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid;

impl Section {
    /// Reads a description. All addresses must be below `end`, and the section must not contain its abort address.
    /// Flags are those that Linux has given up; it refuses them where it meets them.
    ///
    /// # Errors
    /// [`Invalid`].
    pub fn new([version_and_flags, start, length, abort]: [u64; WORDS], end: usize) -> Result<Self, Invalid> {
        let version = version_and_flags as u32;
        let [start, length, abort] = [start, length, abort].map(|word| word as usize);
        let last = start.checked_add(length).ok_or(Invalid)?;
        let is_inside = start < end && last < end && abort < end;
        let is_circular = abort.wrapping_sub(start) < length;
        if version != 0 || !is_inside || is_circular || abort < SIGNATURE_BYTES {
            return Err(Invalid);
        }
        Ok(Self { start, length, abort })
    }

    /// Whether a program whose next instruction is at `ip` is inside: the last instruction, which commits, has not run.
    #[must_use]
    pub fn contains(&self, ip: usize) -> bool {
        ip.wrapping_sub(self.start) < self.length
    }
}

#[cfg(test)]
mod tests {
    use super::{Invalid, Section};

    const END: usize = 0x7fff_ffff_f000;

    #[test]
    fn ends_before_the_instruction_behind_the_commit() {
        let section = Section::new([0, 0x1000, 0x10, 0x2000], END).unwrap();
        assert_eq!(section.abort, 0x2000);
        assert!(!section.contains(0xfff));
        assert!(section.contains(0x1000));
        assert!(section.contains(0x100f));
        assert!(!section.contains(0x1010));
    }

    #[test]
    fn an_empty_section_contains_nothing() {
        assert!(!Section::new([0, 0x1000, 0, 0x1000], END).unwrap().contains(0x1000));
    }

    #[test]
    fn links_that_must_not_be_followed_are_refused() {
        let end = END as u64;
        for words in [
            [1, 0x1000, 0x10, 0x2000],
            [0, end, 0x10, 0x2000],
            [0, end - 8, 8, 0x2000],
            [0, 0x1000, u64::MAX, 0x2000],
            [0, 0x1000, 0x10, end],
            [0, 0x1000, 0x10, 0x1000],
            [0, 0x1000, 0x10, 0x100f],
            [0, 0x1000, 0x10, 3],
        ] {
            assert_eq!(Section::new(words, END), Err(Invalid), "{words:x?}");
        }
    }

    #[test]
    fn may_go_on_right_before_or_behind_itself() {
        assert!(Section::new([0, 0x1000, 0x10, 0xfff], END).is_ok());
        assert!(Section::new([0, 0x1000, 0x10, 0x1010], END).is_ok());
    }
}
