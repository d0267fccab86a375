//! The cache under one user, several, and cleaning.

mod common;

use std::fs::{self, FileTimes};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

use common::{Guest, cache, executable, make, request};
use heddle_abi::boot::IMAGE_OFFSET;
use heddle_image::{Cache, Image, ImageRequest, Progress};

fn small(place: &Path) -> ImageRequest {
    let program = fs::canonicalize(place).unwrap().join("program");
    if !program.exists() {
        executable(&program, "#!/bin/dash\n");
    }
    let mut request = request(program);
    request.bare = true;
    request
}

/// Whether an image's file is there and whole.
fn check(image: &Image) {
    let file = fs::File::open(&image.path).unwrap();
    assert_eq!(file.metadata().unwrap().ino(), image.file().metadata().unwrap().ino());
    let bytes = image.read().unwrap();
    let whole = heddle_erofs::Image::open(&bytes).unwrap();
    assert_eq!(image.whole_length(), whole.bytes().len() as u64);
}

/// The file that no other image shares.
fn own_file(image: &Image) -> &Path {
    image.layer.as_ref().map_or(&image.path, |layer| &layer.path)
}

#[test]
fn the_backing_file() {
    let (directory, cache) = cache();
    let image = make(&cache, &small(directory.path())).unwrap();
    check(&image);
    assert_eq!(image.offset, IMAGE_OFFSET);
    let metadata = image.file().metadata().unwrap();
    assert!(metadata.len() >= image.offset + image.length + (64 << 30), "a guest's memory fits");
    assert!(metadata.blocks() * 512 <= image.length + (1 << 20), "and takes no space");
    assert_eq!(metadata.mode() & 0o077, 0, "other users have no access");
    let images = cache.images().unwrap();
    assert_eq!(images.len(), 1);
    assert_eq!((images[0].path.as_path(), images[0].in_use), (image.path.as_path(), true));
    assert!(cache.size_bytes() >= images[0].size_bytes);
}

#[test]
fn a_repeated_request_makes_nothing() {
    let (directory, cache) = cache();
    let request = small(directory.path());
    let first = make(&cache, &request).unwrap();
    let mut steps = Vec::new();
    let again = cache.image(&request, &mut |step| steps.push(step)).unwrap();
    assert!(steps.is_empty(), "{steps:?}");
    assert_eq!((again.path, again.program, again.length), (first.path, first.program, first.length));
}

#[test]
fn images_that_nobody_used_go_first() {
    let (directory, cache) = cache();
    let make_of = |name: &str| {
        let place = directory.path().join(name);
        fs::create_dir(&place).unwrap();
        make(&cache, &small(&place)).unwrap().path
    };
    let [old, used, new] = ["old", "used", "new"].map(make_of);
    let hours_ago = |path: &Path, hours: u64| {
        let time = SystemTime::now() - Duration::from_secs(3600 * hours);
        fs::File::open(path).unwrap().set_times(FileTimes::new().set_accessed(time)).unwrap();
    };
    hours_ago(&old, 50);
    hours_ago(&used, 40);
    hours_ago(&new, 2);
    // A use counts.
    let image = make(&cache, &small(&directory.path().join("used"))).unwrap();
    assert_eq!(image.path, used);
    let paths = || cache.images().unwrap().into_iter().map(|image| image.path).collect::<Vec<_>>();
    assert!(cache.evict(u64::MAX, Duration::from_secs(3600 * 48)).unwrap().freed_bytes > 0);
    assert!(!paths().contains(&old) && paths().len() == 2);
    let one = cache.images().unwrap()[0].size_bytes;
    cache.evict(one, Duration::MAX).unwrap();
    assert_eq!(paths(), std::slice::from_ref(&used), "the least recently used goes first");
    assert_eq!(cache.evict(0, Duration::MAX).unwrap().in_use, 1, "an image in use stays");
    drop(image);
    cache.evict(0, Duration::MAX).unwrap();
    assert!(paths().is_empty());
}

#[test]
fn every_input_decides() {
    let (directory, cache) = cache();
    let place = fs::canonicalize(directory.path()).unwrap();
    let added = place.join("added");
    fs::create_dir(&added).unwrap();
    let mut request = small(&place);
    request.add = vec![(added.clone(), "/added".into())];
    let mut path = own_file(&make(&cache, &request).unwrap()).to_owned();
    let mut changed = |what: &str| {
        let now = make(&cache, &request).unwrap();
        assert_ne!(own_file(&now), path, "{what}");
        check(&now);
        own_file(&now).clone_into(&mut path);
    };
    executable(&place.join("program"), "#!/bin/dash\n:\n");
    changed("the program");
    fs::write(added.join("new"), "1").unwrap();
    changed("a new file");
    fs::write(added.join("new"), "22").unwrap();
    changed("a file's contents");
    fs::remove_file(added.join("new")).unwrap();
    changed("a file that is gone");
}

