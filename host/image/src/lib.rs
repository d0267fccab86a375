//! Root images for Heddle guests.
//!
//! A request names a program and where the root comes from: the packages installed on this host, packages from
//! Debian's archive, or a directory. The answer is a file to back the guest's memory with, which holds an EROFS image
//! at [`IMAGE_OFFSET`](heddle_abi::boot::IMAGE_OFFSET), or behind the hole below 4 GiB if it is large.
//!
//! - `assemble`: from a request to a [`Root`]; `host`, `dpkg`, `alternatives`, `finish` are its parts.
//! - `deb`: the same from Debian's archive.
//! - `program`, `loader`, `elf`: the files that a program needs to start. They look through a `View`, so that the
//!   same search finds the files on the host and checks the finished root.
//! - `backing`: the file.
//! - [`Cache`]: keeps files, `key` names them, `memo` and `stamp` tell whether an answer still holds, `evict` removes.
//!
//! Where files are added to a root, the answer is that root's image and a layer: an image with all names and attributes
//! that has the data of the added files only. The two lie side by side in the guest's memory as one image.

mod alternatives;
mod assemble;
mod backing;
mod cache;
mod deb;
mod dpkg;
mod elf;
mod error;
mod evict;
mod finish;
mod host;
mod key;
mod ld_cache;
mod loader;
mod memo;
mod pam;
mod program;
mod root;
mod stamp;
mod view;

use std::ffi::OsString;
use std::path::PathBuf;

pub use assemble::{Assembly, assemble};
pub use backing::write as write_backing;
pub use cache::{Cache, Image, Layer};
pub use elf::Architecture;
pub use error::Error;
pub use evict::{CachedImage, Cleaned};
pub use root::Root;

/// The requested contents of a root image.
#[derive(Clone, Debug)]
pub struct ImageRequest {
    /// The program: a name for the search path, or a path, of the host or of what is added.
    pub program: OsString,
    /// Leave the host's Essential packages out.
    pub bare: bool,
    /// Files and directories of the host, and where they go in the guest: both absolute.
    pub add: Vec<(PathBuf, PathBuf)>,
    /// Packages to fetch instead of taking the host's.
    pub debs: Vec<String>,
    /// A directory to take as it is instead.
    pub root: Option<PathBuf>,
    /// Where programs are looked for on the host: its `PATH`.
    pub search_path: OsString,
    /// Directories of the guest in which the loader looks before others: its `LD_LIBRARY_PATH`.
    pub library_path: Vec<PathBuf>,
    /// The working directory, which relative paths start from.
    pub directory: PathBuf,
    /// The machine the guest is.
    pub architecture: Architecture,
}

impl ImageRequest {
    /// A request for `program` as this process would run it.
    #[must_use]
    pub fn new(program: impl Into<OsString>) -> Self {
        ImageRequest {
            program: program.into(),
            bare: false,
            add: Vec::new(),
            debs: Vec::new(),
            root: None,
            search_path: std::env::var_os("PATH").unwrap_or_default(),
            library_path: Vec::new(),
            directory: std::env::current_dir().unwrap_or_default(),
            architecture: Architecture::HOST,
        }
    }
}

/// How far the making of an image has come.
#[derive(Clone, Debug)]
pub enum Progress {
    /// Files are being looked for.
    Assembling,
    /// apt reads the archive's package lists anew.
    UpdatingLists,
    /// Packages are being fetched.
    Fetching {
        /// So many were missing.
        packages: usize,
        /// Bytes of them that are here.
        done: u64,
        /// Of so many.
        total: u64,
    },
    /// Packages are being unpacked.
    Unpacking {
        /// So many are done.
        done: usize,
        /// Of so many.
        total: usize,
    },
    /// Bytes of the image are being written.
    Writing {
        /// So many are written.
        done: u64,
        /// Of so many.
        total: u64,
    },
}
