//! Roots from Debian's archive: packages with their dependencies, as a system would have them that had just been
//! installed, without running any of their scripts.

mod apt;
mod files;
mod script;
mod unpack;
mod users;

use std::path::{Path, PathBuf};

use heddle_erofs::write::Attributes;

use crate::alternatives::{self, Groups};
use crate::stamp::Stamp;
use crate::{Cache, Error, ImageRequest, Progress, Root, finish};

/// Top-level directories that are symbolic links into `/usr`, and made by the installer.
const MERGED: [&str; 4] = ["bin", "lib", "lib64", "sbin"];

/// Puts the requested packages, those they need and the Essential ones into `root`; returns the archives.
pub fn populate(
    request: &ImageRequest,
    root: &mut Root,
    stamps: &mut Vec<Stamp>,
    cache: &Cache,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<PathBuf>, Error> {
    let (directory, _lock) = cache.packages()?;
    let apt = apt::Apt::new(&directory, request.architecture)?;
    stamps.extend(apt.inputs().iter().map(|path| Stamp::of(path)));
    let archives = apt.fetch(&request.debs, !request.bare, progress)?;

    for name in MERGED {
        let path = Path::new("/usr").join(name);
        root.put_directory(&path, Attributes::root(0o755))?;
        root.link_default(&Path::new("/").join(name), &Path::new("usr").join(name))?;
    }
    let mut groups = Groups::new();
    let mut accounts = users::Wanted::default();
    let mut made = files::Made::default();
    let total = archives.len();
    let mut unpacked = |done| progress(Progress::Unpacking { done, total });
    for package in unpack::read_all(&archives, &directory, &mut unpacked)? {
        unpack::place(&package, root)?;
        for script in &package.scripts {
            for command in script::commands(script) {
                alternatives::install_command(&command, &mut groups);
                accounts.command(&command);
                made.command(&command);
            }
        }
    }
    alternatives::install(root, &groups)?;
    users::install(root, accounts)?;
    made.install(root)?;
    finish::skeleton(root)?;
    finish::loader_cache(root, request.architecture, &[])?;
    Ok(archives)
}
