//! Tests of this crate.

extern crate std;

use std::vec;
use std::vec::Vec;

use super::*;

const MACHINE: u16 = object::elf::EM_X86_64.0;

fn put(bytes: &mut [u8], at: usize, value: u64, width: usize) {
    bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
}

/// An ELF file with the given program headers: type, flags, offset, address, file size, memory size, alignment.
fn elf(kind: u16, headers: &[[u64; 7]]) -> Vec<u8> {
    let mut file = vec![0; 0x3000];
    file[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
    put(&mut file, 16, u64::from(kind), 2);
    put(&mut file, 18, u64::from(MACHINE), 2);
    put(&mut file, 20, 1, 4);
    put(&mut file, 24, 0x1040, 8);
    put(&mut file, 32, 64, 8);
    put(&mut file, 52, 64, 2);
    put(&mut file, 54, 56, 2);
    put(&mut file, 56, headers.len() as u64, 2);
    for (index, header) in headers.iter().enumerate() {
        let at = 64 + index * 56;
        put(&mut file, at, header[0], 4);
        put(&mut file, at + 4, header[1], 4);
        for (word, &value) in
            [header[2], header[3], header[3], header[4], header[5], header[6]].iter().enumerate()
        {
            put(&mut file, at + 8 + word * 8, value, 8);
        }
    }
    file
}

fn parse(file: &[u8]) -> Result<Image, ImageError> {
    Image::parse(&file[..HEADER_BYTES], file.len() as u64, MACHINE)
}

const TEXT: [u64; 7] = [1, 5, 0, 0, 0x1800, 0x1800, 0x1000];
const DATA: [u64; 7] = [1, 6, 0x2000, 0x4000, 0x100, 0x2100, 0x1000];

#[test]
fn a_position_independent_program_is_read() {
    let file = elf(3, &[TEXT, DATA, [3, 4, 0x300, 0x300, 28, 28, 1]]);
    let image = parse(&file).unwrap();
    assert_eq!(image.kind, ImageKind::PositionIndependent);
    assert_eq!((image.entry, image.headers, image.header_count), (0x1040, Some(64), 3));
    assert_eq!(image.interpreter, Some((0x300, 28)));
    assert_eq!(image.span(), (0, 0x7000));
    assert_eq!(image.segments[1].protection, SegmentProtection { read: true, write: true, execute: false });
}

#[test]
fn wrong_files_are_refused_for_what_they_are() {
    assert_eq!(parse(&vec![0; 0x2000]), Err(ImageError::NotElf));
    let mut other = elf(3, &[TEXT]);
    put(&mut other, 18, 183, 2);
    assert_eq!(parse(&other), Err(ImageError::WrongMachine));
    let mut narrow = elf(3, &[TEXT]);
    narrow[4] = 1;
    assert_eq!(parse(&narrow), Err(ImageError::WrongMachine));
    assert_eq!(parse(&elf(1, &[TEXT])), Err(ImageError::NotExecutable));
    assert_eq!(parse(&elf(2, &[])), Err(ImageError::Malformed));
}

#[test]
fn segments_that_contradict_themselves_are_refused() {
    let changed = |index: usize, value: u64| {
        let mut header = DATA;
        header[index] = value;
        parse(&elf(3, &[TEXT, header]))
    };
    assert!(changed(4, 0x100).is_ok());
    assert_eq!(changed(2, 0x2010), Err(ImageError::Malformed), "offset and address differ within the page");
    assert_eq!(changed(3, 0x1000), Err(ImageError::Malformed), "overlap");
    assert_eq!(changed(3, !0xfff), Err(ImageError::Malformed), "address");
    assert_eq!(changed(4, 0x2200), Err(ImageError::Malformed), "more file than memory");
    assert_eq!(changed(5, u64::MAX - 0x3000), Err(ImageError::Malformed), "end overflows");
    assert_eq!(changed(2, !0xfff), Err(ImageError::Malformed), "offset overflows");
}

#[test]
fn arbitrary_headers_never_panic() {
    let mut file = elf(3, &[TEXT, DATA, [3, 4, 0x300, 0x300, 28, 28, 1]]);
    let mut state = 1u64;
    for _ in 0..20_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = (state >> 33) as usize % 300;
        let before = file[at];
        file[at] = (state >> 20) as u8;
        let length = (state >> 40) as usize % HEADER_BYTES;
        let _ = Image::parse(&file[..length], file.len() as u64, MACHINE);
        let _ = parse(&file).map(|image| image.span());
        if state & 3 != 0 {
            file[at] = before;
        }
    }
}

