//! Makes an image as an ordinary user. Run by root, the test starts itself again as `nobody`.

mod common;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use common::{Guest, cache, make, request};

const NOBODY: u32 = 65534;

#[test]
fn an_ordinary_user_gets_the_same() {
    let user = std::fs::metadata("/proc/self").unwrap().uid();
    if user != 0 {
        return as_ordinary_user();
    }
    let program = std::env::current_exe().unwrap();
    let directory = tempfile::tempdir().unwrap();
    // Its own copy, because build directories are often closed to others.
    let copy = directory.path().join("test");
    std::fs::copy(&program, &copy).unwrap();
    std::os::unix::fs::chown(directory.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&copy)
        .args(["--exact", "an_ordinary_user_gets_the_same"])
        .env("TMPDIR", directory.path())
        .current_dir(directory.path())
        .output();
    match output {
        Ok(output) => {
            let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
        }
        Err(error) => println!("skipped: 1 (setpriv: {error})"),
    }
}

fn as_ordinary_user() {
    let (_directory, cache) = cache();
    let image = make(&cache, &request("bash")).unwrap();
    let guest = Guest::open(&image);
    // dpkg's lists name no owners; the files themselves do, and building as a user must not change them.
    for path in ["/bin/bash", "/etc/passwd", "/usr", "/tmp", "/root", "/root/.bashrc"] {
        assert_eq!(guest.find(path).unwrap().uid, 0, "{path}");
    }
    assert_eq!(guest.find("/bin/su").unwrap().mode & 0o7777, 0o4755);
    let shadow = String::from_utf8(guest.read("/etc/shadow").unwrap()).unwrap();
    assert!(
        shadow.lines().all(|line| line.ends_with(":*::0:99999:7:::")),
        "the host's passwords are not there"
    );

    let mut archive = request("dash");
    archive.debs = vec!["dash".to_owned()];
    archive.bare = true;
    match make(&cache, &archive) {
        Ok(image) => assert_eq!(image.program, Path::new("/usr/bin/dash")),
        Err(heddle_image::Error::Fetch(text)) => {
            println!("skipped: 1 (the archive can't be reached: {text})")
        }
        Err(error) => panic!("{error}"),
    }
}
