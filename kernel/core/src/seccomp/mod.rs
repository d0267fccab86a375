//! Filters of seccomp(2): programs of the classic BPF machine over the number and the arguments of a system call.
//!
//! A program is checked when it is installed ([`Program::new`]), so that its run needs no checks: jumps go forward
//! and stay inside, memory is written before it is read on each path, nothing is divided by a constant 0, and the
//! last instruction returns. A run therefore ends, after at most as many steps as the program has instructions.

pub mod notify;
#[cfg(all(test, not(heddle_loom)))]
mod tests;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::fallible::{into_box, push_reserved};

/// The most instructions of a program.
pub const LENGTH_MAX: usize = 4096;
/// The bytes of an instruction, `struct sock_filter`.
pub const INSTRUCTION_BYTES: usize = 8;
/// Words of scratch memory.
const MEMORY_WORDS: u32 = 16;
/// The size of `struct seccomp_data` in bytes.
const DATA_BYTES: u32 = 64;
/// The processor's number in `struct seccomp_data`: `AUDIT_ARCH_X86_64`.
pub const ARCHITECTURE: u32 = 0xc000_003e;

/// The program is none that Linux takes: `EINVAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramError {
    /// The program is not valid.
    Invalid,
    /// There is no memory for it.
    OutOfMemory,
}

/// A call as a filter sees it: `struct seccomp_data`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallData {
    /// The call's number.
    pub number: u32,
    /// The address behind the instruction that made the call.
    pub instruction_pointer: u64,
    /// Its arguments.
    pub arguments: [u64; 6],
}

impl CallData {
    /// The structure as it lies in memory.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; DATA_BYTES as usize] {
        let mut bytes = [0; DATA_BYTES as usize];
        for (place, offset) in bytes.chunks_exact_mut(4).zip((0_u32..).step_by(4)) {
            place.copy_from_slice(&self.word(offset).to_ne_bytes());
        }
        bytes
    }

    /// The word at a byte offset, which is a multiple of four and below 64.
    const fn word(&self, offset: u32) -> u32 {
        let index = (offset / 4) as usize;
        match index {
            0 => self.number,
            1 => ARCHITECTURE,
            2 => self.instruction_pointer as u32,
            3 => (self.instruction_pointer >> 32) as u32,
            4..16 => (self.arguments[(index - 4) / 2] >> (index % 2 * 32)) as u32,
            _ => 0,
        }
    }
}

/// The second operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    Constant(u32),
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Or,
    And,
    Xor,
    ShiftLeft,
    ShiftRight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Equal,
    Greater,
    GreaterOrEqual,
    AnyBit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instruction {
    LoadData(u32),
    LoadConstant(u32),
    LoadMemory(u8),
    LoadIndexConstant(u32),
    LoadIndexMemory(u8),
    Store(u8),
    StoreIndex(u8),
    Calculate(Arithmetic, Operand),
    Negate,
    ToIndex,
    FromIndex,
    Jump(u32),
    Branch(Condition, Operand, u8, u8),
    Return(u32),
    ReturnAccumulator,
}

/// Codes of the machine, as `linux/bpf_common.h` has them.
mod code {
    pub const CLASS: u16 = 0x07;
    pub const LD: u16 = 0x00;
    pub const LDX: u16 = 0x01;
    pub const ST: u16 = 0x02;
    pub const STX: u16 = 0x03;
    pub const ALU: u16 = 0x04;
    pub const JMP: u16 = 0x05;
    pub const IMM: u16 = 0x00;
    pub const ABS: u16 = 0x20;
    pub const MEM: u16 = 0x60;
    pub const LEN: u16 = 0x80;
    pub const INDEX: u16 = 0x08;
    pub const RET_ACCUMULATOR: u16 = 0x16;
    pub const RET_CONSTANT: u16 = 0x06;
    pub const TO_INDEX: u16 = 0x07;
    pub const FROM_INDEX: u16 = 0x87;
    pub const NEGATE: u16 = 0x84;
}

