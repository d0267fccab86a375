//! Roots from Debian's archive, fetched by the host's apt. Where the archive can't be reached this says so and how
//! many tests were left out.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Guest, cache, make, request};
use heddle_image::{Cache, Error, Image, ImageRequest, Progress};

/// An image from packages, or nothing with a notice if they can't be fetched.
///
/// Packages are kept in the build directory, so that the archive is asked for them once and not on every test.
fn fetch(cache: &Cache, request: &ImageRequest) -> Option<Image> {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
    let archives = cache.directory().join("packages/archives");
    copy_packages(&kept, &archives);
    let result = make(cache, request);
    copy_packages(&archives, &kept);
    match result {
        Err(Error::Fetch(text)) => {
            println!("skipped: 1 (the archive can't be reached: {text})");
            None
        }
        result => Some(result.unwrap()),
    }
}

fn copy_packages(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).into_iter().flatten().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().extension().is_some_and(|extension| extension == "deb") && !target.exists() {
            // Under another name first: tests at the same time must not see half a package.
            let partial = tempfile::NamedTempFile::new_in(to).unwrap();
            fs::copy(entry.path(), partial.path()).unwrap();
            partial.persist(target).unwrap();
        }
    }
}

fn packages(names: &[&str], program: &str) -> ImageRequest {
    let mut request = request(program);
    request.debs = names.iter().map(|name| (*name).to_owned()).collect();
    request
}

#[test]
fn packages_on_the_base_of_the_archive() {
    let (_directory, cache) = cache();
    let request = packages(&["gawk", "busybox", "sgml-base"], "awk");
    let Some(image) = fetch(&cache, &request) else { return };
    assert_eq!(image.program, Path::new("/usr/bin/awk"));
    let guest = Guest::open(&image);
    assert_eq!(guest.target("/bin").unwrap(), Path::new("usr/bin"));
    assert_eq!(guest.target("/etc/alternatives/awk").unwrap(), Path::new("/usr/bin/gawk"));
    assert_eq!(guest.target("/etc/alternatives/which").unwrap(), Path::new("/usr/bin/which.debianutils"));
    let passwd = String::from_utf8(guest.read("/etc/passwd").unwrap()).unwrap();
    assert!(passwd.starts_with("root:x:0:0:root:/root:/bin/bash\n"), "{passwd}");
    let su = guest.find("/bin/su").unwrap();
    assert_eq!((su.mode, su.uid, su.gid), (0o104755, 0, 0));
    let expiry = guest.find("/sbin/unix_chkpwd").unwrap();
    assert_eq!((expiry.mode, expiry.gid), (0o102755, 42), "a group of its own");
    assert!(guest.find("/usr/bin/apt").is_none(), "apt is not Essential");
    let script = "awk 'BEGIN { print 6 * 7 }'; busybox echo box; ldconfig -p | grep -c libc.so.6; id -un";
    if let Some(text) = guest.run(&["/bin/sh", "-ec", script]) {
        assert_eq!(text, "42\nbox\n1\nroot\n");
    }

    let mut steps = Vec::new();
    let again = cache.image(&request, &mut |step| steps.push(step)).unwrap();
    assert!(steps.is_empty(), "{steps:?}");
    assert_eq!(again.path, image.path);

    // Another program of the same packages is found in the same image, and nothing is fetched again.
    let other =
        cache.image(&packages(&["gawk", "busybox", "sgml-base"], "busybox"), &mut |step| steps.push(step));
    assert_eq!(other.unwrap().path, image.path);
    assert!(!steps.iter().any(|step| matches!(step, Progress::Fetching { .. })), "{steps:?}");

    // Packages are not lost to a program that isn't in them.
    let error = make(&cache, &packages(&["gawk", "busybox", "sgml-base"], "mawk")).unwrap_err();
    assert!(matches!(error, Error::ProgramNotFound(_)));
    drop((image, again));
    assert_eq!(cache.clean().unwrap().in_use, 0);
    assert!(cache.images().unwrap().is_empty());
}

#[test]
fn accounts_that_packages_want() {
    let (_directory, cache) = cache();
    let mut request = packages(&["dbus-system-bus-common", "libc-bin", "base-passwd", "dash"], "dash");
    request.bare = true;
    let Some(image) = fetch(&cache, &request) else { return };
    let guest = Guest::open(&image);
    let passwd = String::from_utf8(guest.read("/etc/passwd").unwrap()).unwrap();
    let account = passwd.lines().find(|line| line.starts_with("messagebus:")).expect("an account for D-Bus");
    let id: u32 = account.split(':').nth(2).unwrap().parse().unwrap();
    assert!((100..1000).contains(&id), "{account}");
    assert!(guest.find("/usr/bin/ls").is_none(), "the base was not asked for");
}

/// Set for the part of a test that runs without a network: the directory of the cache.
const OFFLINE: &str = "HEDDLE_TEST_OFFLINE";

/// Files that were made before are used when there is no network; others can't be made.
#[test]
fn without_a_network() {
    if let Some(directory) = std::env::var_os(OFFLINE) {
        let cache = Cache::at(directory.into());
        let image = make(&cache, &hello()).unwrap();
        assert!(
            matches!(&image.warnings[..], [text] if text.contains("out of date")),
            "{:?}",
            image.warnings
        );
        let mut other = packages(&["sl"], "sl");
        other.bare = true;
        let error = make(&cache, &other).unwrap_err();
        assert!(matches!(error, Error::Fetch(_)), "{error}");
        assert_eq!(error.exit_status(), 125);
        return;
    }
    let (_directory, cache) = cache();
    let Some(image) = fetch(&cache, &hello()) else { return };
    assert!(image.warnings.is_empty(), "{:?}", image.warnings);
    // New lists, and the packages gone.
    fs::write(cache.directory().join("packages/lists/new"), "").unwrap();
    for entry in fs::read_dir(cache.directory().join("packages/archives")).unwrap().flatten() {
        if entry.path().is_file() {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    // Without this apt tries for long.
    let configuration = cache.directory().join("apt.conf");
    fs::write(&configuration, "Acquire::Retries \"0\";\n").unwrap();
    let output = Command::new("unshare")
        .env("APT_CONFIG", &configuration)
        .arg("--net")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "without_a_network"])
        .env(OFFLINE, cache.directory())
        .output();
    let text =
        output.map(|output| String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned());
    match text {
        Ok(text) if !text.contains("unshare failed") => assert!(text.contains("1 passed"), "{text}"),
        other => println!("skipped: 1 (no right to go without a network: {other:?})"),
    }
}

fn hello() -> ImageRequest {
    let mut request = packages(&["hello"], "hello");
    request.bare = true;
    request
}

#[test]
fn packages_that_do_not_exist() {
    let (_directory, cache) = cache();
    for name in ["no-such-package", "hello=0.0.1", "-o", "hello hello", "a'b", ""] {
        match make(&cache, &packages(&[name], "hello")) {
            Err(Error::UnknownPackage(text)) => assert!(!text.is_empty()),
            Err(Error::Fetch(text)) => println!("skipped: 1 (the archive can't be reached: {text})"),
            other => panic!("{name}: {other:?}"),
        }
    }
}
