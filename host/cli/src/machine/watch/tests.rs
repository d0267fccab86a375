//! Tests of what is told of a folder.

use std::fs;
use std::io::Read;
use std::path::PathBuf;

use heddle_abi::control::{HEADER_BYTES, parse_header, parse_word};

use super::*;

/// A folder that is watched by nobody but the test.
struct Watched {
    folder: PathBuf,
    watch: Watch,
    messages: UnixStream,
}

/// A message: its kind and its payload.
type Message = (u32, Vec<u8>);

impl Watched {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("heddle-watch-{}-{name}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let queue = inotify::init(CreateFlags::CLOEXEC).unwrap();
        let watch = Watch::new(queue, vec![folder.clone()], far);
        Self { folder, watch, messages: near }
    }

    /// Tells of all that has happened, and returns what was told.
    fn told(&mut self) -> Vec<Message> {
        let mut told = self.messages();
        loop {
            let changes = self.watch.wait(Some(Duration::ZERO)).unwrap();
            if changes.is_empty() {
                return told;
            }
            assert!(self.watch.tell(&changes));
            told.extend(self.messages());
        }
    }

    fn messages(&mut self) -> Vec<Message> {
        let mut bytes = Vec::new();
        // Ends where there is nothing more yet.
        let _ = self.messages.read_to_end(&mut bytes);
        let (mut rest, mut messages) = (&bytes[..], Vec::new());
        while let Some((header, behind)) = rest.split_first_chunk::<HEADER_BYTES>() {
            let (length, kind) = parse_header(*header).unwrap();
            messages.push((kind, behind[..length].to_vec()));
            rest = &behind[length..];
        }
        messages
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn has(messages: &[Message], kind: u32) -> bool {
    messages.iter().any(|(of, payload)| *of == kind && parse_word(payload) == Some(0))
}

fn has_change(messages: &[Message], directory: &str, name: &str) -> bool {
    messages.iter().any(|(of, payload)| {
        *of == kind::SHARE_CHANGED
            && ShareChanged::parse(payload).is_some_and(|changed| {
                changed.directory == directory.as_bytes() && changed.name == name.as_bytes()
            })
    })
}

#[test]
fn a_folder_is_watched_again_after_a_loss() {
    let mut watched = Watched::new("loss");
    fs::create_dir(watched.folder.join("d")).unwrap();
    fs::write(watched.folder.join("a"), "").unwrap();
    assert!(watched.watch.begin(0));
    assert!(has(&watched.told(), kind::SHARE_WATCHED));
    let queued = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    for _ in 0..queued.trim().parse::<usize>().unwrap() / 4 + 100 {
        fs::rename(watched.folder.join("a"), watched.folder.join("b")).unwrap();
        fs::rename(watched.folder.join("b"), watched.folder.join("a")).unwrap();
    }
    let told = watched.told();
    assert!(has(&told, kind::SHARE_UNWATCHED) && !has(&told, kind::SHARE_WATCHED));
    assert!(watched.watch.again_at > Instant::now() - PAUSE_MIN && watched.watch.lost == [0]);
    // Nothing is told meanwhile, and all is asked about; then it is as before.
    fs::write(watched.folder.join("d/unseen"), "").unwrap();
    assert!(watched.told().is_empty());
    assert!(watched.watch.begin_again());
    fs::write(watched.folder.join("d/seen"), "").unwrap();
    let told = watched.told();
    assert!(has(&told, kind::SHARE_WATCHED) && has_change(&told, "d", "seen"));
    assert!(watched.watch.lost.is_empty() && watched.watch.pause > PAUSE_MIN, "the next one comes later");
}

#[test]
fn all_is_asked_about_once_a_directory_has_moved() {
    let mut watched = Watched::new("moved");
    fs::create_dir_all(watched.folder.join("a/b")).unwrap();
    assert!(watched.watch.begin(0));
    watched.told();
    fs::write(watched.folder.join("a/b/file"), "").unwrap();
    let told = watched.told();
    assert!(has_change(&told, "a/b", "file") && !has(&told, kind::SHARE_WATCHED));
    fs::rename(watched.folder.join("a"), watched.folder.join("c")).unwrap();
    let told = watched.told();
    assert!(has(&told, kind::SHARE_WATCHED) && has_change(&told, "", "a") && has_change(&told, "", "c"));
    fs::write(watched.folder.join("c/b/other"), "").unwrap();
    assert!(has_change(&watched.told(), "c/b", "other"));
}