impl Instruction {
    /// An instruction of the kinds that filters of calls may have.
    fn decode(raw: [u8; INSTRUCTION_BYTES]) -> Option<Self> {
        let [code_low, code_high, when_true, when_false, constant @ ..] = raw;
        let (code, constant) = (u16::from_ne_bytes([code_low, code_high]), u32::from_ne_bytes(constant));
        let cell =
            |instruction: fn(u8) -> Self| (constant < MEMORY_WORDS).then(|| instruction(constant as u8));
        let operand = if code & code::INDEX == 0 { Operand::Constant(constant) } else { Operand::Index };
        Some(match code {
            code::RET_CONSTANT => Self::Return(constant),
            code::RET_ACCUMULATOR => Self::ReturnAccumulator,
            code::TO_INDEX => Self::ToIndex,
            code::FROM_INDEX => Self::FromIndex,
            code::NEGATE => Self::Negate,
            code::ST => return cell(Self::Store),
            code::STX => return cell(Self::StoreIndex),
            _ => match (code & code::CLASS, code & !code::CLASS) {
                (code::LD, code::ABS) if constant.is_multiple_of(4) && constant < DATA_BYTES => {
                    Self::LoadData(constant)
                }
                (code::LD, code::IMM) => Self::LoadConstant(constant),
                (code::LD, code::LEN) => Self::LoadConstant(DATA_BYTES),
                (code::LD, code::MEM) => return cell(Self::LoadMemory),
                (code::LDX, code::IMM) => Self::LoadIndexConstant(constant),
                (code::LDX, code::LEN) => Self::LoadIndexConstant(DATA_BYTES),
                (code::LDX, code::MEM) => return cell(Self::LoadIndexMemory),
                (code::ALU, mode) => {
                    Self::Calculate(Self::arithmetic(mode & !code::INDEX, operand)?, operand)
                }
                (code::JMP, 0) => Self::Jump(constant),
                (code::JMP, mode) => {
                    let condition = match mode & !code::INDEX {
                        0x10 => Condition::Equal,
                        0x20 => Condition::Greater,
                        0x30 => Condition::GreaterOrEqual,
                        0x40 => Condition::AnyBit,
                        _ => return None,
                    };
                    Self::Branch(condition, operand, when_true, when_false)
                }
                _ => return None,
            },
        })
    }

    /// The operation of an `ALU` instruction. A constant that has no meaning for it is refused.
    fn arithmetic(mode: u16, operand: Operand) -> Option<Arithmetic> {
        let operation = match mode {
            0x00 => Arithmetic::Add,
            0x10 => Arithmetic::Subtract,
            0x20 => Arithmetic::Multiply,
            0x30 => Arithmetic::Divide,
            0x40 => Arithmetic::Or,
            0x50 => Arithmetic::And,
            0x60 => Arithmetic::ShiftLeft,
            0x70 => Arithmetic::ShiftRight,
            0xa0 => Arithmetic::Xor,
            _ => return None,
        };
        let is_meaningless = match (operation, operand) {
            (Arithmetic::Divide, Operand::Constant(constant)) => constant == 0,
            (Arithmetic::ShiftLeft | Arithmetic::ShiftRight, Operand::Constant(constant)) => constant >= 32,
            _ => false,
        };
        (!is_meaningless).then_some(operation)
    }
}

/// A checked program.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    instructions: Box<[Instruction]>,
}

impl Program {
    /// Checks the instructions of a program as it lies in memory.
    ///
    /// # Errors
    /// See [`ProgramError`].
    pub fn new(bytes: &[u8]) -> Result<Self, ProgramError> {
        let (raw, rest) = bytes.as_chunks::<INSTRUCTION_BYTES>();
        if raw.is_empty() || raw.len() > LENGTH_MAX || !rest.is_empty() {
            return Err(ProgramError::Invalid);
        }
        let mut instructions = Vec::new();
        instructions.try_reserve_exact(raw.len()).map_err(|_| ProgramError::OutOfMemory)?;
        for &raw in raw {
            push_reserved(&mut instructions, Instruction::decode(raw).ok_or(ProgramError::Invalid)?);
        }
        if !matches!(instructions.last(), Some(Instruction::Return(_) | Instruction::ReturnAccumulator)) {
            return Err(ProgramError::Invalid);
        }
        check_flow(&instructions)?;
        Ok(Self { instructions: into_box(instructions) })
    }

    /// The number of its instructions.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no program is empty")]
    pub const fn len(&self) -> usize {
        self.instructions.len()
    }

