//! Filters of packets, `SO_ATTACH_FILTER`: programs of the classic BPF machine, which say how many bytes of a packet
//! a socket gets.
//!
//! The machine is that of [`crate::seccomp`] with other loads: of bytes, half words and words of the packet in
//! network order, at a constant or behind the index register, and of what is known of the packet beside its bytes. A
//! load behind the packet's end ends the program with 0. Jumps go forward only, so a run takes at most as many steps
//! as the program has instructions.

#[cfg(all(test, not(heddle_loom)))]
mod tests;

use alloc::vec::Vec;

use crate::fallible::{AllocError, push_reserved};

/// The most instructions of a program.
pub const LENGTH_MAX: usize = 4096;
/// The bytes of an instruction, `struct sock_filter`.
pub const INSTRUCTION_BYTES: usize = 8;
/// Words of scratch memory.
const MEMORY_WORDS: usize = 16;
/// Offsets from here on are no places in the packet: `SKF_AD_OFF`, `SKF_NET_OFF`, `SKF_LL_OFF`.
const ASIDE: u32 = 0xffff_f000;
/// `SKF_AD_ALU_XOR_X`.
const XOR: u32 = ASIDE + 40;
const FROM_NETWORK: u32 = 0xfff0_0000;
const FROM_LINK: u32 = 0xffe0_0000;

/// The reason why a program is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketProgramError {
    /// It is none that Linux takes.
    Invalid,
    /// There is no memory for it.
    OutOfMemory,
}

impl From<AllocError> for PacketProgramError {
    fn from(_: AllocError) -> Self {
        Self::OutOfMemory
    }
}

/// A packet as a filter sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketView<'a> {
    /// The frame with its link header.
    pub frame: &'a [u8],
    /// Where in the frame the socket's bytes begin.
    pub start: usize,
    /// Where the network header is.
    pub network: usize,
    /// The protocol, an Ethernet type.
    pub protocol: u16,
    /// The packet's kind, `PACKET_HOST` and so on.
    pub kind: u8,
    /// The number of the interface.
    pub interface: u32,
    /// The kind of the interface, `ARPHRD_ETHER` and so on.
    pub hardware: u16,
    /// The processor.
    pub processor: u32,
    /// A number by chance.
    pub random: u32,
}

