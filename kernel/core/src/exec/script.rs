//! Scripts: files that start with `#!`.

/// The interpreter that a script names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script<'a> {
    /// Its path.
    pub interpreter: &'a [u8],
    /// The rest of the line, as one argument.
    pub argument: Option<&'a [u8]>,
}

/// As much of the first line as counts.
const LINE_BYTES: usize = 256;

/// Reads the first line of a file; `None` if it is no script or names no interpreter, which execve(2) answers with
/// `ENOEXEC`.
#[must_use]
pub fn parse_script(start: &[u8]) -> Option<Script<'_>> {
    let start = start.strip_prefix(b"#!")?;
    let limit = start.len().min(LINE_BYTES - 2);
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let line_end = start[..limit].iter().position(|&byte| byte == b'\n' || byte == 0);
    let line = start[..line_end.unwrap_or(limit)].trim_ascii();
    let interpreter_end = line.iter().position(is_blank);
    // A line that is cut off in the middle of the interpreter's path would run something else.
    if line_end.is_none() && limit == LINE_BYTES - 2 && interpreter_end.is_none() {
        return None;
    }
    let (interpreter, rest) = line.split_at(interpreter_end.unwrap_or(line.len()));
    let argument = rest.trim_ascii();
    (!interpreter.is_empty())
        .then_some(Script { interpreter, argument: (!argument.is_empty()).then_some(argument) })
}