#[test]
fn a_program_that_comes_before_another() {
    let (directory, cache) = cache();
    let place = fs::canonicalize(directory.path()).unwrap();
    for name in ["first", "second"] {
        fs::create_dir(place.join(name)).unwrap();
    }
    let mut request = request("tool");
    request.bare = true;
    request.search_path = format!("{0}/first:{0}/second", place.display()).into();
    executable(&place.join("second/tool"), "#!/bin/dash\n");
    assert_eq!(make(&cache, &request).unwrap().program, place.join("second/tool"));
    executable(&place.join("first/tool"), "#!/bin/dash\n");
    assert_eq!(make(&cache, &request).unwrap().program, place.join("first/tool"));
}

#[test]
fn equal_roots_are_one_image() {
    let (_directory, cache) = cache();
    let mut requests = ["dash", "/bin/dash", "sh"].map(request);
    for request in &mut requests {
        request.bare = true;
    }
    let images: Vec<Image> = requests.iter().map(|request| make(&cache, request).unwrap()).collect();
    assert!(images.iter().all(|image| image.path == images[0].path), "{images:?}");
}

#[test]
fn builders_at_the_same_time() {
    let (directory, cache) = cache();
    let request = small(directory.path());
    let counts: Vec<(usize, Image)> = thread::scope(|scope| {
        let build = || {
            let mut writes = 0;
            let count = &mut |step| {
                writes += usize::from(matches!(step, Progress::Writing { done, total } if done == total))
            };
            let image = Cache::at(cache.directory().to_owned()).image(&request, count).unwrap();
            (writes, image)
        };
        let handles: Vec<_> = (0..8).map(|_| scope.spawn(build)).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    });
    assert_eq!(counts.iter().map(|(writes, _)| writes).sum::<usize>(), 1, "one of them made it");
    for (_, image) in &counts {
        check(image);
    }
}

#[test]
fn cleaning_spares_what_is_used() {
    let (directory, cache) = cache();
    let request = small(directory.path());
    assert_eq!(cache.clean().unwrap().freed_bytes, 0, "there is nothing yet");
    let image = make(&cache, &request).unwrap();
    assert_eq!(cache.clean().unwrap().in_use, 1);
    check(&image);

    // A child that has inherited the file uses the image too, after this process let go of it.
    let inherited = Stdio::from(image.file().try_clone().unwrap());
    let mut child = Command::new("cat").stdin(Stdio::piped()).stderr(inherited).spawn().unwrap();
    let path = image.path.clone();
    drop(image);
    assert_eq!(cache.clean().unwrap().in_use, 1);
    assert!(path.exists());
    drop(child.stdin.take());
    child.wait().unwrap();

    let cleaned = cache.clean().unwrap();
    assert_eq!(cleaned.in_use, 0);
    assert!(cleaned.freed_bytes > 0 && !path.exists());
    assert!(cache.images().unwrap().is_empty());
    check(&make(&cache, &request).unwrap());
}

#[test]
fn leftovers_are_cleaned_away() {
    let (directory, cache) = cache();
    let request = small(directory.path());
    drop(make(&cache, &request).unwrap());
    let leftover = cache.directory().join("images/tmp-crashed");
    fs::write(&leftover, [1; 10_000]).unwrap();
    assert_eq!(cache.images().unwrap().len(), 1, "a leftover is no image");
    cache.clean().unwrap();
    assert!(!leftover.exists());
    // They go too when an image is made, but for what another process is writing.
    fs::write(&leftover, [1; 10_000]).unwrap();
    let written = cache.directory().join("images/tmp-written");
    let file = fs::File::create(&written).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let old = SystemTime::now() - Duration::from_secs(3 * 3600);
    let [memo, half, lock] =
        ["memos/0123", "memos/.tmp", "locks/0123"].map(|name| cache.directory().join(name));
    fs::create_dir_all(cache.directory().join("locks")).unwrap();
    for (path, text) in [(&memo, &b"0123\0/bin/true\0"[..]), (&half, b"01"), (&lock, b"")] {
        fs::write(path, text).unwrap();
        fs::File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
    }
    let known = fs::read_dir(cache.directory().join("memos")).unwrap().count();
    drop(make(&cache, &request).unwrap());
    assert!(!leftover.exists() && written.exists());
    assert!(!memo.exists() && !half.exists() && !lock.exists());
    assert_eq!(
        fs::read_dir(cache.directory().join("memos")).unwrap().count(),
        known - 1,
        "one is of the new image"
    );
}

