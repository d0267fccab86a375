//! The host's package database, read directly: the installed packages, their dependencies and their files.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where Debian keeps the database.
pub const ADMIN_DIRECTORY: &str = "/var/lib/dpkg";

/// An installed package.
#[derive(Debug, Default)]
pub struct Package {
    pub name: String,
    pub architecture: String,
    pub essential: bool,
    /// Groups of packages of which one each is needed, `Pre-Depends` included.
    depends: Vec<Vec<String>>,
}

/// All installed packages.
#[derive(Debug)]
pub struct Database {
    directory: PathBuf,
    packages: Vec<Package>,
    /// Packages by their own names and those they provide, real names first.
    by_name: HashMap<String, Vec<usize>>,
    /// By path: where the file of that path went, and the package whose own file stays there.
    diversions: HashMap<PathBuf, (PathBuf, String)>,
}

impl Database {
    /// Reads the database of packages for `architecture`, in Debian's naming.
    pub fn open(directory: &Path, architecture: &str) -> io::Result<Self> {
        let status = fs::read_to_string(directory.join("status"))?;
        let mut database = Database {
            directory: directory.to_owned(),
            packages: Vec::new(),
            by_name: HashMap::new(),
            diversions: HashMap::new(),
        };
        let mut provided = Vec::new();
        for paragraph in status.split("\n\n") {
            if let Some((package, provides)) = parse(paragraph, architecture) {
                let index = database.packages.len();
                database.by_name.entry(package.name.clone()).or_default().push(index);
                provided.extend(provides.into_iter().map(|name| (name, index)));
                database.packages.push(package);
            }
        }
        for (name, index) in provided {
            database.by_name.entry(name).or_default().push(index);
        }
        let diversions = fs::read(directory.join("diversions")).unwrap_or_default();
        let lines: Vec<&[u8]> = diversions.split(|&byte| byte == b'\n').collect();
        for record in lines.chunks_exact(3) {
            let package = String::from_utf8_lossy(record[2]).into_owned();
            database.diversions.insert(path_of(record[0]), (path_of(record[1]), package));
        }
        Ok(database)
    }

    /// The installed package of this name, or one that provides it.
    pub fn package(&self, name: &str) -> Option<usize> {
        self.by_name.get(name)?.first().copied()
    }

    pub fn name(&self, package: usize) -> &str {
        &self.packages[package].name
    }

    /// The packages that every Debian system has.
    pub fn essential(&self) -> impl Iterator<Item = usize> {
        (0..self.packages.len()).filter(|&index| self.packages[index].essential)
    }

    /// `packages` and all that they depend on.
    pub fn closure(&self, packages: impl IntoIterator<Item = usize>) -> BTreeSet<usize> {
        let mut closure = BTreeSet::new();
        let mut open: Vec<usize> = packages.into_iter().collect();
        while let Some(index) = open.pop() {
            if closure.insert(index) {
                let groups = &self.packages[index].depends;
                open.extend(
                    groups.iter().filter_map(|group| group.iter().find_map(|name| self.package(name))),
                );
            }
        }
        closure
    }

    /// The paths of a package's files and directories, in dpkg's order, directories before what is in them.
    pub fn files(&self, package: usize) -> io::Result<Vec<PathBuf>> {
        let owner = &self.packages[package].name;
        let list = fs::read(self.list_file(package))?;
        let paths = list.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"/") && *line != b"/.");
        Ok(paths
            .map(path_of)
            .map(|path| match self.diversions.get(&path) {
                Some((diverted, by)) if by != owner => diverted.clone(),
                _ => path,
            })
            .collect())
    }

    /// The package that has one of `paths`; the first path that belongs to a package decides.
    ///
    /// A system with merged `/usr` has files at other paths than its packages list: both spellings are tried.
    pub fn owner(&self, paths: &[PathBuf]) -> io::Result<Option<usize>> {
        let spellings: Vec<(usize, Vec<u8>)> = paths
            .iter()
            .enumerate()
            .flat_map(|(rank, path)| spellings(path).into_iter().map(move |spelling| (rank, spelling)))
            .map(|(rank, path)| (rank, [b"\n", path.as_os_str().as_bytes(), b"\n"].concat()))
            .collect();
        let mut best: Option<(usize, usize)> = None;
        for index in 0..self.packages.len() {
            let list = match fs::read(self.list_file(index)) {
                Ok(list) => list,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            for (rank, line) in &spellings {
                if best.is_none_or(|(known, _)| *rank < known) && memchr::memmem::find(&list, line).is_some()
                {
                    best = Some((*rank, index));
                }
            }
        }
        Ok(best.map(|(_, index)| index))
    }

    /// The fuller packages around a stripped-down one: Debian splits off what its own tools need of Perl and Python
    /// as `perl-base` and `python3-minimal`, while `perl` and `python3` are what a person means by the program.
    pub fn fuller(&self, package: usize) -> Option<usize> {
        let name = &self.packages[package].name;
        let stem = name.strip_suffix("-minimal").or_else(|| name.strip_suffix("-base"))?;
        let fuller = self.package(stem)?;
        let needs = self.packages[fuller].depends.iter().flatten().any(|needed| needed == name);
        (needs && self.packages[fuller].name == stem).then_some(fuller)
    }

    fn list_file(&self, package: usize) -> PathBuf {
        let Package { name, architecture, .. } = &self.packages[package];
        let info = self.directory.join("info");
        let qualified = info.join(format!("{name}:{architecture}.list"));
        if qualified.exists() { qualified } else { info.join(format!("{name}.list")) }
    }
}

fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// The names a file may have in a package's list: `/bin/x` for `/usr/bin/x`, and the other way round.
fn spellings(path: &Path) -> Vec<PathBuf> {
    let mut spellings = vec![path.to_owned()];
    if let Ok(rest) = path.strip_prefix("/usr") {
        spellings.push(Path::new("/").join(rest));
    } else if let Ok(rest) = path.strip_prefix("/") {
        spellings.push(Path::new("/usr").join(rest));
    }
    spellings
}

/// A package and what it provides, from its paragraph in the status file, if it is installed and for this machine.
fn parse(paragraph: &str, architecture: &str) -> Option<(Package, Vec<String>)> {
    let mut package = Package::default();
    let mut provides = Vec::new();
    let mut installed = false;
    // Continuation lines start with a blank and so have no field name; the fields read here have none.
    for (field, value) in paragraph.lines().filter_map(|line| line.split_once(": ")) {
        match field {
            "Package" => package.name = value.to_owned(),
            "Architecture" => package.architecture = value.to_owned(),
            "Status" => installed = value.split(' ').next_back() == Some("installed"),
            "Essential" => package.essential = value == "yes",
            "Depends" | "Pre-Depends" => package.depends.extend(relations(value)),
            "Provides" => provides.extend(relations(value).into_iter().flatten()),
            _ => {}
        }
    }
    let native = package.architecture == architecture || package.architecture == "all";
    (installed && native && !package.name.is_empty()).then_some((package, provides))
}

/// The package names of a dependency field; versions are satisfied where everything is installed.
fn relations(field: &str) -> Vec<Vec<String>> {
    let name = |text: &str| text.trim().split([' ', '(', ':']).next().unwrap_or("").to_owned();
    field.split(',').map(|group| group.split('|').map(name).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "\
Package: tool
Status: install ok installed
Architecture: amd64
Depends: libtool1 (>= 1.0), missing | mail-agent, perl:any
Pre-Depends: base

Package: libtool1
Status: hold ok installed
Multi-Arch: same
Architecture: amd64
Description: a library
 Package: not-a-field

Package: libtool1
Status: install ok installed
Architecture: i386

Package: mailer
Status: install ok installed
Architecture: all
Provides: mail-agent (= 1), other-agent
Depends: tool

Package: base
Essential: yes
Status: install ok installed
Architecture: amd64

Package: perl-base
Essential: yes
Status: install ok installed
Architecture: amd64

Package: perl
Status: install ok installed
Architecture: amd64
Depends: perl-base (= 5)

Package: removed
Essential: yes
Status: deinstall ok config-files
Architecture: amd64
";

    fn database() -> (tempfile::TempDir, Database) {
        let directory = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| fs::write(directory.path().join(path), text).unwrap();
        fs::create_dir(directory.path().join("info")).unwrap();
        write("status", STATUS);
        write("info/tool.list", "/.\n/bin\n/bin/tool\n/usr\n/usr/bin\n/usr/bin/helper\n");
        write("info/libtool1:amd64.list", "/.\n/usr\n/usr/lib\n/usr/lib/libtool.so.1\n");
        write("info/libtool1:i386.list", "/.\n/wrong\n");
        write("diversions", "/bin/tool\n/bin/tool.real\nmailer\n/usr/bin/helper\n/usr/bin/h2\ntool\n");
        let database = Database::open(directory.path(), "amd64").unwrap();
        (directory, database)
    }

    fn names(database: &Database, packages: impl IntoIterator<Item = usize>) -> Vec<&str> {
        packages.into_iter().map(|package| database.name(package)).collect()
    }

    #[test]
    fn closures() {
        let (_directory, database) = database();
        assert_eq!(names(&database, database.essential()), ["base", "perl-base"]);
        let tool = database.package("tool").unwrap();
        let closure = ["tool", "libtool1", "mailer", "base", "perl-base", "perl"];
        assert_eq!(names(&database, database.closure([tool])), closure);
        assert_eq!(database.package("other-agent"), database.package("mailer"));
        assert_eq!(database.package("removed"), None);
    }

    #[test]
    fn fuller_packages() {
        let (_directory, database) = database();
        let fuller = database.fuller(database.package("perl-base").unwrap());
        assert_eq!(fuller, database.package("perl"));
        assert_eq!(database.fuller(database.package("tool").unwrap()), None);
    }

    #[test]
    fn files_and_owners() {
        let (_directory, database) = database();
        let tool = database.package("tool").unwrap();
        let files = database.files(tool).unwrap();
        let expected = ["/bin", "/bin/tool.real", "/usr", "/usr/bin", "/usr/bin/helper"];
        assert_eq!(files, expected.map(PathBuf::from), "diverted by others only");
        let library = database.package("libtool1").unwrap();
        assert_eq!(database.files(library).unwrap().last().unwrap(), Path::new("/usr/lib/libtool.so.1"));

        let owner =
            |paths: &[&str]| database.owner(&paths.iter().map(PathBuf::from).collect::<Vec<_>>()).unwrap();
        assert_eq!(owner(&["/usr/bin/tool"]), Some(tool), "as a system with merged /usr spells it");
        assert_eq!(owner(&["/lib/libtool.so.1"]), Some(library));
        assert_eq!(owner(&["/nobody's", "/usr/lib/libtool.so.1", "/bin/tool"]), Some(library));
        assert_eq!(owner(&["/usr/bin/too", "/wrong"]), None);
    }
}
