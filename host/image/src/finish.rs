//! The files of a root besides those of packages: the directories that every system has, the files that installation
//! scripts would write, the loader's cache, and times for files that have none.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use heddle_erofs::Time;
use heddle_erofs::write::{Attributes, Content, Node, NodeId, Source, Tree};

use crate::elf::{self, Architecture};
use crate::view::View;
use crate::{Error, Root, ld_cache, pam};

/// Directories that programs expect, with their permissions.
const DIRECTORIES: [(&str, u16); 22] = [
    ("/dev", 0o755),
    ("/etc", 0o755),
    ("/home", 0o755),
    ("/media", 0o755),
    ("/mnt", 0o755),
    ("/opt", 0o755),
    ("/proc", 0o555),
    ("/root", 0o700),
    ("/run", 0o755),
    ("/run/lock", 0o1777),
    ("/srv", 0o755),
    ("/sys", 0o555),
    ("/tmp", 0o1777),
    ("/usr/bin", 0o755),
    ("/usr/local/bin", 0o755),
    ("/usr/sbin", 0o755),
    ("/var/cache", 0o755),
    ("/var/lib", 0o755),
    ("/var/log", 0o755),
    ("/var/mail", 0o2775),
    ("/var/spool", 0o755),
    ("/var/tmp", 0o1777),
];

/// Symbolic links that installers make.
const LINKS: [(&str, &str); 4] = [
    ("/etc/mtab", "../proc/self/mounts"),
    ("/var/lock", "/run/lock"),
    ("/var/run", "/run"),
    ("/bin/sh", "dash"),
];

/// Files that `base-files` keeps as samples, and where its script puts them.
const SAMPLES: [(&str, &str); 5] = [
    ("/usr/share/base-files/nsswitch.conf", "/etc/nsswitch.conf"),
    ("/usr/share/base-files/profile", "/etc/profile"),
    ("/usr/share/base-files/motd", "/etc/motd"),
    ("/usr/share/base-files/dot.bashrc", "/root/.bashrc"),
    ("/usr/share/base-files/dot.profile", "/root/.profile"),
];

/// The names that need no server.
const HOSTS: &str = "127.0.0.1\tlocalhost heddle\n::1\tlocalhost ip6-localhost ip6-loopback\n";

/// The server of names that QEMU's network stack is to the guest.
const RESOLVER: &str = "nameserver 10.0.2.3\n";

/// Points programs to the guest's server of names, as any container does: another system's is of no use here. A root
/// without `/etc` is not for programs that look there.
pub fn resolver(root: &mut Root) -> Result<(), Error> {
    if !root.is_directory(Path::new("/etc")) {
        return Ok(());
    }
    root.put_default("/etc/hosts", 0o644, HOSTS)?;
    let content = Content::File(Source::Bytes(RESOLVER.into()));
    root.put(Path::new("/etc/resolv.conf"), Attributes::root(0o644), content).map(drop)
}

/// Adds what is missing of directories, links and configuration.
pub fn skeleton(root: &mut Root) -> Result<(), Error> {
    for (path, permissions) in DIRECTORIES {
        root.ensure_directory(Path::new(path), permissions)?;
    }
    for (path, target) in LINKS {
        let path = Path::new(path);
        if path != Path::new("/bin/sh") || root.file(Path::new("/bin/dash")).is_some() {
            root.link_default(path, Path::new(target))?;
        }
    }
    for (sample, path) in SAMPLES {
        if let (Some(found), None) = (root.file(Path::new(sample)), root.find_link(Path::new(path))) {
            root.put(Path::new(path), Attributes::root(0o644), Content::File(found.source))?;
        }
    }
    root.put_default("/etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\n")?;
    root.put_default("/etc/group", 0o644, "root:x:0:\n")?;
    root.put_default("/etc/hostname", 0o644, "heddle\n")?;
    root.put_default("/etc/hosts", 0o644, HOSTS)?;
    pam::install(root)
}