#[test]
fn script_lines() {
    let parts = |line| parse_script(line).map(|script| (script.interpreter, script.argument));
    assert_eq!(parts(b"#!/bin/sh\necho"), Some((&b"/bin/sh"[..], None)));
    assert_eq!(
        parts(b"#! /usr/bin/env  python3 -u \n"),
        Some((&b"/usr/bin/env"[..], Some(&b"python3 -u"[..])))
    );
    assert_eq!(parts(b"#!/bin/sh"), Some((&b"/bin/sh"[..], None)));
    assert_eq!(parts(b"#!\n/bin/sh"), None);
    assert_eq!(parts(b"echo"), None);
    let long = [&b"#!/"[..], &[b'x'; 300][..]].concat();
    assert_eq!(parts(&long), None);
}

fn strings(list: &[&[u8]]) -> Strings {
    let mut strings = Strings::new();
    list.iter().for_each(|string| strings.push(string).unwrap());
    strings
}

#[test]
fn lists_keep_their_order_and_their_limits() {
    let mut list = strings(&[b"old", b"argument"]);
    list.pop_front();
    list.push_front(b"script").unwrap();
    list.push_front(b"sh").unwrap();
    assert_eq!(list.iter().collect::<Vec<_>>(), [&b"sh\0"[..], b"script\0", b"argument\0"]);
    assert_eq!(list.total_bytes(), 19);
    assert_eq!(list.push(&vec![b'x'; Strings::STRING_BYTES_MAX]), Err(StringsError::TooBig));
}

#[test]
fn the_stack_reads_back_as_the_program_will_read_it() {
    let (arguments, environment) = (strings(&[b"ls", b"-l", b""]), strings(&[b"A=1"]));
    let plan = StackPlan {
        top: 0x7fff_ffff_f000,
        limit_bytes: 1 << 20,
        path: b"/bin/ls",
        arguments: &arguments,
        environment: &environment,
        random: [7; 16],
        platform: b"x86_64",
        auxiliary: Auxiliary { entry: 0x1234, ..Auxiliary::default() },
    };
    let stack = plan.build().unwrap();
    assert_eq!((stack.pointer % 16, stack.pointer + stack.bytes.len() as u64), (0, plan.top));
    let word = |address: u64| {
        let at = (address - stack.pointer) as usize;
        u64::from_le_bytes(stack.bytes[at..at + 8].try_into().unwrap())
    };
    let string = |address: u64| {
        let rest = &stack.bytes[(address - stack.pointer) as usize..];
        rest[..rest.iter().position(|&byte| byte == 0).unwrap()].to_vec()
    };
    let sp = stack.pointer;
    assert_eq!(word(sp), 3);
    let argv: Vec<_> = (1..4).map(|index| string(word(sp + index * 8))).collect();
    assert_eq!(argv, [&b"ls"[..], b"-l", b""]);
    assert_eq!((word(sp + 32), string(word(sp + 40)), word(sp + 48)), (0, b"A=1".to_vec(), 0));
    let auxiliary = |kind: u32| {
        (0..)
            .map(|pair| sp + 56 + pair * 16)
            .find(|&at| word(at) == u64::from(kind))
            .map(|at| word(at + 8))
            .unwrap()
    };
    use linux_raw_sys::auxvec;
    assert_eq!(auxiliary(auxvec::AT_ENTRY), 0x1234);
    assert_eq!(string(auxiliary(auxvec::AT_EXECFN)), b"/bin/ls");
    assert_eq!(string(auxiliary(auxvec::AT_PLATFORM)), b"x86_64");
    assert_eq!(string(auxiliary(auxvec::AT_RANDOM))[..16], [7; 16]);
    assert_eq!(auxiliary(auxvec::AT_NULL), 0);
    assert_eq!(string(stack.arguments.0), b"ls");
    assert_eq!(stack.arguments.1 - stack.arguments.0, 7);
    assert_eq!(string(stack.environment.0), b"A=1");
}

#[test]
fn too_many_arguments_are_refused() {
    let arguments = strings(&[&b"argument"[..]; 100]);
    let plan = StackPlan {
        top: 0x7fff_ffff_f000,
        limit_bytes: 1000,
        path: b"x",
        arguments: &arguments,
        environment: &Strings::new(),
        random: [0; 16],
        platform: b"x86_64",
        auxiliary: Auxiliary::default(),
    };
    assert_eq!(plan.build().map(|stack| stack.pointer), Err(ProgramStackError::TooBig));
}
