//! Programs that are taken and refused, and their answers.

use super::*;
use proptest::prelude::*;

fn code(code: u16, when_true: u8, when_false: u8, constant: u32) -> [u8; INSTRUCTION_BYTES] {
    let (code, constant) = (code.to_ne_bytes(), constant.to_ne_bytes());
    [code[0], code[1], when_true, when_false, constant[0], constant[1], constant[2], constant[3]]
}

fn program(lines: &[[u8; INSTRUCTION_BYTES]]) -> Result<Program, ProgramError> {
    Program::new(&lines.concat())
}

const LD_ABS: u16 = 0x20;
const LD_IMM: u16 = 0x00;
const LD_MEM: u16 = 0x60;
const LDX_IMM: u16 = 0x01;
const JEQ: u16 = 0x15;
const JA: u16 = 0x05;
const RET: u16 = 0x06;
const RET_A: u16 = 0x16;
const DIV_X: u16 = 0x3c;
const DIV_K: u16 = 0x34;
const LSH_X: u16 = 0x6c;

#[test]
fn a_program_sees_number_machine_and_arguments() {
    let data = CallData {
        number: 7,
        instruction_pointer: 0x1_0000_0002,
        arguments: [0x3_0000_0004, 5, 6, 7, 8, 0x9_0000_000a],
    };
    let word = |offset| program(&[code(LD_ABS, 0, 0, offset), code(RET_A, 0, 0, 0)]).unwrap().run(&data);
    let words: Vec<u32> = (0..16).map(|index| word(index * 4)).collect();
    assert_eq!(words, [7, ARCHITECTURE, 2, 1, 4, 3, 5, 0, 6, 0, 7, 0, 8, 0, 10, 9]);
}

#[test]
fn a_branch_chooses() {
    let lines = [code(LD_ABS, 0, 0, 0), code(JEQ, 0, 1, 39), code(RET, 0, 0, 1), code(RET, 0, 0, 2)];
    let program = program(&lines).unwrap();
    assert_eq!(program.run(&CallData { number: 39, ..CallData::default() }), 1);
    assert_eq!(program.run(&CallData { number: 40, ..CallData::default() }), 2);
}

#[test]
fn what_could_fail_in_a_run_is_refused() {
    let ret = code(RET, 0, 0, 0);
    for lines in [
        vec![],
        vec![code(LD_ABS, 0, 0, 0)],
        vec![code(LD_ABS, 0, 0, 2), ret],
        vec![code(LD_ABS, 0, 0, 64), ret],
        vec![code(JEQ, 1, 0, 0), ret],
        vec![code(JA, 0, 0, 1), ret],
        vec![code(JA, 0, 0, u32::MAX), ret],
        vec![code(LD_MEM, 0, 0, 0), ret],
        vec![code(0x02, 0, 0, 16), ret],
        vec![code(DIV_K, 0, 0, 0), ret],
        vec![code(0x64, 0, 0, 32), ret],
        // The remainder is an operation of sockets' filters only, as are loads of bytes.
        vec![code(0x94, 0, 0, 3), ret],
        vec![code(0x30, 0, 0, 0), ret],
        vec![ret; LENGTH_MAX + 1],
    ] {
        assert_eq!(program(&lines), Err(ProgramError::Invalid), "{lines:?}");
    }
    assert!(program(&[code(0x02, 0, 0, 15), code(LD_MEM, 0, 0, 15), ret]).is_ok());
}

#[test]
fn memory_is_written_on_every_path() {
    let (store, load, ret) = (code(0x02, 0, 0, 3), code(LD_MEM, 0, 0, 3), code(RET_A, 0, 0, 0));
    assert_eq!(program(&[code(JEQ, 0, 1, 0), store, load, ret]), Err(ProgramError::Invalid));
    assert!(program(&[store, code(JEQ, 0, 1, 0), store, load, ret]).is_ok());
}

#[test]
fn divisions_by_zero_and_wide_shifts_have_results() {
    let divide =
        program(&[code(LDX_IMM, 0, 0, 0), code(LD_IMM, 0, 0, 9), code(DIV_X, 0, 0, 0), code(RET, 0, 0, 5)]);
    assert_eq!(divide.unwrap().run(&CallData::default()), 0);
    let shift = program(&[
        code(LDX_IMM, 0, 0, 33),
        code(LD_IMM, 0, 0, 3),
        code(LSH_X, 0, 0, 0),
        code(RET_A, 0, 0, 0),
    ]);
    assert_eq!(shift.unwrap().run(&CallData::default()), 6);
}

#[test]
fn the_stricter_answer_counts() {
    let [kill, thread, trap, errno, .., allow] = FilterAction::ALL.map(FilterAction::constant);
    assert_eq!(stricter(allow, errno | 1), errno | 1);
    assert_eq!(stricter(errno | 1, errno | 2), errno | 1);
    assert_eq!(stricter(thread, kill), kill);
    assert_eq!(stricter(trap, thread), thread);
    assert_eq!(FilterAction::of(0x0001_0000), FilterAction::KillProcess);
    for action in FilterAction::ALL {
        assert_eq!(FilterAction::of(action.constant() | 0xffff), action);
    }
}

proptest! {
    /// A program that is taken ends, whatever it consists of.
    #[test]
    fn random_programs_run_to_their_end(raw in proptest::collection::vec(any::<[u8; 8]>(), 1..40), number: u32) {
        let codes = [LD_ABS, LD_IMM, LD_MEM, LDX_IMM, JEQ, JA, RET, RET_A, DIV_X, LSH_X, 0x02, 0x03, 0x07, 0x87, 0x84];
        let mut lines: Vec<[u8; 8]> = raw
            .into_iter()
            .map(|[choice, when_true, when_false, constant, ..]| {
                let choice = codes[usize::from(choice) % codes.len()];
                code(choice, when_true % 4, when_false % 4, u32::from(constant % 16))
            })
            .collect();
        lines.push(code(RET, 0, 0, 1));
        if let Ok(program) = program(&lines) {
            let _ = program.run(&CallData { number, ..CallData::default() });
        }
    }
}

#[test]
fn the_data_lie_in_memory_as_in_linux() {
    let data =
        CallData { number: 39, instruction_pointer: 0x1122_3344_5566_7788, arguments: [1, 2, 3, 4, 5, !0] };
    let bytes = data.to_bytes();
    assert_eq!(bytes[..4], 39_u32.to_ne_bytes());
    assert_eq!(bytes[4..8], ARCHITECTURE.to_ne_bytes());
    assert_eq!(bytes[8..16], 0x1122_3344_5566_7788_u64.to_ne_bytes());
    assert_eq!(bytes[16..24], 1_u64.to_ne_bytes());
    assert_eq!(bytes[56..], (!0_u64).to_ne_bytes());
}