/// Writes the loader's cache: libraries of the directories that `/etc/ld.so.conf` and the loader itself name, and
/// `more` from elsewhere.
pub fn loader_cache(root: &mut Root, architecture: Architecture, more: &[PathBuf]) -> Result<(), Error> {
    let mut directories = Vec::new();
    configured_directories(root, Path::new("/etc/ld.so.conf"), &mut directories, 0);
    directories.extend(ld_cache::default_directories(architecture));
    let mut libraries = BTreeMap::new();
    let mut seen = Vec::new();
    let mut names: HashMap<NodeId, Option<Vec<u8>>> = HashMap::new();
    for directory in directories {
        let Some(id) = root.find(&directory).filter(|id| !seen.contains(id)) else {
            continue;
        };
        seen.push(id);
        let Node::Directory(children) = root.tree().node(id) else {
            continue;
        };
        for name in children.keys() {
            let library = name.starts_with(b"lib") || name.starts_with(b"ld-");
            if library && memchr::memmem::find(name, b".so").is_some() {
                let path = directory.join(std::ffi::OsStr::from_bytes(name));
                enter(root, architecture, path, &mut libraries, &mut names);
            }
        }
    }
    for path in more {
        enter(root, architecture, path.clone(), &mut libraries, &mut names);
    }
    let bytes = ld_cache::write(&libraries, architecture);
    root.put(Path::new(ld_cache::PATH), Attributes::root(0o644), Content::File(Source::Bytes(bytes)))?;
    Ok(())
}

/// Enters the library at `path` under its own name, unless that name is taken.
fn enter(
    root: &Root,
    architecture: Architecture,
    path: PathBuf,
    libraries: &mut BTreeMap<Vec<u8>, PathBuf>,
    names: &mut HashMap<NodeId, Option<Vec<u8>>>,
) {
    let (Some(found), Some(id)) = (root.file(&path), root.find(&path)) else {
        return;
    };
    let name = names.entry(id).or_insert_with(|| {
        let dynamic = elf::dynamic(&found.source, architecture).ok()?;
        dynamic.soname.or_else(|| Some(path.file_name()?.as_bytes().to_vec()))
    });
    if let Some(name) = name {
        // The link of the library's own name, which stays as versions come and go, is what ldconfig enters.
        let own = path.with_file_name(std::ffi::OsStr::from_bytes(name));
        let path = if root.find(&own) == Some(id) { own } else { path };
        libraries.entry(name.clone()).or_insert(path);
    }
}

/// The directories in a loader configuration, with the files it includes.
fn configured_directories(root: &Root, path: &Path, directories: &mut Vec<PathBuf>, depth: usize) {
    if depth == 8 {
        return;
    }
    for line in root.text(path).lines().map(|line| line.split('#').next().unwrap_or("").trim()) {
        if let Some(pattern) = line.strip_prefix("include ") {
            for included in matching(root, &path.with_file_name(pattern.trim())) {
                configured_directories(root, &included, directories, depth + 1);
            }
        } else if line.starts_with('/') {
            directories.push(line.into());
        }
    }
}

/// The files that a pattern with at most one `*`, in its last component, stands for.
fn matching(root: &Root, pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().unwrap_or_default().as_bytes();
    let directory = pattern.parent().unwrap_or(Path::new("/"));
    let Some(star) = name.iter().position(|&byte| byte == b'*') else {
        return vec![pattern.to_owned()];
    };
    let (before, after) = (&name[..star], &name[star + 1..]);
    let Some(Node::Directory(children)) = root.find(directory).map(|id| root.tree().node(id)) else {
        return Vec::new();
    };
    let fits = |name: &&Vec<u8>| {
        name.len() >= before.len() + after.len() && name.starts_with(before) && name.ends_with(after)
    };
    children.keys().filter(fits).map(|name| directory.join(std::ffi::OsStr::from_bytes(name))).collect()
}

/// Gives every file without a time one: a directory that of the newest file below it, all else that of the newest
/// file there is. So an image is a function of its files, not of when it was made.
pub fn times(root: &mut Root) {
    let tree = root.tree_mut();
    let newest = newest_below(tree, Tree::ROOT);
    let mut open = vec![Tree::ROOT];
    while let Some(id) = open.pop() {
        if let Node::Directory(children) = tree.node(id) {
            open.extend(children.values().copied());
        }
        let attributes = tree.attributes_mut(id);
        if attributes.mtime == Time::default() {
            attributes.mtime = newest;
        }
    }
}

/// The time of the newest file in and below a directory; dates directories that have no time on the way.
fn newest_below(tree: &mut Tree, id: NodeId) -> Time {
    let mut newest = tree.attributes(id).mtime;
    if let Node::Directory(children) = tree.node(id) {
        let children: Vec<NodeId> = children.values().copied().collect();
        let below = children.into_iter().map(|child| newest_below(tree, child)).max().unwrap_or_default();
        let attributes = tree.attributes_mut(id);
        if attributes.mtime == Time::default() {
            attributes.mtime = below;
        }
        newest = newest.max(below);
    }
    newest
}
