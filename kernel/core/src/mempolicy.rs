//! Memory policies, set_mempolicy(2), of a machine whose memory is one node.
//!
//! Where a page comes from is no question with one node, so a policy is what a program said and is told again. A
//! [`MemoryPolicy`] is one word, so that each mapping and each thread has one at no cost. There is room in it for
//! masks of [`NODES_MAX`] nodes, which is the `MAX_NUMNODES` of this kernel.

use core::fmt;

/// The number of nodes that masks may name.
pub const NODES_MAX: usize = 16;
/// The most bytes of a mask that a program may pass.
const MASK_BYTES_MAX: usize = 4096;
const WORD_BITS: usize = u64::BITS as usize;
/// The nodes with memory: node 0.
const MEMORY: u16 = 1;

/// `MPOL_F_STATIC_NODES` and its like, in the number of a mode.
const STATIC: i32 = 1 << 15;
const RELATIVE: i32 = 1 << 14;
const BALANCING: i32 = 1 << 13;
const MODE_FLAGS: i32 = STATIC | RELATIVE | BALANCING;

const DEFAULT: i32 = 0;
const PREFERRED: i32 = 1;
const BIND: i32 = 2;
const INTERLEAVE: i32 = 3;
const LOCAL: i32 = 4;
const PREFERRED_MANY: i32 = 5;

/// Arguments that make no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidPolicy;

/// A mode with its flags, as a program passes them, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyMode(i32);

impl PolicyMode {
    /// Checks a number.
    ///
    /// # Errors
    /// [`InvalidPolicy`].
    pub const fn new(number: i32) -> Result<Self, InvalidPolicy> {
        let mode = number & !MODE_FLAGS;
        let is_both = number & STATIC != 0 && number & RELATIVE != 0;
        let balances_others = number & BALANCING != 0 && mode != BIND;
        if mode < DEFAULT || mode > PREFERRED_MANY || is_both || balances_others {
            return Err(InvalidPolicy);
        }
        Ok(Self(number))
    }

    /// Whether it is the default one.
    #[must_use]
    pub const fn is_default(self) -> bool {
        self.0 & !MODE_FLAGS == DEFAULT
    }
}

/// The policy of a thread or of a mapping. From its low end: three bits for the mode, one each for its flags and for a
/// home node, and from bit 16 on the mask that the program gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPolicy(u32);

const MODE_BITS: u32 = 7;
const STATIC_BIT: u32 = 8;
const RELATIVE_BIT: u32 = 16;
const BALANCING_BIT: u32 = 32;
const HOME_BIT: u32 = 64;
const MASK_SHIFT: u32 = 16;

impl MemoryPolicy {
    /// None: that of the thread, or memory of the nearest node.
    pub const DEFAULT: Self = Self(0);

    /// The policy of a mode and the nodes given for it.
    ///
    /// # Errors
    /// [`InvalidPolicy`]: the mode needs other nodes.
    pub const fn new(mode: PolicyMode, nodes: u16) -> Result<Self, InvalidPolicy> {
        let flags = mode.0 & MODE_FLAGS;
        let mut number = mode.0 & !MODE_FLAGS;
        let is_fixed = flags & (STATIC | RELATIVE) != 0;
        match number {
            DEFAULT => return if nodes == 0 { Ok(Self::DEFAULT) } else { Err(InvalidPolicy) },
            PREFERRED if nodes == 0 && !is_fixed => number = LOCAL,
            LOCAL if nodes == 0 && !is_fixed => {}
            LOCAL => return Err(InvalidPolicy),
            _ if nodes == 0 => return Err(InvalidPolicy),
            _ => {}
        }
        // Relative nodes are counted round the nodes that there are.
        if number != LOCAL && flags & RELATIVE == 0 && nodes & MEMORY == 0 {
            return Err(InvalidPolicy);
        }
        let mut bits = number as u32 | (nodes as u32) << MASK_SHIFT;
        if flags & STATIC != 0 {
            bits |= STATIC_BIT;
        }
        if flags & RELATIVE != 0 {
            bits |= RELATIVE_BIT;
        }
        if flags & BALANCING != 0 {
            bits |= BALANCING_BIT;
        }
        Ok(Self(bits))
    }

