//! Why there is no image, in words for the user.

use std::path::PathBuf;
use std::{fmt, io};

use heddle_erofs::write::WriteError;

/// Why there is no image.
#[derive(Debug)]
pub enum Error {
    /// The program is nowhere on the search path, or there is no such file.
    ProgramNotFound(String),
    /// The program is a directory, a device, or may not be executed.
    NotExecutable(PathBuf),
    /// The program is neither an ELF file nor a script.
    NotElf(PathBuf),
    /// The program is for another machine, named as ELF names it.
    WrongArchitecture(PathBuf, String),
    /// A program's ELF interpreter or a script's interpreter is missing.
    MissingInterpreter(PathBuf, PathBuf),
    /// A library that a program or another library needs is missing.
    MissingLibrary(PathBuf, String),
    /// Scripts are interpreted by scripts without end.
    InterpreterLoop(PathBuf),
    /// The archive has no package of this name, or not with these dependencies: the text is apt's.
    UnknownPackage(String),
    /// Packages can't be fetched: the text is apt's.
    Fetch(String),
    /// A package can't be unpacked.
    Package(PathBuf, String),
    /// The host has no package database.
    NoDpkg(io::Error),
    /// A file of the host can't be read.
    Read(PathBuf, io::Error),
    /// A file can't be put into the image where it should go.
    Place(PathBuf, WriteError),
    /// The image can't be made.
    Image(WriteError),
    /// The cache can't be used.
    Cache(PathBuf, io::Error),
    /// Neither `XDG_CACHE_HOME` nor `HOME` says where the cache is.
    NoCacheDirectory,
}

impl Error {
    /// The exit status by which a shell would report this: 127 where something was not found, 126 where it can't be
    /// executed, 125 for failures of the tool itself.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::ProgramNotFound(_) | Error::MissingInterpreter(..) | Error::MissingLibrary(..) => 127,
            Error::NotExecutable(_)
            | Error::NotElf(_)
            | Error::WrongArchitecture(..)
            | Error::InterpreterLoop(_) => 126,
            _ => 125,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::ProgramNotFound(name) => write!(formatter, "{name}: not found"),
            Error::NotExecutable(path) => write!(formatter, "{}: not executable", path.display()),
            Error::NotElf(path) => {
                write!(formatter, "{}: not an ELF file, and no script with an interpreter", path.display())
            }
            Error::WrongArchitecture(path, machine) => {
                write!(formatter, "{}: wrong architecture: {machine}", path.display())
            }
            Error::MissingInterpreter(path, interpreter) => {
                write!(formatter, "{}: missing interpreter {}", path.display(), interpreter.display())
            }
            Error::MissingLibrary(path, library) => {
                write!(formatter, "{}: missing library {library}", path.display())
            }
            Error::InterpreterLoop(path) => write!(formatter, "{}: too many interpreters", path.display()),
            Error::UnknownPackage(text) => write!(formatter, "packages: {text}"),
            Error::Fetch(text) => write!(formatter, "fetching packages: {text}"),
            Error::Package(path, text) => write!(formatter, "{}: {text}", path.display()),
            Error::NoDpkg(error) => write!(formatter, "this host's package database: {error}"),
            Error::Read(path, error) => write!(formatter, "{}: {error}", path.display()),
            Error::Place(path, error) => write!(formatter, "{} in the image: {error}", path.display()),
            Error::Image(error) => error.fmt(formatter),
            Error::Cache(path, error) => write!(formatter, "image cache: {}: {error}", path.display()),
            Error::NoCacheDirectory => {
                formatter.write_str("image cache: neither XDG_CACHE_HOME nor HOME says where")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::NoDpkg(error) | Error::Read(_, error) | Error::Cache(_, error) => Some(error),
            Error::Place(_, error) | Error::Image(error) => Some(error),
            _ => None,
        }
    }
}
