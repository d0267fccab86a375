//! Streams, exit statuses and the ends of runs, through the tool as a user starts it.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::process::{Output, RUN_TIMEOUT, heddle_run, run, wait};
use crate::guest::Kernel;

/// A test, for one of the kernels.
pub type Test = (&'static str, fn(Kernel) -> Result<(), String>);

/// All tests of this module.
pub const TESTS: [Test; 20] = [
    ("ten megabytes of random bytes come back unchanged", random_bytes_unchanged),
    ("a large output arrives whole", large_output),
    ("standard error stays out of standard output", errors_separate),
    ("the end of input arrives", end_of_input),
    ("input that nobody reads does no harm", unread_input),
    ("a gone reader ends the program", gone_reader),
    ("the status is the program's", statuses),
    ("a signal's status is 128 and its number", signal_statuses),
    ("the environment and the working directory are as asked", environment),
    ("what cannot be executed, or found, has its status", not_started),
    ("SIGTERM leaves no machine behind", ended_by_term),
    ("SIGTERM reaches the program", term_reaches),
    ("SIGHUP reaches the program", hang_up_reaches),
    ("a kill for memory is told", out_of_memory),
    ("who fills memory through sockets and pipes ends for it", out_of_memory_in_kernel),
    ("SIGKILL leaves no machine behind", ended_by_kill),
    ("an interrupt reaches the program", interrupt),
    ("two runs at once do not disturb each other", two_at_once),
    ("the program ends the machine with background jobs in it", background_jobs),
    ("a shell runs in little memory", little_memory),
];

/// Bytes that no pattern of a stream can hide in: a xorshift generator's.
fn random_bytes(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

fn run_with(kernel: Kernel, arguments: &[&str], input: &[u8]) -> Result<Output, String> {
    let start = || run(&mut heddle_run(kernel, arguments)?, input, RUN_TIMEOUT);
    let output = start().map_err(|error| format!("{error:#}"))?;
    if output.status.is_none() {
        return Err(format!("stuck; {}", output.complaints()));
    }
    Ok(output)
}

fn expect(output: &Output, stdout: &str, status: i32) -> Result<(), String> {
    let text = output.text();
    if text != stdout || output.status != Some(status) {
        let complaints = output.complaints();
        return Err(format!(
            "{text:?} with status {:?}, expected {stdout:?} with {status}; {complaints}",
            output.status
        ));
    }
    Ok(())
}

fn random_bytes_unchanged(kernel: Kernel) -> Result<(), String> {
    let bytes = random_bytes(10_000_000);
    let output = run_with(kernel, &["cat"], &bytes)?;
    if output.stdout != bytes {
        let same = output.stdout.iter().zip(&bytes).take_while(|(left, right)| left == right).count();
        return Err(format!("{} bytes came, the first {same} as sent", output.stdout.len()));
    }
    expect(&Output { stdout: Vec::new(), ..output }, "", 0)
}

fn large_output(kernel: Kernel) -> Result<(), String> {
    let output = run_with(kernel, &["seq", "300000"], b"")?;
    let expected: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    if output.stdout != expected.as_bytes() {
        return Err(format!("{} bytes came of {}", output.stdout.len(), expected.len()));
    }
    Ok(())
}

fn errors_separate(kernel: Kernel) -> Result<(), String> {
    let output = run_with(kernel, &["sh", "-c", "echo out; echo err >&2; echo out again"], b"")?;
    if output.stderr != b"err\n" {
        return Err(format!("standard error is {:?}", String::from_utf8_lossy(&output.stderr)));
    }
    expect(&output, "out\nout again\n", 0)
}

fn end_of_input(kernel: Kernel) -> Result<(), String> {
    expect(&run_with(kernel, &["wc", "-c"], b"12345")?, "5\n", 0)?;
    expect(&run_with(kernel, &["cat"], b"")?, "", 0)
}

fn unread_input(kernel: Kernel) -> Result<(), String> {
    expect(&run_with(kernel, &["sh", "-c", "read -r x; echo $x"], &b"one\n".repeat(500_000))?, "one\n", 0)
}

fn gone_reader(kernel: Kernel) -> Result<(), String> {
    let mut child = spawn(kernel, &["yes"])?;
    let stdout = child.stdout.take().ok_or("no output")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).map_err(|error| error.to_string())?;
    let status = wait(&mut child, RUN_TIMEOUT);
    match (line.as_str(), status) {
        ("y\n", Some(141)) => Ok(()),
        _ => Err(format!("{line:?} and status {status:?}, expected 141 for SIGPIPE")),
    }
}

fn statuses(kernel: Kernel) -> Result<(), String> {
    for status in [0, 1, 42, 255] {
        expect(&run_with(kernel, &["sh", "-c", &format!("exit {status}")], b"")?, "", status)?;
    }
    Ok(())
}

fn signal_statuses(kernel: Kernel) -> Result<(), String> {
    for (signal, status) in [("KILL", 137), ("TERM", 143), ("SEGV", 139)] {
        expect(&run_with(kernel, &["sh", "-c", &format!("kill -{signal} $$")], b"")?, "", status)?;
    }
    Ok(())
}

fn environment(kernel: Kernel) -> Result<(), String> {
    let script = "echo \"$KEY\" \"$OTHER\"; pwd";
    let arguments = ["-e", "KEY=some value", "-e", "OTHER=x=y", "-w", "/usr/bin", "--", "sh", "-c", script];
    expect(&run_with(kernel, &arguments, b"")?, "some value x=y\n/usr/bin\n", 0)
}

fn not_started(kernel: Kernel) -> Result<(), String> {
    for (program, status) in [("no-such-program", 127), ("/etc/passwd", 126), ("/etc", 126)] {
        let output = run_with(kernel, &[program], b"")?;
        if output.complaints().is_empty() {
            return Err(format!("no word about {program}"));
        }
        expect(&output, "", status)?;
    }
    Ok(())
}

fn spawn(kernel: Kernel, arguments: &[&str]) -> Result<Child, String> {
    let start = || -> anyhow::Result<Child> {
        let mut command = heddle_run(kernel, arguments)?;
        Ok(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?)
    };
    start().map_err(|error| format!("{error:#}"))
}

/// Waits until a program of ours has written its first line.
fn first_line(child: &mut Child) -> Result<String, String> {
    let stdout = child.stdout.as_mut().ok_or("no output")?;
    let (mut line, mut byte) = (Vec::new(), [0]);
    while byte != *b"\n" {
        if stdout.read(&mut byte).map_err(|error| error.to_string())? == 0 {
            return Err(String::from("it ended without a line"));
        }
        line.extend_from_slice(&byte);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// The machines that a run has started: its child processes.
#[must_use]
pub fn machines(child: &Child) -> Vec<Pid> {
    let path = format!("/proc/{0}/task/{0}/children", child.id());
    let text = std::fs::read_to_string(Path::new(&path)).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

fn ended_by_term(kernel: Kernel) -> Result<(), String> {
    ended_by(kernel, Signal::TERM)
}

fn ended_by_kill(kernel: Kernel) -> Result<(), String> {
    ended_by(kernel, Signal::KILL)
}

fn ended_by(kernel: Kernel, signal: Signal) -> Result<(), String> {
    let mut child = spawn(kernel, &["sh", "-c", "echo ready; sleep 1000"])?;
    first_line(&mut child)?;
    let machines = machines(&child);
    if machines.len() != 1 {
        return Err(format!("{} machines run, expected one", machines.len()));
    }
    kill_process(Pid::from_child(&child), signal).map_err(|error| error.to_string())?;
    let status = wait(&mut child, RUN_TIMEOUT);
    if status != Some(128 + signal.as_raw()) {
        return Err(format!("status {status:?}"));
    }
    all_gone(&machines)
}

/// Waits until these processes have ended.
///
/// # Errors
/// If one does not.
pub fn all_gone(machines: &[Pid]) -> Result<(), String> {
    let deadline = Instant::now() + RUN_TIMEOUT;
    while machines.iter().any(|machine| test_kill_process(*machine).is_ok()) {
        if Instant::now() > deadline {
            return Err(String::from("the machine still runs"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn interrupt(kernel: Kernel) -> Result<(), String> {
    reaches(kernel, Signal::INT, "INT")
}

fn term_reaches(kernel: Kernel) -> Result<(), String> {
    reaches(kernel, Signal::TERM, "TERM")
}

fn hang_up_reaches(kernel: Kernel) -> Result<(), String> {
    reaches(kernel, Signal::HUP, "HUP")
}

fn reaches(kernel: Kernel, signal: Signal, name: &str) -> Result<(), String> {
    let script = format!("trap 'echo heard; exit 5' {name}; echo ready; while :; do sleep 0.1; done");
    let mut child = spawn(kernel, &["sh", "-c", &script])?;
    first_line(&mut child)?;
    kill_process(Pid::from_child(&child), signal).map_err(|error| error.to_string())?;
    let said = first_line(&mut child)?;
    let status = wait(&mut child, RUN_TIMEOUT);
    if said != "heard\n" || status != Some(5) {
        return Err(format!("{said:?} and status {status:?}"));
    }
    Ok(())
}

/// Linux says so in its log only.
fn out_of_memory(kernel: Kernel) -> Result<(), String> {
    let arguments = ["--", "sh", "-c", "tail -n 1 /dev/zero >/dev/null; echo $?"];
    let output = run_with(kernel, &arguments, b"")?;
    let is_told = output.complaints().contains("out of memory: process ");
    if is_told != (kernel == Kernel::Heddle) {
        return Err(format!("it said {:?}", output.complaints()));
    }
    expect(&output, "137\n", 0)
}

/// Linux weighs programs by what they have mapped and bounds sockets and pipes by limits for large machines, so this is
/// Heddle's alone.
fn out_of_memory_in_kernel(kernel: Kernel) -> Result<(), String> {
    if kernel == Kernel::Linux {
        return Ok(());
    }
    let fill = [
        "while (socketpair(my $a, my $b, AF_UNIX, SOCK_STREAM, 0)) { push @kept, $a, $b; $a->blocking(0); \
         1 while syswrite($a, \"x\" x 65536) }",
        "while (pipe(my $a, my $b)) { push @kept, $a, $b; $b->blocking(0); 1 while syswrite($b, \"x\" x 65536) }",
        "my $name = \"kept\"; my $fd = syscall(319, $name, 0); open(my $f, \"+<&=\", $fd) or die; \
         1 while syswrite($f, \"x\" x 65536)",
    ];
    for body in fill {
        // The innocent one has more mapped than the one that fills memory.
        let script = format!(
            "perl -e '$x = \"x\" x (28 << 20); $SIG{{TERM}} = sub {{ print \"innocent\\n\"; exit }}; \
             sleep 1 while 1' & i=$!; \
             sleep 0.3; perl -MSocket -MIO::Handle -e 'my @kept; {body}; push @kept, \"y\" x 65536 while 1' \
             2> /dev/null; echo $?; \
             kill -TERM $i; wait $i"
        );
        let output = run_with(kernel, &["--memory", "128", "--", "sh", "-c", &script], b"")?;
        expect(&output, "137\ninnocent\n", 0)?;
    }
    Ok(())
}

fn two_at_once(kernel: Kernel) -> Result<(), String> {
    let bytes = random_bytes(1_000_000);
    let one = |input: &[u8]| match run_with(kernel, &["cat"], input)? {
        output if output.stdout == input && output.status == Some(0) => Ok(()),
        output => Err(format!("{} bytes came, status {:?}", output.stdout.len(), output.status)),
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| one(&bytes[..500_000]));
        one(&bytes)?;
        other.join().unwrap_or_else(|_| Err(String::from("the other run panicked")))
    })
}

fn background_jobs(kernel: Kernel) -> Result<(), String> {
    expect(
        &run_with(kernel, &["sh", "-c", "sleep 1000 & yes >/dev/null & echo done; exit 2"], b"")?,
        "done\n",
        2,
    )
}

/// 32 MiB, in which Debian's kernel does not even start: there it gets four times as much.
fn little_memory(kernel: Kernel) -> Result<(), String> {
    let megabytes = if kernel == Kernel::Linux { "128" } else { "32" };
    let script =
        "for n in 1 2 3; do echo $n | (read -r x; echo \"$x\" | cat); done; echo $(seq 100 | tail -1)";
    let arguments = ["--memory", megabytes, "--", "bash", "-c", script];
    expect(&run_with(kernel, &arguments, b"")?, "1\n2\n3\n100\n", 0)
}
