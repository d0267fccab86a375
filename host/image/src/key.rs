//! Names for images and requests: digests of what decides about them.

use std::collections::HashMap;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use heddle_erofs::write::{Content, Node, NodeId, Source, Tree};
use sha2::{Digest, Sha256};

use crate::ImageRequest;
use crate::stamp::Stamp;

/// Changes whenever the same tree would give another image.
const FORMAT: u64 = 2;

/// A digest that is being computed; every part is preceded by its length, so that no two sequences of parts run into
/// one.
struct Key(Sha256);

impl Key {
    fn new(purpose: &str) -> Self {
        let mut key = Key(Sha256::new());
        key.bytes(purpose.as_bytes());
        key.number(FORMAT);
        key
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    fn number(&mut self, number: u64) {
        self.0.update(number.to_le_bytes());
    }

    fn finish(self) -> String {
        let mut text = String::new();
        for byte in &self.0.finalize()[..20] {
            let _ = write!(text, "{byte:02x}");
        }
        text
    }
}

/// The name of a request's memo.
///
/// The tool itself is part of it: another build of it may take other files for the same request.
pub fn of_request(request: &ImageRequest) -> String {
    let mut key = Key::new("request");
    if let Ok(tool) = std::env::current_exe() {
        key.bytes(&Stamp::of(&tool).encode());
    }
    key.bytes(request.program.as_bytes());
    key.number(u64::from(request.bare));
    key.number(request.add.len() as u64);
    for path in request.add.iter().flat_map(|(from, to)| [from, to]) {
        key.bytes(path.as_os_str().as_bytes());
    }
    key.number(request.library_path.len() as u64);
    for path in &request.library_path {
        key.bytes(path.as_os_str().as_bytes());
    }
    key.number(request.debs.len() as u64);
    for name in &request.debs {
        key.bytes(name.as_bytes());
    }
    let root = request.root.clone().unwrap_or_default();
    for text in [request.search_path.as_os_str(), root.as_os_str(), request.directory.as_os_str()] {
        key.bytes(text.as_bytes());
    }
    key.bytes(request.architecture.debian().as_bytes());
    key.finish()
}

/// The name of the image of `tree`: files of the host count as the same when their stamps are, parts of archives when
/// the `archives` are.
pub fn of_tree(tree: &Tree, archives: &[PathBuf]) -> String {
    let mut key = Key::new("image");
    key.number(archives.len() as u64);
    for archive in archives {
        key.bytes(archive.file_name().unwrap_or_default().as_bytes());
        key.number(std::fs::metadata(archive).map_or(0, |metadata| metadata.len()));
    }
    node(&mut key, tree, Tree::ROOT, &mut HashMap::new());
    key.finish()
}

/// Adds a file and all below it; `seen` numbers files in the order of the walk, because two names of one file make
/// another image than two files.
fn node(key: &mut Key, tree: &Tree, id: NodeId, seen: &mut HashMap<NodeId, u64>) {
    let next = seen.len() as u64;
    key.number(*seen.entry(id).or_insert(next));
    let attributes = tree.attributes(id);
    for number in [attributes.permissions.into(), attributes.uid.into(), attributes.gid.into()] {
        key.number(number);
    }
    key.number(attributes.mtime.seconds);
    key.number(attributes.mtime.nanoseconds.into());
    match tree.node(id) {
        Node::Directory(children) => {
            key.bytes(b"directory");
            key.number(children.len() as u64);
            for (name, &child) in children {
                key.bytes(name);
                node(key, tree, child, seen);
            }
        }
        Node::Other(content) => other(key, content),
    }
}

fn other(key: &mut Key, content: &Content) {
    match content {
        Content::File(source) => {
            key.bytes(b"file");
            match source {
                Source::Bytes(bytes) => key.bytes(bytes),
                Source::Path { path, .. } => {
                    for number in Stamp::of(path).identity().into_iter().flatten() {
                        key.bytes(&number.to_le_bytes());
                    }
                }
                Source::Part { offset, size, .. } => {
                    key.number(*offset);
                    key.number(*size);
                }
            }
        }
        Content::Symlink(target) => {
            key.bytes(b"symlink");
            key.bytes(target);
        }
        Content::CharacterDevice(device) | Content::BlockDevice(device) => {
            key.bytes(if matches!(content, Content::CharacterDevice(_)) { b"character" } else { b"block" });
            key.number((*device).into());
        }
        Content::Fifo => key.bytes(b"fifo"),
        Content::Socket => key.bytes(b"socket"),
    }
}
