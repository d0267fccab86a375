//! Programs of the machine on packets, and programs that are refused.

use super::*;

fn program(lines: &[(u16, u8, u8, u32)]) -> Result<PacketFilter, PacketProgramError> {
    let mut bytes = Vec::new();
    for &(code, when_true, when_false, constant) in lines {
        bytes.extend_from_slice(&code.to_ne_bytes());
        bytes.extend_from_slice(&[when_true, when_false]);
        bytes.extend_from_slice(&constant.to_ne_bytes());
    }
    PacketFilter::new(&bytes)
}

/// An Ethernet frame with an IPv4 packet of UDP from port 68 to port 67.
fn frame() -> Vec<u8> {
    let mut frame = vec![0; 14 + 20 + 8 + 4];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14] = 0x45;
    frame[23] = 17;
    frame[34..38].copy_from_slice(&[0, 68, 0, 67]);
    frame
}

fn view(frame: &[u8], start: usize) -> PacketView<'_> {
    PacketView {
        frame,
        start,
        network: 14,
        protocol: 0x800,
        kind: 4,
        interface: 2,
        hardware: 1,
        ..PacketView::default()
    }
}

const RET: u16 = 0x06;

#[test]
fn a_program_of_tcpdump_finds_its_port() {
    // udp port 67, as tcpdump compiles it for Ethernet, shortened to IPv4.
    let filter = program(&[
        (0x28, 0, 0, 12),
        (0x15, 0, 8, 0x800),
        (0x30, 0, 0, 23),
        (0x15, 0, 6, 17),
        (0xb1, 0, 0, 14),
        (0x48, 0, 0, 14),
        (0x15, 2, 0, 67),
        (0x48, 0, 0, 16),
        (0x15, 0, 1, 67),
        (RET, 0, 0, 262_144),
        (RET, 0, 0, 0),
    ])
    .unwrap();
    assert_eq!(filter.run(&view(&frame(), 0)), 262_144);
    let mut other = frame();
    other[37] = 99;
    assert_eq!(filter.run(&view(&other, 0)), 0);
    assert_eq!(filter.run(&view(&other[..20], 0)), 0);
    assert_eq!(filter.run(&view(&[], 0)), 0);
}

#[test]
fn offsets_count_from_where_the_socket_begins() {
    let first = program(&[(0x30, 0, 0, 0), (0x16, 0, 0, 0)]).unwrap();
    assert_eq!(first.run(&view(&frame(), 14)), 0x45);
    let network = program(&[(0x30, 0, 0, 0xfff0_0009), (0x16, 0, 0, 0)]).unwrap();
    assert_eq!(network.run(&view(&frame(), 0)), 17);
    let link = program(&[(0x28, 0, 0, 0xffe0_000c), (0x16, 0, 0, 0)]).unwrap();
    assert_eq!(link.run(&view(&frame(), 14)), 0x800);
    let length = program(&[(0x80, 0, 0, 0), (0x16, 0, 0, 0)]).unwrap();
    assert_eq!(length.run(&view(&frame(), 14)), 32);
}

#[test]
fn what_is_beside_the_packet_can_be_loaded() {
    for (offset, value) in [(0, 0x800), (4, 4), (8, 2), (28, 1), (44, 0)] {
        let filter = program(&[(0x20, 0, 0, 0xffff_f000 + offset), (0x16, 0, 0, 0)]).unwrap();
        assert_eq!(filter.run(&view(&frame(), 0)), value, "{offset}");
    }
    assert_eq!(program(&[(0x20, 0, 0, 0xffff_f002), (0x16, 0, 0, 0)]), Err(PacketProgramError::Invalid));
    assert_eq!(program(&[(0x20, 0, 0, 0xffff_ff00), (0x16, 0, 0, 0)]), Err(PacketProgramError::Invalid));
}

#[test]
fn arithmetic_wraps_and_division_by_zero_ends() {
    let calculate = |code, constant| {
        program(&[(0x00, 0, 0, 7), (code, 0, 0, constant), (0x16, 0, 0, 0)])
            .map(|made| made.run(&view(&[], 0)))
    };
    assert_eq!(calculate(0x14, 9), Ok(7_u32.wrapping_sub(9)));
    assert_eq!(calculate(0x34, 2), Ok(3));
    assert_eq!(calculate(0x94, 4), Ok(3));
    assert_eq!(calculate(0xa4, 1), Ok(6));
    assert_eq!(calculate(0x64, 31), Ok(7 << 31));
    assert_eq!(calculate(0x34, 0), Err(PacketProgramError::Invalid));
    assert_eq!(calculate(0x74, 32), Err(PacketProgramError::Invalid));
    // By the index register, which is 0.
    assert_eq!(calculate(0x3c, 0), Ok(0));
    assert_eq!(calculate(0x84, 0), Ok(7_u32.wrapping_neg()));
}

#[test]
fn programs_that_could_go_astray_are_refused() {
    let refused = |lines: &[(u16, u8, u8, u32)]| {
        assert_eq!(program(lines), Err(PacketProgramError::Invalid), "{lines:?}")
    };
    refused(&[]);
    refused(&[(0x00, 0, 0, 0)]);
    refused(&[(0x15, 0, 1, 0), (RET, 0, 0, 0)]);
    refused(&[(0x05, 0, 0, 1), (RET, 0, 0, 0)]);
    refused(&[(0x05, 0, 0, u32::MAX), (RET, 0, 0, 0)]);
    refused(&[(0x60, 0, 0, 3), (RET, 0, 0, 0)]);
    refused(&[(0x02, 0, 0, 16), (RET, 0, 0, 0)]);
    refused(&[(0xff, 0, 0, 0), (RET, 0, 0, 0)]);
    refused(&[(0x15, 1, 0, 0), (0x02, 0, 0, 3), (0x60, 0, 0, 3), (RET, 0, 0, 0)]);
    assert!(program(&[(0x02, 0, 0, 3), (0x60, 0, 0, 3), (RET, 0, 0, 0)]).is_ok());
}

#[test]
fn the_index_is_combined_by_a_load_that_is_none() {
    let aside = 0xffff_f000;
    for size in [0x20, 0x28, 0x30] {
        let lines =
            [(0x01, 0, 0, 0xff00_00ff), (0x00, 0, 0, 0x0ff0_0ff0), (size, 0, 0, aside + 40), (0x16, 0, 0, 0)];
        assert_eq!(program(&lines).unwrap().run(&view(&frame(), 0)), 0xf0f0_0f0f);
    }
}