#[test]
fn packages_that_nobody_used_go() {
    let (_directory, cache) = cache();
    let archives = cache.directory().join("packages/archives");
    fs::create_dir_all(&archives).unwrap();
    let lock = fs::File::create(cache.directory().join("packages/lock")).unwrap();
    let [old, new] = ["old.deb", "new.deb"].map(|name| archives.join(name));
    for path in [&old, &new] {
        fs::write(path, [1; 10_000]).unwrap();
    }
    let time = SystemTime::now() - Duration::from_secs(50 * 3600);
    fs::File::open(&old).unwrap().set_times(FileTimes::new().set_accessed(time)).unwrap();
    let age = Duration::from_secs(48 * 3600);
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    cache.evict(u64::MAX, age).unwrap();
    assert!(old.exists(), "another process works with packages");
    drop(lock);
    assert!(cache.evict(u64::MAX, age).unwrap().freed_bytes > 0);
    assert!(!old.exists() && new.exists());
}

#[test]
fn what_is_added_is_a_layer() {
    let (directory, cache) = cache();
    let place = fs::canonicalize(directory.path()).unwrap();
    let [added, replacement] = ["added", "replacement"].map(|name| place.join(name));
    fs::write(&replacement, "127.0.0.1 other\n").unwrap();
    let plain = make(&cache, &small(&place)).unwrap();
    assert!(plain.layer.is_none());
    let mut request = small(&place);
    request.add = vec![(added.clone(), "/added".into()), (replacement, "/etc/hosts".into())];
    let mut images = Vec::new();
    for text in ["first", "second, and longer"] {
        fs::write(&added, text).unwrap();
        let image = make(&cache, &request).unwrap();
        assert_eq!(image.path, plain.path, "the image of the rest is that of a run without additions");
        let layer = image.layer.as_ref().unwrap();
        assert!(layer.length < plain.length / 4, "{} of {} bytes", layer.length, plain.length);
        let guest = Guest::open(&image);
        assert_eq!(guest.read("/added").unwrap(), text.as_bytes());
        assert_eq!(guest.read("/etc/hosts").unwrap(), b"127.0.0.1 other\n");
        assert_eq!(guest.read("/bin/dash"), Guest::open(&plain).read("/bin/dash"));
        images.push(image);
    }
    assert_ne!(own_file(&images[0]), own_file(&images[1]));
    assert_eq!(cache.images().unwrap().len(), 3);

    // A layer keeps the image below it, and goes with it.
    drop(plain);
    images.truncate(1);
    assert_eq!(cache.evict(0, Duration::MAX).unwrap().in_use, 2);
    check(&images[0]);
    let lower = images[0].path.clone();
    let layer = own_file(&images[0]).to_owned();
    drop(images);
    fs::remove_file(lower).unwrap();
    cache.evict(u64::MAX, Duration::MAX).unwrap();
    assert!(!layer.exists());
    // The image that a memo names may be gone in part.
    check(&make(&cache, &request).unwrap());
    fs::remove_file(&make(&cache, &request).unwrap().path).unwrap();
    check(&make(&cache, &request).unwrap());
}

/// A layer is read at each start, so what is large becomes an image as a whole.
#[test]
fn much_that_is_added_is_no_layer() {
    let (directory, cache) = cache();
    let place = fs::canonicalize(directory.path()).unwrap();
    let added = place.join("added");
    fs::write(&added, vec![1; 17 << 20]).unwrap();
    let mut request = small(&place);
    request.add = vec![(added, "/added".into())];
    let image = make(&cache, &request).unwrap();
    assert!(image.layer.is_none());
    assert_eq!(Guest::open(&image).read("/added").unwrap().len(), 17 << 20);
}

#[test]
fn damaged_memos_are_no_harm() {
    let (directory, cache) = cache();
    let request = small(directory.path());
    let path = make(&cache, &request).unwrap().path;
    for entry in fs::read_dir(cache.directory().join("memos")).unwrap() {
        fs::write(entry.unwrap().path(), "damaged").unwrap();
    }
    assert_eq!(make(&cache, &request).unwrap().path, path);
}

/// Builders and cleaners against each other: no builder may get an image that is gone or half made.
#[test]
fn building_and_cleaning_at_the_same_time() {
    let (directory, cache) = cache();
    let request = small(directory.path());
    make(&cache, &request).unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..30 {
                    check(&make(&cache, &request).unwrap());
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..100 {
                cache.clean().unwrap();
                thread::yield_now();
            }
        });
    });
}