    /// The word that it is.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// The policy whose word this is.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    const fn mode(self) -> i32 {
        (self.0 & MODE_BITS) as i32
    }

    const fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }

    /// Whether it is none.
    #[must_use]
    pub const fn is_default(self) -> bool {
        self.mode() == DEFAULT
    }

    /// Whether pages are to come from its nodes by turns.
    #[must_use]
    pub const fn is_interleaved(self) -> bool {
        self.mode() == INTERLEAVE
    }

    /// Its mode with flags, as get_mempolicy(2) tells them.
    #[must_use]
    pub const fn number(self) -> i32 {
        let mut number = self.mode();
        if self.has(STATIC_BIT) {
            number |= STATIC;
        }
        if self.has(RELATIVE_BIT) {
            number |= RELATIVE;
        }
        if self.has(BALANCING_BIT) {
            number |= BALANCING;
        }
        number
    }

    /// The nodes that it comes to.
    const fn nodes(self) -> u16 {
        if matches!(self.mode(), DEFAULT | LOCAL) { 0 } else { MEMORY }
    }

    /// The nodes that get_mempolicy(2) tells: those that the program gave, if its flags say that they stay.
    #[must_use]
    pub const fn told_nodes(self) -> u16 {
        if self.has(STATIC_BIT | RELATIVE_BIT | BALANCING_BIT) {
            (self.0 >> MASK_SHIFT) as u16
        } else {
            self.nodes()
        }
    }

    /// The same with node 0 as its home, set_mempolicy_home_node(2); `None` if its mode has no home.
    #[must_use]
    pub const fn at_home(self) -> Option<Self> {
        if matches!(self.mode(), BIND | PREFERRED_MANY) { Some(Self(self.0 | HOME_BIT)) } else { None }
    }

    /// The same without what makes no difference: masks whose nodes are not there compare as equal.
    #[must_use]
    pub const fn canonical(self) -> Self {
        let kept = self.0 & ((1 << MASK_SHIFT) - 1);
        Self(kept | (self.told_nodes() as u32) << MASK_SHIFT)
    }
}

impl fmt::Display for MemoryPolicy {
    /// As in `/proc/PID/numa_maps`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 6] = ["default", "prefer", "bind", "interleave", "local", "prefer (many)"];
        f.write_str(NAMES.get(self.mode() as usize).copied().unwrap_or_default())?;
        if self.has(STATIC_BIT | RELATIVE_BIT | BALANCING_BIT) {
            f.write_str("=")?;
        }
        if self.has(STATIC_BIT) {
            f.write_str("static")?;
        } else if self.has(RELATIVE_BIT) {
            f.write_str("relative")?;
        }
        if self.nodes() != 0 { f.write_str(":0") } else { Ok(()) }
    }
}

