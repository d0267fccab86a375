//! Looking into images, and giving hosts something to look at.
#![allow(dead_code, reason = "each test uses a part")]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use heddle_erofs::{FileType, Inode};
use heddle_image::{Cache, Error, Image, ImageRequest};
use tempfile::TempDir;

/// A cache of a test's own.
pub fn cache() -> (TempDir, Cache) {
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::at(directory.path().join("heddle"));
    (directory, cache)
}

/// A request as from a shell with an ordinary search path.
pub fn request(program: impl AsRef<OsStr>) -> ImageRequest {
    let mut request = ImageRequest::new(program.as_ref());
    request.search_path = "/usr/local/bin:/usr/bin:/bin".into();
    request
}

/// The image that a request gives.
pub fn make(cache: &Cache, request: &ImageRequest) -> Result<Image, Error> {
    cache.image(request, &mut |_| {})
}

/// An image as the guest's kernel sees it.
pub struct Guest {
    bytes: Vec<u8>,
}

impl Guest {
    pub fn open(image: &Image) -> Self {
        let guest = Guest { bytes: image.read().unwrap() };
        guest.image();
        guest
    }

    fn image(&self) -> heddle_erofs::Image<'_> {
        heddle_erofs::Image::open(&self.bytes).unwrap()
    }

    /// The file that `path` leads to.
    pub fn find(&self, path: impl AsRef<Path>) -> Option<Inode> {
        self.walk(path.as_ref(), true)
    }

    /// The file at `path` itself.
    pub fn find_link(&self, path: impl AsRef<Path>) -> Option<Inode> {
        self.walk(path.as_ref(), false)
    }

    pub fn read(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let inode = self.find(path).filter(|inode| inode.file_type == FileType::Regular)?;
        let mut contents = vec![0; inode.size as usize];
        assert_eq!(self.image().read_at(&inode, 0, &mut contents), contents.len());
        Some(contents)
    }

    pub fn target(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        let inode = self.find_link(path)?;
        self.image().symlink(&inode).ok().map(|target| PathBuf::from(OsStr::from_bytes(target)))
    }

    /// The names in a directory.
    pub fn names(&self, path: impl AsRef<Path>) -> Vec<Vec<u8>> {
        let image = self.image();
        let directory = self.find(path).unwrap();
        let entries = image.entries(&directory, 0).unwrap().map(Result::unwrap);
        entries.map(|entry| entry.name.to_vec()).filter(|name| name != b"." && name != b"..").collect()
    }

    fn walk(&self, path: &Path, follow: bool) -> Option<Inode> {
        let image = self.image();
        let mut trail = vec![image.inode(image.root()).unwrap()];
        let mut todo: Vec<PathBuf> = vec![path.to_owned()];
        for _ in 0..1000 {
            let Some(rest) = todo.pop() else {
                return trail.last().copied();
            };
            let mut components = rest.components();
            let Some(first) = components.next() else { continue };
            let behind = components.as_path().to_owned();
            if !behind.as_os_str().is_empty() {
                todo.push(behind);
            }
            match first {
                Component::RootDir => trail.truncate(1),
                Component::ParentDir if trail.len() > 1 => drop(trail.pop()),
                Component::Normal(name) => {
                    let entry = image.lookup(trail.last()?, name.as_bytes()).unwrap()?;
                    let inode = image.inode(entry.nid).unwrap();
                    if inode.file_type == FileType::Symlink && (follow || !todo.is_empty()) {
                        todo.push(OsStr::from_bytes(image.symlink(&inode).unwrap()).into());
                    } else {
                        trail.push(inode);
                    }
                }
                _ => {}
            }
        }
        panic!("{}: too many symbolic links", path.display());
    }

    /// Copies files and links into a directory of the host: enough to change root into.
    pub fn extract(&self, to: &Path) {
        self.extract_below(&self.image().inode(self.image().root()).unwrap(), to);
    }

    fn extract_below(&self, directory: &Inode, to: &Path) {
        let image = self.image();
        for entry in image.entries(directory, 0).unwrap().map(Result::unwrap) {
            let path = to.join(OsStr::from_bytes(entry.name));
            let inode = image.inode(entry.nid).unwrap();
            match entry.file_type {
                FileType::Directory if entry.name == b"." || entry.name == b".." => {}
                FileType::Directory => {
                    fs::create_dir(&path).unwrap();
                    self.extract_below(&inode, &path);
                }
                FileType::Regular => {
                    let mut contents = vec![0; inode.size as usize];
                    assert_eq!(image.read_at(&inode, 0, &mut contents), contents.len());
                    fs::write(&path, contents).unwrap();
                    fs::set_permissions(&path, fs::Permissions::from_mode((inode.mode & 0o777).into()))
                        .unwrap();
                }
                FileType::Symlink => {
                    let target = OsStr::from_bytes(image.symlink(&inode).unwrap());
                    std::os::unix::fs::symlink(target, &path).unwrap();
                }
                _ => {}
            }
        }
    }

    /// The output of a program that runs with the image as its root, or `None` with a notice where tests may not change
    /// roots.
    pub fn run(&self, arguments: &[&str]) -> Option<String> {
        let directory = tempfile::tempdir().unwrap();
        self.extract(directory.path());
        if directory.path().join("dev").is_dir() {
            // The kernel's to provide; an empty file will do here.
            fs::write(directory.path().join("dev/null"), "").unwrap();
        }
        let mut command = Command::new("chroot");
        command
            .arg(directory.path())
            .args(arguments)
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LC_ALL", "C");
        match command.output() {
            Ok(output) if output.status.success() => Some(String::from_utf8(output.stdout).unwrap()),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(text.contains("cannot change root directory"), "{arguments:?}: {text}");
                println!("skipped: 1 (only root may change roots)");
                None
            }
            Err(error) => {
                println!("skipped: 1 (chroot: {error})");
                None
            }
        }
    }
}

/// Writes an executable file.
pub fn executable(path: &Path, contents: impl AsRef<[u8]>) {
    fs::write(path, contents).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Compiles C with the linker's driver that Rust needs anyway.
pub fn compile(directory: &Path, source: &str, arguments: &[&str]) {
    fs::write(directory.join("source.c"), source).unwrap();
    let output = Command::new("cc").current_dir(directory).arg("source.c").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
