//! From a request to a root, its program found and everything that the program needs to start checked.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::dpkg::{self, Database};
use crate::host::{Importer, hops};
use crate::view::Host;
use crate::{Error, ImageRequest, Root, alternatives, finish, program};

/// Where programs are in a guest whose root has nothing to do with the host's search path.
const GUEST_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Top-level directories that merged `/usr` makes symbolic links.
const MERGED: [&str; 6] = ["/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin"];

/// What installation scripts made on the host, and the package whose files it goes with.
const GENERATED: [(&str, &str); 8] = [
    ("base-files", "/etc/localtime"),
    ("base-files", "/etc/timezone"),
    ("base-passwd", "/etc/group"),
    ("base-passwd", "/etc/passwd"),
    ("ca-certificates", "/etc/ssl/certs"),
    ("libc-bin", "/etc/nsswitch.conf"),
    ("libc-bin", "/usr/lib/locale/locale-archive"),
    ("shared-mime-info", "/usr/share/mime"),
];

/// A root ready to be written.
#[derive(Debug)]
pub struct Assembly {
    /// The files.
    pub root: Root,
    /// The program's path in the guest.
    pub program: PathBuf,
}

/// Puts together what `request` asks for.
pub fn assemble(request: &ImageRequest) -> Result<Assembly, Error> {
    let mut root = Root::default();
    let (mut program, search_path) = if let Some(directory) = &request.root {
        Importer::new(&mut root).subtree(directory, Path::new("/"))?;
        (None, OsStr::new(GUEST_PATH))
    } else {
        (Some(from_host(request, &mut root)?), request.search_path.as_os_str())
    };
    for (from, to) in &request.add {
        if let Err(error) = fs::symlink_metadata(from) {
            return Err(Error::Read(from.clone(), error));
        }
        Importer::new(&mut root).subtree(from, to)?;
    }
    finish::times(&mut root);
    if program.is_none() {
        program = Some(program::search(&root, &request.program, search_path, Path::new("/"))?);
    }
    let program = program.unwrap_or_default();
    program::trace(&root, &program, search_path, request.architecture)?;
    Ok(Assembly { root, program })
}

/// The program as it is on this host, with its packages or libraries, on the host's base.
fn from_host(request: &ImageRequest, root: &mut Root) -> Result<PathBuf, Error> {
    let search_path = &request.search_path;
    let program = program::search(&Host, &request.program, search_path, &request.directory)?;
    let steps = program::trace(&Host, &program, search_path, request.architecture)?;
    let admin = Path::new(dpkg::ADMIN_DIRECTORY);
    let database = Database::open(admin, request.architecture.debian()).map_err(Error::NoDpkg)?;

    let mut packages: BTreeSet<usize> =
        if request.bare { BTreeSet::new() } else { database.closure(database.essential()) };
    let mut files = Vec::new();
    let mut libraries = Vec::new();
    for step in steps {
        // Directories on the way belong to many packages and decide nothing.
        let names: Vec<PathBuf> = hops(&step.path).into_iter().filter(|hop| hop.is_file()).collect();
        match database.owner(&names).map_err(Error::NoDpkg)? {
            Some(owner) => {
                let wanted = [Some(owner), database.fuller(owner)];
                packages.extend(database.closure(wanted.into_iter().flatten()));
            }
            None => libraries.extend(step.libraries),
        }
        files.push(step.path);
    }

    let mut importer = Importer::new(root);
    for path in MERGED.map(Path::new) {
        if path.is_symlink() {
            importer.chain(path)?;
        }
    }
    for &package in &packages {
        for path in database.files(package).map_err(Error::NoDpkg)? {
            importer.entry(&path, &path)?;
        }
        for (name, path) in GENERATED {
            if database.name(package) == name {
                importer.subtree(Path::new(path), Path::new(path))?;
            }
        }
    }
    for path in files.iter().chain(&libraries) {
        importer.chain(path)?;
    }
    alternatives::install(root, &alternatives::of_host(admin))?;
    finish::skeleton(root)?;
    finish::loader_cache(root, request.architecture, &libraries)?;
    Ok(program)
}