/// The nodes in a mask of which a program says that it is `count - 1` bits long; `read` reads a word of it.
///
/// # Errors
/// That of `read`, or `invalid` for nodes that can't be.
pub fn read_mask<E>(
    count: usize,
    invalid: E,
    mut read: impl FnMut(usize) -> Result<u64, E>,
) -> Result<u16, E> {
    let mut bits = count.wrapping_sub(1);
    if bits == 0 {
        return Ok(0);
    }
    if bits > MASK_BYTES_MAX * 8 {
        return Err(invalid);
    }
    // From the end, as Linux: words for which there can be no nodes must be empty.
    while bits > NODES_MAX {
        let mut word = read((bits - 1) / WORD_BITS)?;
        let taken = bits.min(WORD_BITS);
        if taken < WORD_BITS {
            word &= (1 << taken) - 1;
        }
        if bits - taken >= NODES_MAX {
            bits -= taken;
        } else {
            bits = NODES_MAX;
            word &= !((1 << NODES_MAX) - 1);
        }
        if word != 0 {
            return Err(invalid);
        }
    }
    Ok((read(0)? & ((1 << bits) - 1)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(mode: i32, nodes: u16) -> Result<MemoryPolicy, InvalidPolicy> {
        MemoryPolicy::new(PolicyMode::new(mode)?, nodes)
    }

    #[test]
    fn modes_are_checked() {
        for mode in [-1, 6, STATIC | RELATIVE | BIND, BALANCING | PREFERRED, BALANCING] {
            assert_eq!(PolicyMode::new(mode), Err(InvalidPolicy), "{mode}");
        }
        assert!(PolicyMode::new(BALANCING | BIND).is_ok());
        assert!(PolicyMode::new(STATIC).is_ok_and(PolicyMode::is_default));
    }

    #[test]
    fn nodes_are_those_that_the_mode_needs() {
        assert_eq!(policy(DEFAULT, 0), Ok(MemoryPolicy::DEFAULT));
        for (mode, nodes) in [
            (DEFAULT, 1),
            (BIND, 0),
            (BIND, 2),
            (INTERLEAVE, 0),
            (PREFERRED, 2),
            (PREFERRED | STATIC, 0),
            (PREFERRED_MANY, 0),
            (LOCAL, 1),
            (LOCAL | RELATIVE, 0),
        ] {
            assert_eq!(policy(mode, nodes), Err(InvalidPolicy), "{mode} {nodes}");
        }
    }

    #[test]
    fn what_is_told_is_what_was_said() {
        let told = |mode, nodes| policy(mode, nodes).map(|policy| (policy.number(), policy.told_nodes()));
        assert_eq!(told(PREFERRED, 0), Ok((LOCAL, 0)));
        assert_eq!(told(PREFERRED, 1), Ok((PREFERRED, 1)));
        assert_eq!(told(BIND, 3), Ok((BIND, 1)));
        assert_eq!(told(BIND | STATIC, 5), Ok((BIND | STATIC, 5)));
        assert_eq!(told(INTERLEAVE | RELATIVE, 6), Ok((INTERLEAVE | RELATIVE, 6)));
        assert_eq!(
            policy(BIND, 3).map(MemoryPolicy::canonical),
            policy(BIND, 1).map(MemoryPolicy::canonical)
        );
    }

    #[test]
    fn policies_are_shown_as_in_linux() {
        let shown = |mode, nodes| policy(mode, nodes).map(|policy| policy.to_string());
        assert_eq!(MemoryPolicy::DEFAULT.to_string(), "default");
        assert_eq!(shown(PREFERRED, 0).as_deref(), Ok("local"));
        assert_eq!(shown(BIND | STATIC, 5).as_deref(), Ok("bind=static:0"));
        assert_eq!(shown(PREFERRED_MANY, 1).as_deref(), Ok("prefer (many):0"));
    }

    #[test]
    fn masks_may_be_long_if_their_end_is_empty() {
        let mask = |count, words: &[u64]| {
            read_mask(count, "invalid", |index| words.get(index).copied().ok_or("fault"))
        };
        assert_eq!(mask(1, &[]), Ok(0));
        assert_eq!(mask(0, &[]), Err("invalid"));
        assert_eq!(mask(2, &[7]), Ok(1));
        assert_eq!(mask(65, &[1]), Ok(1));
        assert_eq!(mask(65, &[1 << 20]), Err("invalid"));
        assert_eq!(mask(1025, &[1]), Err("fault"));
        assert_eq!(mask(129, &[1, 0]), Ok(1));
        assert_eq!(mask(129, &[1, 1]), Err("invalid"));
        assert_eq!(mask(MASK_BYTES_MAX * 8 + 2, &[1]), Err("invalid"));
    }
}