impl PacketView<'_> {
    /// `N` bytes at an offset as programs give it.
    fn bytes<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        let at = match offset {
            _ if (offset as i32) >= 0 => self.start.checked_add(offset as usize)?,
            FROM_NETWORK..ASIDE => self.network + (offset - FROM_NETWORK) as usize,
            FROM_LINK..FROM_NETWORK => (offset - FROM_LINK) as usize,
            _ => return None,
        };
        self.frame.get(at..)?.first_chunk().copied()
    }

    /// A number that is known beside the bytes; `None` ends the program.
    fn aside(&self, offset: u32) -> Option<u32> {
        Some(match offset - ASIDE {
            0 => self.protocol.into(),
            4 => self.kind.into(),
            8 => self.interface,
            28 => self.hardware.into(),
            36 => self.processor,
            56 => self.random,
            // Mark, queue, hash, and tags of virtual networks: there are none.
            12..=59 => 0,
            _ => return None,
        })
    }

    fn word(&self, offset: u32) -> Option<u32> {
        if offset >= ASIDE { self.aside(offset) } else { self.bytes(offset).map(u32::from_be_bytes) }
    }

    fn half(&self, offset: u32) -> Option<u32> {
        if offset >= ASIDE {
            self.aside(offset)
        } else {
            self.bytes(offset).map(u16::from_be_bytes).map(u32::from)
        }
    }

    fn byte(&self, offset: u32) -> Option<u32> {
        if offset >= ASIDE { self.aside(offset) } else { self.bytes::<1>(offset).map(|[byte]| byte.into()) }
    }

    fn length(&self) -> u32 {
        self.frame.len().saturating_sub(self.start) as u32
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PacketInstruction {
    code: u16,
    when_true: u8,
    when_false: u8,
    constant: u32,
}

/// Codes of the machine, as `linux/bpf_common.h` has them.
mod code {
    pub const LD_WORD: u16 = 0x20;
    pub const LD_HALF: u16 = 0x28;
    pub const LD_BYTE: u16 = 0x30;
    pub const LD_WORD_BEHIND: u16 = 0x40;
    pub const LD_HALF_BEHIND: u16 = 0x48;
    pub const LD_BYTE_BEHIND: u16 = 0x50;
    pub const LD_CONSTANT: u16 = 0x00;
    pub const LD_MEMORY: u16 = 0x60;
    pub const LD_LENGTH: u16 = 0x80;
    pub const LDX_CONSTANT: u16 = 0x01;
    pub const LDX_MEMORY: u16 = 0x61;
    pub const LDX_LENGTH: u16 = 0x81;
    pub const LDX_HEADER: u16 = 0xb1;
    pub const ST: u16 = 0x02;
    pub const STX: u16 = 0x03;
    pub const CLASS: u16 = 0x07;
    pub const ALU: u16 = 0x04;
    pub const JUMP: u16 = 0x05;
    pub const INDEX: u16 = 0x08;
    pub const RET_CONSTANT: u16 = 0x06;
    pub const RET_INDEX: u16 = 0x0e;
    pub const RET_ACCUMULATOR: u16 = 0x16;
    pub const TO_INDEX: u16 = 0x07;
    pub const FROM_INDEX: u16 = 0x87;
    pub const NEGATE: u16 = 0x84;
    pub const DIVIDE: u16 = 0x30;
    pub const REMAINDER: u16 = 0x90;
    pub const SHIFT_LEFT: u16 = 0x60;
    pub const SHIFT_RIGHT: u16 = 0x70;
}

impl PacketInstruction {
    /// An instruction that Linux takes.
    fn decode(raw: [u8; INSTRUCTION_BYTES]) -> Option<Self> {
        let [low, high, when_true, when_false, constant @ ..] = raw;
        let constant = u32::from_ne_bytes(constant);
        let instruction = Self { code: u16::from_ne_bytes([low, high]), when_true, when_false, constant };
        instruction.is_known().then_some(instruction)
    }

    fn is_known(self) -> bool {
        let Self { code, constant, .. } = self;
        match code {
            code::LD_WORD | code::LD_HALF | code::LD_BYTE => {
                // Only some places beside the packet have a meaning.
                constant < ASIDE || constant - ASIDE < 60 && (constant - ASIDE).is_multiple_of(4)
            }
            code::LD_WORD_BEHIND
            | code::LD_HALF_BEHIND
            | code::LD_BYTE_BEHIND
            | code::LD_CONSTANT
            | code::LD_LENGTH
            | code::LDX_CONSTANT
            | code::LDX_LENGTH
            | code::LDX_HEADER
            | code::RET_CONSTANT
            | code::RET_INDEX
            | code::RET_ACCUMULATOR
            | code::TO_INDEX
            | code::FROM_INDEX
            | code::NEGATE
            | code::JUMP => true,
            code::LD_MEMORY | code::LDX_MEMORY | code::ST | code::STX => (constant as usize) < MEMORY_WORDS,
            _ => match (code & code::CLASS, code & !(code::CLASS | code::INDEX)) {
                (code::ALU, operation) if operation <= 0xa0 => {
                    let has_constant = code & code::INDEX == 0;
                    match operation {
                        code::DIVIDE | code::REMAINDER if has_constant => constant != 0,
                        code::SHIFT_LEFT | code::SHIFT_RIGHT if has_constant => constant < 32,
                        _ => operation != 0x80,
                    }
                }
                (code::JUMP, 0x10 | 0x20 | 0x30 | 0x40) => true,
                _ => false,
            },
        }
    }

    const fn returns(self) -> bool {
        matches!(self.code, code::RET_CONSTANT | code::RET_INDEX | code::RET_ACCUMULATOR)
    }

    /// The result of an `ALU` instruction; `None` ends the program.
    fn calculate(self, accumulator: u32, index: u32) -> Option<u32> {
        let operand = if self.code & code::INDEX == 0 { self.constant } else { index };
        Some(match self.code & !(code::CLASS | code::INDEX) {
            0x00 => accumulator.wrapping_add(operand),
            0x10 => accumulator.wrapping_sub(operand),
            0x20 => accumulator.wrapping_mul(operand),
            code::DIVIDE => accumulator.checked_div(operand)?,
            0x40 => accumulator | operand,
            0x50 => accumulator & operand,
            code::SHIFT_LEFT => accumulator.wrapping_shl(operand),
            code::SHIFT_RIGHT => accumulator.wrapping_shr(operand),
            code::REMAINDER => accumulator.checked_rem(operand)?,
            _ => accumulator ^ operand,
        })
    }

    /// Whether a conditional jump is taken.
    const fn holds(self, accumulator: u32, index: u32) -> bool {
        let operand = if self.code & code::INDEX == 0 { self.constant } else { index };
        match self.code & !(code::CLASS | code::INDEX) {
            0x10 => accumulator == operand,
            0x20 => accumulator > operand,
            0x30 => accumulator >= operand,
            _ => accumulator & operand != 0,
        }
    }
}

/// A checked program.
#[derive(Debug, PartialEq, Eq)]
pub struct PacketFilter {
    instructions: Vec<PacketInstruction>,
}

impl PacketFilter {
    /// Checks the instructions of a program as it lies in memory.
    ///
    /// # Errors
    /// See [`PacketProgramError`].
    pub fn new(bytes: &[u8]) -> Result<Self, PacketProgramError> {
        let (raw, rest) = bytes.as_chunks::<INSTRUCTION_BYTES>();
        if raw.is_empty() || raw.len() > LENGTH_MAX || !rest.is_empty() {
            return Err(PacketProgramError::Invalid);
        }
        let mut instructions = Vec::new();
        instructions.try_reserve_exact(raw.len()).map_err(|_| PacketProgramError::OutOfMemory)?;
        for &raw in raw {
            push_reserved(
                &mut instructions,
                PacketInstruction::decode(raw).ok_or(PacketProgramError::Invalid)?,
            );
        }
        if !instructions.last().is_some_and(|last| last.returns()) {
            return Err(PacketProgramError::Invalid);
        }
        check_flow(&instructions)?;
        Ok(Self { instructions })
    }

    /// The number of its instructions.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no program is empty")]
    pub const fn len(&self) -> usize {
        self.instructions.len()
    }

    /// How many bytes of a packet a socket gets; 0 for none of it, not even that there is one.
    #[must_use]
    pub fn run(&self, packet: &PacketView<'_>) -> u32 {
        self.execute(packet).unwrap_or(0)
    }

    fn execute(&self, packet: &PacketView<'_>) -> Option<u32> {
        let mut memory = [0_u32; MEMORY_WORDS];
        let (mut accumulator, mut index, mut at) = (0_u32, 0_u32, 0_usize);
        while let Some(&instruction) = self.instructions.get(at) {
            at += 1;
            let constant = instruction.constant;
            let behind = index.wrapping_add(constant);
            let cell = constant as usize % MEMORY_WORDS;
            match instruction.code {
                // Not a load but the one operation that the machine has no code for.
                code::LD_WORD | code::LD_HALF | code::LD_BYTE if constant == XOR => accumulator ^= index,
                code::LD_WORD => accumulator = packet.word(constant)?,
                code::LD_HALF => accumulator = packet.half(constant)?,
                code::LD_BYTE => accumulator = packet.byte(constant)?,
                code::LD_WORD_BEHIND => accumulator = packet.bytes(behind).map(u32::from_be_bytes)?,
                code::LD_HALF_BEHIND => {
                    accumulator = packet.bytes(behind).map(u16::from_be_bytes)?.into();
                }
                code::LD_BYTE_BEHIND => accumulator = packet.bytes(behind).map(u8::from_be_bytes)?.into(),
                code::LD_CONSTANT => accumulator = constant,
                code::LD_MEMORY => accumulator = memory[cell],
                code::LD_LENGTH => accumulator = packet.length(),
                code::LDX_CONSTANT => index = constant,
                code::LDX_MEMORY => index = memory[cell],
                code::LDX_LENGTH => index = packet.length(),
                // The length of an IPv4 header, from its first byte.
                code::LDX_HEADER => index = (packet.byte(constant)? & 15) * 4,
                code::ST => memory[cell] = accumulator,
                code::STX => memory[cell] = index,
                code::RET_CONSTANT => return Some(constant),
                code::RET_INDEX => return Some(index),
                code::RET_ACCUMULATOR => return Some(accumulator),
                code::TO_INDEX => index = accumulator,
                code::FROM_INDEX => accumulator = index,
                code::NEGATE => accumulator = accumulator.wrapping_neg(),
                code::JUMP => at = at.checked_add(constant as usize)?,
                _ if instruction.code & code::CLASS == code::ALU => {
                    accumulator = instruction.calculate(accumulator, index)?;
                }
                _ => {
                    let is_taken = instruction.holds(accumulator, index);
                    at += usize::from(if is_taken { instruction.when_true } else { instruction.when_false });
                }
            }
        }
        None
    }
}

/// Checks that jumps stay inside, and that on each path a cell of memory is written before it is read.
fn check_flow(instructions: &[PacketInstruction]) -> Result<(), PacketProgramError> {
    // The cells that are written on all paths to each instruction.
    let mut written = Vec::new();
    written.try_reserve_exact(instructions.len()).map_err(|_| PacketProgramError::OutOfMemory)?;
    for _ in instructions {
        push_reserved(&mut written, u16::MAX);
    }
    let mut now = 0_u16;
    for (at, instruction) in instructions.iter().enumerate() {
        now &= written[at];
        let mut reaches = |distance: usize| -> Result<(), PacketProgramError> {
            let target = (at + 1).checked_add(distance).and_then(|target| written.get_mut(target));
            *target.ok_or(PacketProgramError::Invalid)? &= now;
            Ok(())
        };
        match instruction.code {
            code::ST | code::STX => now |= 1 << instruction.constant,
            code::LD_MEMORY | code::LDX_MEMORY if now & 1 << instruction.constant == 0 => {
                return Err(PacketProgramError::Invalid);
            }
            code::JUMP => {
                reaches(instruction.constant as usize)?;
                now = u16::MAX;
            }
            code if code & code::CLASS == code::JUMP => {
                reaches(instruction.when_true.into())?;
                reaches(instruction.when_false.into())?;
                now = u16::MAX;
            }
            _ => {}
        }
    }
    Ok(())
}
