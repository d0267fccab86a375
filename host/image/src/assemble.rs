//! From a request to a root, its program found and everything that the program needs to start checked.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::dpkg::{self, Database};
use crate::host::{Importer, hops};
use crate::stamp::Stamp;
use crate::view::{Host, HostWithAdded};
use crate::{Cache, Error, ImageRequest, Progress, Root, alternatives, deb, finish, ld_cache, program};

/// Where programs are in a guest whose root has nothing to do with the host's search path.
const GUEST_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Packages that every root has besides the Essential ones, where they are not asked to be left out: `less`, `ps`,
/// `top` and the like.
pub const TOOLS: [&str; 2] = ["less", "procps"];

/// Top-level directories that merged `/usr` makes symbolic links.
const MERGED: [&str; 6] = ["/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin"];

/// Files that installation scripts made on the host, and the package whose files each goes with.
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
    /// The files before any were added, where some were: what other requests have in common with this one.
    pub(crate) lower: Option<Root>,
    /// The program's path in the guest.
    pub program: PathBuf,
    /// The files of the host on which all this depends.
    pub(crate) stamps: Vec<Stamp>,
    /// The packages that files come from, where they don't come from the host.
    pub(crate) archives: Vec<PathBuf>,
}

/// Puts together what `request` asks for; packages are fetched into `cache`.
pub fn assemble(
    request: &ImageRequest,
    cache: &Cache,
    progress: &mut dyn FnMut(Progress),
) -> Result<Assembly, Error> {
    let mut root = Root::default();
    let mut stamps = Vec::new();
    let mut archives = Vec::new();
    let mut program = None;
    let mut search_path = OsStr::new(GUEST_PATH);
    if let Some(directory) = &request.root {
        fs::read_dir(directory).map_err(|error| Error::Read(directory.clone(), error))?;
        let mut importer = Importer::new(&mut root);
        importer.subtree(directory, Path::new("/"))?;
        stamps = importer.stamps;
    } else if !request.debs.is_empty() {
        archives = deb::populate(request, &mut root, &mut stamps, cache, progress)?;
    } else {
        program = Some(from_host(request, &mut root, &mut stamps)?);
        search_path = &request.search_path;
    }
    finish::resolver(&mut root)?;
    let mut lower = (!request.add.is_empty()).then(|| root.clone());
    for (from, to) in &request.add {
        // Of a symbolic link, its target is wanted.
        let real = fs::canonicalize(from).map_err(|error| Error::Read(from.clone(), error))?;
        let mut importer = Importer::new(&mut root);
        importer.stamps.extend(hops(from).iter().filter(|hop| hop.is_symlink()).map(|hop| Stamp::of(hop)));
        importer.subtree(&real, to)?;
        stamps.append(&mut importer.stamps);
    }
    finish::times(&mut root);
    lower.iter_mut().for_each(finish::times);
    let program = match program {
        Some(program) => program,
        None => program::search(&root, &request.program, search_path, Path::new("/"))?,
    };
    program::trace(&root, &program, search_path, &request.library_path, request.architecture)?;
    Ok(Assembly { root, lower, program, stamps, archives })
}

/// The program as it is on this host, with its packages or libraries, on the host's base.
fn from_host(request: &ImageRequest, root: &mut Root, stamps: &mut Vec<Stamp>) -> Result<PathBuf, Error> {
    let search_path = &request.search_path;
    let admin = Path::new(dpkg::ADMIN_DIRECTORY);
    let deciding = ["status", "diversions", "alternatives"].map(|name| admin.join(name));
    stamps.extend(deciding.iter().map(|path| Stamp::of(path)));
    stamps.extend([ld_cache::PATH, alternatives::DIRECTORY].map(|path| Stamp::of(Path::new(path))));
    stamps.extend(
        program::candidates(&request.program, search_path, &request.directory).map(|path| Stamp::of(&path)),
    );
    let added = added_program(request);
    let program = match &added {
        Some((host, _)) => host.clone(),
        None => program::search(&Host, &request.program, search_path, &request.directory)?,
    };
    let passed_over = program::candidates(&request.program, search_path, &request.directory)
        .find(|path| program::is_shim(path) && path.is_file() && *path != program);
    if let Some(shim) = passed_over.filter(|_| added.is_none()) {
        let (shim, program) = (shim.display(), program.display());
        root.warn(format!("{program} it is: {shim} needs a version manager, which is not in the guest"));
    }
    let with_added = HostWithAdded(&request.add);
    let mut steps =
        program::trace(&with_added, &program, search_path, &request.library_path, request.architecture)?;
    for step in &mut steps {
        // Libraries that are added come by themselves.
        step.libraries.retain(|library| with_added.origin(library).is_none());
    }
    let mut libraries = Vec::new();
    if added.is_some() {
        // The file itself comes with what is added, at its path in the guest; its libraries lie at the host's.
        let step = steps.remove(0);
        libraries.extend(step.libraries);
    }
    let database = Database::open(admin, request.architecture.debian()).map_err(Error::NoDpkg)?;

    let mut packages = BTreeSet::new();
    if !request.bare {
        let tools = TOOLS.iter().filter_map(|name| database.package(name));
        packages = database.closure(database.essential().chain(tools));
    }
    let mut files = Vec::new();
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
            // The database shows every other change.
            importer.watch = path.starts_with("/etc") && !path.is_dir();
            importer.entry(&path, &path)?;
        }
        importer.watch = true;
        for (name, path) in GENERATED {
            let path = Path::new(path);
            if database.name(package) == name && path.is_dir() {
                importer.subtree(path, path)?;
            } else if database.name(package) == name {
                importer.chain(path)?;
            }
        }
    }
    alternatives::install(importer.root, &alternatives::of_host(admin))?;
    for path in files.iter().chain(&libraries) {
        importer.chain(path)?;
    }
    stamps.append(&mut importer.stamps);
    finish::skeleton(root)?;
    finish::loader_cache(root, request.architecture, &libraries)?;
    Ok(added.map_or(program, |(_, guest)| guest))
}

/// The program, if it is one of the files that are added or in such a folder: its paths here and in the guest. A name
/// without a slash means a file of the search path.
fn added_program(request: &ImageRequest) -> Option<(PathBuf, PathBuf)> {
    let root = Path::new("/");
    program::candidates(&request.program, &request.search_path, root).find_map(|guest| {
        let host = HostWithAdded(&request.add).origin(&guest)?;
        host.is_file().then_some((host, guest))
    })
}
