//! Finding programs, and everything that must be there for one to start.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::elf::{self, Architecture, Fault, Reader};
use crate::loader::Loader;
use crate::view::{Found, Target, View};

/// How many interpreters a script may lead through, as in Linux.
const INTERPRETER_LIMIT: usize = 5;

/// How much of a script Linux looks at for its interpreter.
const SCRIPT_HEAD: u64 = 256;

/// Finds `name` as a shell would: along `path`, directories separated by colons, unless it has a slash, when it is
/// relative to `directory`.
pub fn search(view: &dyn View, name: &OsStr, path: &OsStr, directory: &Path) -> Result<PathBuf, Error> {
    let missing = || Error::ProgramNotFound(name.to_string_lossy().into_owned());
    if name.as_bytes().contains(&b'/') {
        let path = candidates(name, path, directory).next().ok_or_else(missing)?;
        return match view.look(&path) {
            Target::Missing => Err(missing()),
            Target::Other => Err(Error::NotExecutable(path)),
            Target::File(found) if found.permissions & 0o111 == 0 => Err(Error::NotExecutable(path)),
            Target::File(_) => Ok(path),
        };
    }
    if name.is_empty() {
        return Err(missing());
    }
    let (mut unusable, mut shim) = (None, None);
    for candidate in candidates(name, path, directory) {
        match view.file(&candidate) {
            Some(found) if found.permissions & 0o111 == 0 => unusable = unusable.or(Some(candidate)),
            Some(_) if is_shim(&candidate) => shim = shim.or(Some(candidate)),
            Some(_) => return Ok(candidate),
            None => {}
        }
    }
    shim.ok_or_else(|| unusable.map_or_else(missing, Error::NotExecutable))
}

/// Whether a program is a script that asks a version manager (pyenv, rbenv, asdf) which program to run: where there is
/// another one of its name, that one is meant, since the manager is not in the guest.
pub fn is_shim(path: &Path) -> bool {
    path.parent().and_then(Path::file_name).is_some_and(|folder| folder == "shims")
}

/// Where `name` is looked for, in order.
pub fn candidates<'a>(
    name: &'a OsStr,
    path: &'a OsStr,
    directory: &'a Path,
) -> impl Iterator<Item = PathBuf> + 'a {
    let path = if name.as_bytes().contains(&b'/') { OsStr::new("") } else { path };
    let places = path.as_bytes().split(|&byte| byte == b':');
    places.map(move |place| clean(&directory.join(OsStr::from_bytes(place)).join(name)))
}

/// The path without `.`; `..` is kept, because symbolic links in the file system decide what it means.
fn clean(path: &Path) -> PathBuf {
    path.components().collect()
}

/// A program that takes part in a start: the one asked for, or an interpreter on the way.
#[derive(Debug)]
pub struct Step {
    /// The path by which it is started.
    pub path: PathBuf,
    /// The ELF interpreter and all libraries, if it is an ELF file.
    pub libraries: Vec<PathBuf>,
}

/// Follows a start of `program`, an absolute path, through the interpreters of scripts down to an ELF file, and from
/// there through all libraries.
///
/// `env` is looked through: the program that it will find on `path` is a step too.
pub fn trace(
    view: &dyn View,
    program: &Path,
    path: &OsStr,
    library_path: &[PathBuf],
    architecture: Architecture,
) -> Result<Vec<Step>, Error> {
    let mut steps = Vec::new();
    let mut open = vec![(program.to_owned(), None)];
    while let Some((program, wanted_by)) = open.pop() {
        if steps.len() > INTERPRETER_LIMIT {
            return Err(Error::InterpreterLoop(program));
        }
        let found = match (view.look(&program), wanted_by) {
            (Target::File(found), _) if found.permissions & 0o111 != 0 => found,
            (Target::Missing, Some(script)) => return Err(Error::MissingInterpreter(script, program)),
            (Target::Missing, None) => {
                return Err(Error::ProgramNotFound(program.to_string_lossy().into_owned()));
            }
            _ => return Err(Error::NotExecutable(program)),
        };
        let head = read_head(&found)?;
        if let Some(script) = heddle_kernel_core::exec::parse_script(&head) {
            // Linux takes a relative path from the working directory; scripts that have one mean the root.
            let interpreter = Path::new("/").join(OsStr::from_bytes(script.interpreter));
            if let Some(name) = program_of_env(&interpreter, script.argument.unwrap_or_default()) {
                let found = search(view, &name, path, Path::new("/"));
                let found = found.map_err(|_| Error::MissingInterpreter(program.clone(), name.into()))?;
                open.push((found, Some(program.clone())));
            }
            open.push((interpreter, Some(program.clone())));
            steps.push(Step { path: program, libraries: Vec::new() });
        } else {
            let libraries = libraries(view, &program, &found, library_path, architecture)?;
            steps.push(Step { path: program, libraries });
        }
    }
    Ok(steps)
}

fn read_head(found: &Found) -> Result<Vec<u8>, Error> {
    let mut head = Vec::new();
    let read = Reader::open(&found.source).and_then(|reader| reader.take(SCRIPT_HEAD).read_to_end(&mut head));
    read.map(|_| head).map_err(|error| Error::Read(found.real_path.clone(), error))
}

/// The name of the program that `env` is to start, if the interpreter is `env`.
fn program_of_env(interpreter: &Path, argument: &[u8]) -> Option<OsString> {
    if interpreter.file_name()? != "env" {
        return None;
    }
    let words = argument.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    let word = words
        .map(|word| word.strip_prefix(b"-S").unwrap_or(word))
        .find(|word| !word.is_empty() && !word.starts_with(b"-") && !word.contains(&b'='))?;
    Some(OsStr::from_bytes(word).to_owned())
}

/// The ELF interpreter and all libraries that `program` needs.
fn libraries(
    view: &dyn View,
    program: &Path,
    found: &Found,
    library_path: &[PathBuf],
    architecture: Architecture,
) -> Result<Vec<PathBuf>, Error> {
    let dynamic = elf::dynamic(&found.source, architecture).map_err(|fault| match fault {
        Fault::NotElf => Error::NotElf(program.to_owned()),
        Fault::Machine(name) => Error::WrongArchitecture(program.to_owned(), name),
        Fault::Io(error) => Error::Read(program.to_owned(), error),
    })?;
    let Some(interpreter) = &dynamic.interpreter else {
        // Without an ELF interpreter nothing looks for libraries, whatever the file says it needs.
        return Ok(Vec::new());
    };
    let interpreter = PathBuf::from(OsStr::from_bytes(interpreter));
    if view.file(&interpreter).is_none() {
        return Err(Error::MissingInterpreter(program.to_owned(), interpreter));
    }
    let mut libraries = vec![interpreter];
    libraries.extend(Loader::new(view, library_path, architecture).libraries(
        program,
        &found.real_path,
        dynamic,
    )?);
    Ok(libraries)
}
