//! `/proc/net/snmp`, `snmp6` and `netstat`: the engine's counts in the form that Linux gives them.

use heddle_inet::counters::{Counters, LocalEvents};
use heddle_inet::settings::Settings;
use heddle_inet::tcp::TcpState;

use crate::error::Errno;
use crate::procfs::sockets::tcp_sockets;
use crate::procfs::{Subject, Text};

type Shown = Result<(), Errno>;

/// A count with its name.
type Row<'a> = (&'a str, i64);

/// Kinds of messages with the names that Linux gives their counts.
const ICMP_KINDS: [(u8, &str); 11] = [
    (3, "DestUnreachs"),
    (11, "TimeExcds"),
    (12, "ParmProbs"),
    (4, "SrcQuenchs"),
    (5, "Redirects"),
    (8, "Echos"),
    (0, "EchoReps"),
    (13, "Timestamps"),
    (14, "TimestampReps"),
    (17, "AddrMasks"),
    (18, "AddrMaskReps"),
];
const ICMP_V6_KINDS: [(u8, &str); 15] = [
    (1, "DestUnreachs"),
    (2, "PktTooBigs"),
    (3, "TimeExcds"),
    (4, "ParmProblems"),
    (128, "Echos"),
    (129, "EchoReplies"),
    (130, "GroupMembQueries"),
    (131, "GroupMembResponses"),
    (132, "GroupMembReductions"),
    (133, "RouterSolicits"),
    (134, "RouterAdvertisements"),
    (135, "NeighborSolicits"),
    (136, "NeighborAdvertisements"),
    (137, "Redirects"),
    (143, "MLDv2Reports"),
];

/// Has `show` see the counts; those of an engine that nobody has used are 0.
fn with_counters(subject: &Subject, show: impl FnOnce(&Counters, u32) -> Shown) -> Shown {
    static NONE: spin::Once<Counters> = spin::Once::new();
    match subject.network()?.running_engine() {
        Some(engine) => show(&engine.counters, Settings::get(&engine.settings.ttl)),
        None => show(NONE.call_once(Counters::default), Settings::get(&Settings::new().ttl)),
    }
}

fn number(count: u64) -> i64 {
    count.cast_signed()
}