    /// The program's answer for a call: a `SECCOMP_RET_` action with its data.
    #[must_use]
    pub fn run(&self, data: &CallData) -> u32 {
        let mut memory = [0_u32; MEMORY_WORDS as usize];
        let (mut accumulator, mut index, mut at) = (0_u32, 0_u32, 0_usize);
        while let Some(&instruction) = self.instructions.get(at) {
            at += 1;
            let value = |operand| match operand {
                Operand::Constant(constant) => constant,
                Operand::Index => index,
            };
            match instruction {
                Instruction::LoadData(offset) => accumulator = data.word(offset),
                Instruction::LoadConstant(constant) => accumulator = constant,
                Instruction::LoadMemory(cell) => accumulator = memory[usize::from(cell)],
                Instruction::LoadIndexConstant(constant) => index = constant,
                Instruction::LoadIndexMemory(cell) => index = memory[usize::from(cell)],
                Instruction::Store(cell) => memory[usize::from(cell)] = accumulator,
                Instruction::StoreIndex(cell) => memory[usize::from(cell)] = index,
                Instruction::Calculate(operation, operand) => {
                    let operand = value(operand);
                    accumulator = match operation {
                        Arithmetic::Add => accumulator.wrapping_add(operand),
                        Arithmetic::Subtract => accumulator.wrapping_sub(operand),
                        Arithmetic::Multiply => accumulator.wrapping_mul(operand),
                        // A division by 0 ends the program with 0.
                        Arithmetic::Divide if operand == 0 => return 0,
                        Arithmetic::Divide => accumulator / operand,
                        Arithmetic::Or => accumulator | operand,
                        Arithmetic::And => accumulator & operand,
                        Arithmetic::Xor => accumulator ^ operand,
                        Arithmetic::ShiftLeft => accumulator.wrapping_shl(operand),
                        Arithmetic::ShiftRight => accumulator.wrapping_shr(operand),
                    };
                }
                Instruction::Negate => accumulator = accumulator.wrapping_neg(),
                Instruction::ToIndex => index = accumulator,
                Instruction::FromIndex => accumulator = index,
                Instruction::Jump(distance) => at += distance as usize,
                Instruction::Branch(condition, operand, when_true, when_false) => {
                    let operand = value(operand);
                    let holds = match condition {
                        Condition::Equal => accumulator == operand,
                        Condition::Greater => accumulator > operand,
                        Condition::GreaterOrEqual => accumulator >= operand,
                        Condition::AnyBit => accumulator & operand != 0,
                    };
                    at += usize::from(if holds { when_true } else { when_false });
                }
                Instruction::Return(answer) => return answer,
                Instruction::ReturnAccumulator => return accumulator,
            }
        }
        0
    }
}

/// Checks that jumps stay inside, and that on each path a cell of memory is written before it is read.
fn check_flow(instructions: &[Instruction]) -> Result<(), ProgramError> {
    // The cells that are written on all paths to each instruction.
    let mut written = Vec::new();
    written.try_reserve_exact(instructions.len()).map_err(|_| ProgramError::OutOfMemory)?;
    for _ in instructions {
        push_reserved(&mut written, u16::MAX);
    }
    let mut now = 0_u16;
    for (at, &instruction) in instructions.iter().enumerate() {
        now &= written[at];
        let mut reaches = |distance: usize| match written.get_mut(at + 1 + distance) {
            Some(cells) => {
                *cells &= now;
                Ok(())
            }
            None => Err(ProgramError::Invalid),
        };
        match instruction {
            Instruction::Store(cell) | Instruction::StoreIndex(cell) => now |= 1 << cell,
            Instruction::LoadMemory(cell) | Instruction::LoadIndexMemory(cell) if now & 1 << cell == 0 => {
                return Err(ProgramError::Invalid);
            }
            Instruction::Jump(distance) => {
                reaches(distance as usize)?;
                now = u16::MAX;
            }
            Instruction::Branch(_, _, when_true, when_false) => {
                reaches(usize::from(when_true))?;
                reaches(usize::from(when_false))?;
                now = u16::MAX;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The bits of an answer that are the action, and those that are its data.
const ACTION_BITS: u32 = 0xffff_0000;

/// An action of a filter, by its `SECCOMP_RET_` constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterAction {
    /// The process ends.
    KillProcess,
    /// The thread ends.
    KillThread,
    /// The thread gets `SIGSYS`.
    Trap,
    /// The call has this error.
    Errno,
    /// Another process decides.
    Notify,
    /// The tracer decides.
    Trace,
    /// The call is logged and carried out.
    Log,
    /// The call is carried out.
    Allow,
}

impl FilterAction {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::KillProcess,
        Self::KillThread,
        Self::Trap,
        Self::Errno,
        Self::Notify,
        Self::Trace,
        Self::Log,
        Self::Allow,
    ];

    /// Its constant.
    #[must_use]
    pub const fn constant(self) -> u32 {
        match self {
            Self::KillProcess => 0x8000_0000,
            Self::KillThread => 0,
            Self::Trap => 0x0003_0000,
            Self::Errno => 0x0005_0000,
            Self::Notify => 0x7fc0_0000,
            Self::Trace => 0x7ff0_0000,
            Self::Log => 0x7ffc_0000,
            Self::Allow => 0x7fff_0000,
        }
    }

    /// The action of an answer. One that is unknown ends the process.
    #[must_use]
    pub fn of(answer: u32) -> Self {
        let known = Self::ALL.into_iter().find(|action| action.constant() == answer & ACTION_BITS);
        known.unwrap_or(Self::KillProcess)
    }
}

/// The data of an answer: an error, or what a tracer is told.
#[must_use]
pub const fn data_of(answer: u32) -> u16 {
    answer as u16
}

/// Of two filters' answers the one that counts: the action that permits less, of equal ones the first.
#[must_use]
pub const fn stricter(first: u32, second: u32) -> u32 {
    // The action that ends the process has the sign's bit and comes before all others.
    if ((second & ACTION_BITS) as i32) < ((first & ACTION_BITS) as i32) { second } else { first }
}
