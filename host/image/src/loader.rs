//! The search of glibc's dynamic loader, as far as it can be foretold: run paths, the loader cache, the default
//! directories, and `LD_LIBRARY_PATH` as the caller knows it. Libraries that are opened by name later are not seen.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::elf::{self, Architecture, Dynamic, Reader};
use crate::ld_cache;
use crate::view::View;

pub struct Loader<'a> {
    view: &'a dyn View,
    architecture: Architecture,
    library_path: &'a [PathBuf],
    cache: HashMap<Vec<u8>, PathBuf>,
}

impl<'a> Loader<'a> {
    pub fn new(view: &'a dyn View, library_path: &'a [PathBuf], architecture: Architecture) -> Self {
        let mut bytes = Vec::new();
        let cache = view.file(Path::new(ld_cache::PATH)).and_then(|found| {
            Reader::open(&found.source).and_then(|mut reader| reader.read_to_end(&mut bytes)).ok()?;
            ld_cache::parse(&bytes, architecture)
        });
        Loader { view, architecture, library_path, cache: cache.unwrap_or_default() }
    }

    /// Finds all libraries below `program`, which has its file at `real_path`.
    pub fn libraries(
        &self,
        program: &Path,
        real_path: &Path,
        dynamic: Dynamic,
    ) -> Result<Vec<PathBuf>, Error> {
        let mut found = Vec::new();
        let mut known: HashSet<Vec<u8>> = HashSet::new();
        // Each with the search paths that those above it hand down.
        let mut open = VecDeque::from([(program.to_owned(), real_path.to_owned(), dynamic, Vec::new())]);
        while let Some((path, real_path, dynamic, inherited)) = open.pop_front() {
            let origin = real_path.parent().unwrap_or(Path::new("/"));
            let mut handed_down: Vec<PathBuf> = Vec::new();
            if let (Some(rpath), None) = (&dynamic.rpath, &dynamic.runpath) {
                handed_down = self.directories(rpath, origin);
            }
            handed_down.extend(inherited);
            let mut search = if dynamic.runpath.is_some() { Vec::new() } else { handed_down.clone() };
            search.extend_from_slice(self.library_path);
            search.extend(dynamic.runpath.iter().flat_map(|runpath| self.directories(runpath, origin)));
            for name in dynamic.needed {
                if known.contains(&name) {
                    continue;
                }
                let library = self.library(&name, &search).ok_or_else(|| {
                    Error::MissingLibrary(path.clone(), String::from_utf8_lossy(&name).into_owned())
                })?;
                known.insert(name);
                known.extend(library.2.soname.clone());
                found.push(library.0.clone());
                open.push_back((library.0, library.1, library.2, handed_down.clone()));
            }
        }
        Ok(found)
    }

    /// The library `name`: the path where it is found, its file, and what it needs itself.
    fn library(&self, name: &[u8], search: &[PathBuf]) -> Option<(PathBuf, PathBuf, Dynamic)> {
        let name_path = Path::new(OsStr::from_bytes(name));
        if name.contains(&b'/') {
            return self.usable(name_path.to_owned());
        }
        let defaults = ld_cache::default_directories(self.architecture);
        search
            .iter()
            .map(|directory| directory.join(name_path))
            .chain(self.cache.get(name).cloned())
            .chain(defaults.iter().map(|directory| directory.join(name_path)))
            .find_map(|candidate| self.usable(candidate))
    }

    /// A library at `path`; like the loader, passes over those for other machines.
    fn usable(&self, path: PathBuf) -> Option<(PathBuf, PathBuf, Dynamic)> {
        let found = self.view.file(&path)?;
        let dynamic = elf::dynamic(&found.source, self.architecture).ok()?;
        Some((path, found.real_path, dynamic))
    }

    /// The directories of a run path.
    fn directories(&self, run_path: &[u8], origin: &Path) -> Vec<PathBuf> {
        let lib = if self.architecture == Architecture::X86_64 { "lib/x86_64-linux-gnu" } else { "lib" };
        let expand = |part: &[u8]| {
            let text = String::from_utf8_lossy(part);
            let mut text = text.into_owned();
            for (variable, value) in [("ORIGIN", origin.to_string_lossy().as_ref()), ("LIB", lib)] {
                text =
                    text.replace(&format!("${{{variable}}}"), value).replace(&format!("${variable}"), value);
            }
            PathBuf::from(text)
        };
        run_path.split(|&byte| byte == b':').filter(|part| !part.is_empty()).map(expand).collect()
    }
}