/// The names of some counts in one line, and their values in the next.
fn pair(text: &mut Text, head: &str, rows: &[Row<'_>]) -> Shown {
    text.bytes(head.as_bytes())?;
    for (name, _) in rows {
        text.line(format_args!(" {name}"))?;
    }
    text.line(format_args!("\n{head}"))?;
    for (_, value) in rows {
        text.line(format_args!(" {value}"))?;
    }
    text.bytes(b"\n")
}

/// A count of `snmp6` in a line of its own.
fn single(text: &mut Text, head: &str, (name, value): Row<'_>) -> Shown {
    let width = 32 - head.len();
    text.line(format_args!("{head}{name:width$}\t{value}\n"))
}

/// The counts of a version of IP. Each event of the loopback was a packet that was sent and one that came.
fn ip_rows(counters: &Counters, is_v6: bool) -> [Row<'static>; 17] {
    let (ip, LocalEvents { segments, datagrams, .. }) = (counters.ip(is_v6), counters.local(is_v6));
    let local = segments + datagrams;
    [
        ("InReceives", number(ip.received.get() + local)),
        ("InHdrErrors", number(ip.header_errors.get())),
        ("InAddrErrors", number(ip.address_errors.get())),
        ("ForwDatagrams", 0),
        ("InUnknownProtos", number(ip.unknown_protocols.get())),
        ("InDiscards", number(ip.discarded.get())),
        ("InDelivers", number(ip.delivered.get() + local)),
        ("OutRequests", number(ip.sent.get() + local)),
        ("OutDiscards", number(ip.sent_discarded.get())),
        ("OutNoRoutes", number(ip.without_route.get())),
        ("ReasmTimeout", 0),
        ("ReasmReqds", number(ip.fragments_received.get())),
        ("ReasmOKs", number(ip.reassembled.get())),
        ("ReasmFails", 0),
        ("FragOKs", number(ip.cut.get())),
        ("FragFails", 0),
        ("FragCreates", number(ip.fragments_sent.get())),
    ]
}

fn udp_rows(counters: &Counters, is_v6: bool) -> [Row<'static>; 9] {
    let (udp, local) = (counters.udp(is_v6), counters.local(is_v6));
    [
        ("InDatagrams", number(local.taken)),
        ("NoPorts", number(udp.no_ports.get())),
        ("InErrors", number(udp.errors.get())),
        ("OutDatagrams", number(udp.sent.get() + local.datagrams)),
        ("RcvbufErrors", number(udp.queue_full.get())),
        ("SndbufErrors", 0),
        ("InCsumErrors", number(udp.checksum_errors.get())),
        ("IgnoredMulti", 0),
        ("MemErrors", 0),
    ]
}

fn tcp_rows(counters: &Counters, established: usize) -> [Row<'static>; 15] {
    let tcp = &counters.tcp;
    let local = counters.local(false).segments + counters.local(true).segments;
    [
        ("RtoAlgorithm", 1),
        ("RtoMin", 200),
        ("RtoMax", 120_000),
        ("MaxConn", -1),
        ("ActiveOpens", number(tcp.active_opens.get())),
        ("PassiveOpens", number(tcp.passive_opens.get())),
        ("AttemptFails", number(tcp.attempts_failed.get())),
        ("EstabResets", number(tcp.established_resets.get())),
        ("CurrEstab", number(established as u64)),
        ("InSegs", number(tcp.segments_received.get() + local)),
        ("OutSegs", number(tcp.segments_sent.get() + local)),
        ("RetransSegs", number(tcp.segments_repeated.get())),
        ("InErrs", number(tcp.errors.get())),
        ("OutRsts", number(tcp.resets_sent.get())),
        ("InCsumErrors", number(tcp.checksum_errors.get())),
    ]
}

/// The counts of ICMP: one direction's by kind follow its sums.
fn icmp_lines(text: &mut Text, counters: &Counters) -> Shown {
    let icmp = counters.icmp(false);
    text.bytes(b"Icmp: InMsgs InErrors InCsumErrors")?;
    for (_, name) in ICMP_KINDS {
        text.line(format_args!(" In{name}"))?;
    }
    text.bytes(b" OutMsgs OutErrors")?;
    for (_, name) in ICMP_KINDS {
        text.line(format_args!(" Out{name}"))?;
    }
    let (received, errors, damaged) = (icmp.received.get(), icmp.errors.get(), icmp.checksum_errors.get());
    text.line(format_args!("\nIcmp: {received} {errors} {damaged}"))?;
    for (kind, _) in ICMP_KINDS {
        text.line(format_args!(" {}", icmp.of_kind(kind)[0]))?;
    }
    text.line(format_args!(" {} 0", icmp.sent.get()))?;
    for (kind, _) in ICMP_KINDS {
        text.line(format_args!(" {}", icmp.of_kind(kind)[1]))?;
    }
    text.bytes(b"\n")
}

/// `/proc/net/snmp`.
pub fn snmp(subject: &Subject, text: &mut Text) -> Shown {
    let is_established = |state: &TcpState| matches!(state, TcpState::Established | TcpState::CloseWait);
    let sockets = tcp_sockets(&*subject.network()?)?;
    let established = sockets.iter().filter(|socket| is_established(&socket.state)).count();
    drop(sockets);
    with_counters(subject, |counters, ttl| {
        const FORWARDS_NOT: i64 = 2;
        let rows = ip_rows(counters, false);
        text.bytes(b"Ip: Forwarding DefaultTTL")?;
        for (name, _) in rows {
            text.line(format_args!(" {name}"))?;
        }
        text.line(format_args!("\nIp: {FORWARDS_NOT} {ttl}"))?;
        for (_, value) in rows {
            text.line(format_args!(" {value}"))?;
        }
        text.bytes(b"\n")?;
        icmp_lines(text, counters)?;
        pair(text, "Tcp:", &tcp_rows(counters, established))?;
        pair(text, "Udp:", &udp_rows(counters, false))
    })
}

/// `/proc/net/snmp6`.
pub fn snmp_v6(subject: &Subject, text: &mut Text) -> Shown {
    with_counters(subject, |counters, _| {
        for row in ip_rows(counters, true) {
            single(text, "Ip6", if row.0 == "ForwDatagrams" { ("OutForwDatagrams", row.1) } else { row })?;
        }
        let icmp = counters.icmp(true);
        for row in [
            ("InMsgs", number(icmp.received.get())),
            ("InErrors", number(icmp.errors.get())),
            ("OutMsgs", number(icmp.sent.get())),
            ("OutErrors", 0),
            ("InCsumErrors", number(icmp.checksum_errors.get())),
        ] {
            single(text, "Icmp6", row)?;
        }
        for (direction, head) in ["Icmp6In", "Icmp6Out"].into_iter().enumerate() {
            for (kind, name) in ICMP_V6_KINDS {
                single(text, head, (name, number(icmp.of_kind(kind)[direction])))?;
            }
        }
        for row in udp_rows(counters, true) {
            single(text, "Udp6", row)?;
        }
        Ok(())
    })
}

/// `/proc/net/netstat`: of Linux's many counts those of events that there are here.
pub fn netstat(subject: &Subject, text: &mut Text) -> Shown {
    with_counters(subject, |counters, _| {
        let tcp = &counters.tcp;
        let full = number(tcp.queue_full.get());
        let rows = [
            ("ListenOverflows", full),
            ("ListenDrops", full),
            ("TCPAbortOnData", number(tcp.aborts_asked.get())),
            ("TCPAbortOnClose", number(tcp.aborts_unread.get())),
        ];
        pair(text, "TcpExt:", &rows)
    })
}
