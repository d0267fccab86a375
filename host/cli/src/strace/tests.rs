//! Records as they look when they are shown.

use super::*;

fn shown(record: &str) -> String {
    CallRecord::parse(record).unwrap().describe()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn calls_look_as_those_of_strace() {
    let path = hex(b"/etc/passwd\0");
    assert_eq!(
        shown(&format!("7 5 1500 openat ffffff9c 1000 80000 0 0 0 3 1000:{path},")),
        "openat(AT_FDCWD, \"/etc/passwd\", O_RDONLY|O_CLOEXEC) = 3 <0.000001>"
    );
    assert_eq!(
        shown(&format!("7 5 1500 openat ffffff9c 1000 241 1b6 0 0 fffffffffffffffe 1000:{path},")),
        "openat(AT_FDCWD, \"/etc/passwd\", O_WRONLY|O_CREAT|O_TRUNC, 0666) \
         = -1 ENOENT (No such file or directory) <0.000001>"
    );
    assert_eq!(
        shown(&format!("7 5 2000000 write 1 2000 6 0 0 0 6 2000:{},", hex(b"hello\n"))),
        "write(1, \"hello\\n\", 6) = 6 <0.002000>"
    );
    for result in ["?", "0"] {
        assert_eq!(shown(&format!("7 5 9 exit_group 0 0 0 0 0 0 {result}")), "exit_group(0) = ?");
    }
    assert_eq!(
        shown("7 5 0 mmap 0 2000 3 22 ffffffff 0 7f0000001000"),
        "mmap(0, 8192, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000001000 <0.000000>"
    );
}

#[test]
fn a_string_goes_on_from_one_piece_to_the_next() {
    let record = format!("7 5 0 unlink 1000 0 0 0 0 0 0 1000:{},1040:{},", hex(&[b'a'; 64]), hex(b"b\0"));
    assert_eq!(shown(&record), format!("unlink(\"{}b\") = 0 <0.000000>", "a".repeat(64)));
}

#[test]
fn buffers_are_cut_and_calls_without_memory_show_addresses() {
    let record = format!("7 5 0 read 0 2000 64 0 0 0 64 2000:{},", hex(&[b'x'; 48]));
    assert_eq!(shown(&record), format!("read(0, \"{}\"..., 100) = 100 <0.000000>", "x".repeat(32)));
    assert_eq!(
        shown("7 5 0 read 0 2000 64 0 0 0 fffffffffffffff2 "),
        "read(0, 0x2000, 100) = -1 EFAULT (Bad address) <0.000000>"
    );
}

#[test]
fn vectors_show_what_was_read() {
    let memory = format!(
        "3000:{},3008:{},2000:{},",
        hex(&0x2000_u64.to_le_bytes()),
        hex(&9_u64.to_le_bytes()),
        hex(b"abc")
    );
    assert_eq!(
        shown(&format!("7 5 0 readv 0 3000 1 0 0 0 3 {memory}")),
        "readv(0, [{iov_base=\"abc\", iov_len=9}], 1) = 3 <0.000000>"
    );
}

#[test]
fn signals_and_ends_have_lines() {
    let child = "--- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED} ---";
    assert_eq!(shown("7 5 0 signal 17 1"), child);
    let segv = "--- SIGSEGV {si_signo=SIGSEGV, si_code=1} ---";
    assert_eq!(shown("7 5 0 signal 11 1"), segv);
    assert_eq!(shown("7 5 0 exit 256"), "+++ exited with 1 +++");
    assert_eq!(shown("7 5 0 exit 9"), "+++ killed by SIGKILL +++");
    assert_eq!(shown("7 5 0 exit 139"), "+++ killed by SIGSEGV (core dumped) +++");
}

#[test]
fn a_line_that_is_no_record_is_left_out() {
    for text in ["", "7", "7 5", "7 x 0 read", "7 5 0 read 1 2 3", "7 5 0 signal"] {
        assert!(CallRecord::parse(text).is_none(), "{text:?}");
    }
}

#[test]
fn structures_show_the_fields_that_one_looks_for() {
    let mut stat = [0_u8; 144];
    stat[24..28].copy_from_slice(&0o100_644_u32.to_le_bytes());
    stat[48..56].copy_from_slice(&1234_u64.to_le_bytes());
    let record = format!(
        "7 5 0 fstat 3 4000 0 0 0 0 0 4000:{},4040:{},4080:{},",
        hex(&stat[..64]),
        hex(&stat[64..128]),
        hex(&stat[128..])
    );
    assert_eq!(shown(&record), "fstat(3, {st_mode=S_IFREG|0644, st_size=1234, ...}) = 0 <0.000000>");
    let address = [2, 0, 0, 80, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(
        shown(&format!("7 5 0 connect 3 4000 10 0 0 0 ffffffffffffff91 4000:{},", hex(&address))),
        "connect(3, {sa_family=AF_INET, sin_port=htons(80), sin_addr=inet_addr(\"127.0.0.1\")}, 16) \
         = -1 ECONNREFUSED (Connection refused) <0.000000>"
    );
    let status = hex(&0x200_i32.to_le_bytes());
    assert_eq!(
        shown(&format!("7 5 0 wait4 ffffffff 4000 0 0 0 0 9 4000:{status},")),
        "wait4(-1, [{WIFEXITED(s) && WEXITSTATUS(s) == 2}], 0, 0) = 9 <0.000000>"
    );
}

/// On a host of the guest's kind the headers have the same numbers.
#[cfg(target_arch = "x86_64")]
#[test]
fn numbers_of_the_guest_are_those_of_its_headers() {
    use linux_raw_sys::general;
    use tables::guest;
    let pairs = [
        (guest::ARCH_SET_FS, general::ARCH_SET_FS),
        (guest::MAP_32BIT, general::MAP_32BIT),
        (guest::O_DIRECT, general::O_DIRECT),
        (guest::O_LARGEFILE, general::O_LARGEFILE),
        (guest::O_DIRECTORY, general::O_DIRECTORY),
        (guest::O_NOFOLLOW, general::O_NOFOLLOW),
        (guest::O_TMPFILE, general::O_TMPFILE),
    ];
    assert!(pairs.iter().all(|&(ours, theirs)| ours == u64::from(theirs)));
}
