//! Roots from the host: the files that come along, and the warnings about those that can't.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use common::{Guest, cache, compile, executable, make, request};
use heddle_image::Error;

#[test]
fn a_shell_on_the_base() {
    let (_directory, cache) = cache();
    let image = make(&cache, &request("bash")).unwrap();
    assert_eq!(image.program, Path::new("/usr/bin/bash"));
    let guest = Guest::open(&image);
    assert!(guest.read("/bin/bash").unwrap() == fs::read("/bin/bash").unwrap());
    assert_eq!(guest.target("/bin").unwrap(), Path::new("usr/bin"));
    for (path, mode) in [("/tmp", 0o41777), ("/proc", 0o40555), ("/root", 0o40700), ("/var/tmp", 0o41777)] {
        assert_eq!(guest.find(path).unwrap().mode, mode, "{path}");
        assert!(path == "/root" || guest.names(path).is_empty(), "{path}");
    }
    for path in ["/bin/sh", "/bin/ls", "/usr/bin/awk", "/etc/passwd", "/etc/nsswitch.conf", "/root/.bashrc"] {
        assert!(guest.find(path).is_some(), "{path}");
    }
    assert_eq!((guest.find("/bin/su").unwrap().mode, guest.find("/bin/su").unwrap().uid), (0o104755, 0));
    let script = "for i in 1 2 3; do echo $i | sed s/^/line-/; done; ldconfig -p | grep -c libc.so.6; id -un";
    if let Some(text) = guest.run(&["/bin/bash", "-c", script]) {
        assert_eq!(text, "line-1\nline-2\nline-3\n1\nroot\n");
    }
}

#[test]
fn a_package_with_what_it_depends_on() {
    let (_directory, cache) = cache();
    let mut bare = request("/usr/bin/perl");
    bare.bare = true;
    let guest = Guest::open(&make(&cache, &bare).unwrap());
    assert!(guest.find("/bin/ls").is_none(), "no base");
    // `perl-base` owns the program, but it is the library of `perl` that people count on.
    if Path::new("/var/lib/dpkg/info/perl.list").exists() {
        let program = "use File::Find; use POSIX; print POSIX::floor(6.5)";
        if let Some(text) = guest.run(&["/usr/bin/perl", "-e", program]) {
            assert_eq!(text, "6");
        }
    } else {
        println!("skipped: 1 (perl is not installed)");
    }
}

#[test]
fn alternatives_lead_somewhere() {
    let (_directory, cache) = cache();
    let mut bare = request("awk");
    bare.bare = true;
    let image = make(&cache, &bare).unwrap();
    assert_eq!(image.program, Path::new("/usr/bin/awk"));
    let guest = Guest::open(&image);
    assert_eq!(guest.target("/usr/bin/awk").unwrap(), Path::new("/etc/alternatives/awk"));
    if let Some(text) = guest.run(&["/usr/bin/awk", "BEGIN { print 6 * 7 }"]) {
        assert_eq!(text, "42\n");
    }
}

#[test]
fn scripts_bring_their_interpreters() {
    let (directory, cache) = cache();
    let place = fs::canonicalize(directory.path()).unwrap();
    let inner = place.join("inner");
    executable(&inner, "#!/usr/bin/env -S bash -e\necho inner $1\n");
    let outer = place.join("outer");
    executable(&outer, format!("#! {}  word\nnot looked at\n", inner.display()));
    symlink("outer", place.join("link")).unwrap();
    let mut bare = request(place.join("link"));
    bare.bare = true;
    let image = make(&cache, &bare).unwrap();
    let guest = Guest::open(&image);
    assert_eq!(guest.target(&image.program).unwrap(), Path::new("outer"));
    if let Some(text) = guest.run(&[image.program.to_str().unwrap()]) {
        assert_eq!(text, "inner word\n");
    }
}

#[test]
fn a_program_of_the_users_own() {
    let (directory, cache) = cache();
    let place = fs::canonicalize(directory.path()).unwrap();
    fs::create_dir(place.join("lib")).unwrap();
    compile(
        &place,
        "int two(void) { return 2; }",
        &["-shared", "-fPIC", "-o", "lib/libtwo.so", "-Wl,-soname,libtwo.so"],
    );
    let one = "int two(void); int one(void) { return two() - 1; }";
    let rpath = "-Wl,-rpath,$ORIGIN";
    compile(&place, one, &["-shared", "-fPIC", "-o", "lib/libone.so", "-Llib", "-ltwo", rpath]);
    let main = "#include <stdio.h>\nint one(void);\nint main(void) { printf(\"%d\\n\", one()); }";
    let rpath = "-Wl,-rpath,${ORIGIN}/lib,-rpath-link,lib";
    compile(&place, main, &["-o", "program", "-Llib", "-lone", rpath]);
    let mut relative = request("./program");
    relative.bare = true;
    relative.directory.clone_from(&place);
    let image = make(&cache, &relative).unwrap();
    assert_eq!(image.program, place.join("program"));
    let guest = Guest::open(&image);
    if let Some(text) = guest.run(&[image.program.to_str().unwrap()]) {
        assert_eq!(text, "1\n");
    }
    drop(image);

    fs::remove_file(place.join("lib/libtwo.so")).unwrap();
    let error = make(&cache, &relative).unwrap_err();
    assert!(
        matches!(&error, Error::MissingLibrary(by, name) if by.ends_with("libone.so") && name == "libtwo.so")
    );
    assert_eq!(error.exit_status(), 127);
}

#[test]
fn static_programs_need_nothing() {
    let (directory, cache) = cache();
    let place = fs::canonicalize(directory.path()).unwrap();
    compile(&place, "int main(void) { return 0; }", &["-static", "-o", "program"]);
    let mut bare = request(place.join("program"));
    bare.bare = true;
    let guest = Guest::open(&make(&cache, &bare).unwrap());
    assert!(guest.find("/lib/x86_64-linux-gnu/libc.so.6").is_none());
    assert!(guest.run(&[place.join("program").to_str().unwrap()]).is_none_or(|text| text.is_empty()));
}

#[test]
fn programs_that_cannot_start() {
    let (directory, cache) = cache();
    let place = fs::canonicalize(directory.path()).unwrap();
    let attempt = |name: &str| {
        let mut bare = request(place.join(name));
        bare.bare = true;
        make(&cache, &bare).unwrap_err()
    };
    compile(&place, "int main(void) { return 0; }", &["-o", "program"]);
    let mut elf = fs::read(place.join("program")).unwrap();
    elf[18] = 183;
    executable(&place.join("foreign"), &elf);
    let error = attempt("foreign");
    assert!(matches!(&error, Error::WrongArchitecture(_, machine) if machine == "64-bit AArch64"), "{error}");
    assert_eq!(error.exit_status(), 126);

    executable(&place.join("text"), "echo\n");
    executable(&place.join("empty"), "");
    executable(&place.join("nameless"), "#! \n");
    for name in ["text", "empty", "nameless"] {
        assert!(matches!(attempt(name), Error::NotElf(_)), "{name}");
    }
    executable(&place.join("cut"), &elf[..40]);
    assert!(matches!(attempt("cut"), Error::NotElf(_) | Error::WrongArchitecture(..)));

    executable(&place.join("orphan"), "#!/no/such/interpreter -x\n");
    let error = attempt("orphan");
    assert!(
        matches!(&error, Error::MissingInterpreter(_, path) if path == Path::new("/no/such/interpreter"))
    );
    assert_eq!(error.exit_status(), 127);
    executable(&place.join("lost"), "#!/usr/bin/env no-such-program\n");
    assert!(matches!(attempt("lost"), Error::MissingInterpreter(..)));
    executable(&place.join("loop"), format!("#!{}\n", place.join("loop").display()));
    assert!(matches!(attempt("loop"), Error::InterpreterLoop(_)));

    fs::write(place.join("plain"), "#!/bin/sh\n").unwrap();
    for name in ["plain", "", "/dev/null"] {
        let error = attempt(name);
        assert!(matches!(error, Error::NotExecutable(_)), "{name}: {error}");
        assert_eq!(error.exit_status(), 126);
    }
    symlink("nowhere", place.join("dangling")).unwrap();
    for name in ["missing", "dangling", "text/x"] {
        let error = attempt(name);
        assert!(matches!(error, Error::ProgramNotFound(_)), "{name}: {error}");
        assert_eq!(error.exit_status(), 127);
    }
    assert_eq!(make(&cache, &request("no-such-program")).unwrap_err().exit_status(), 127);
    assert_eq!(make(&cache, &request("")).unwrap_err().exit_status(), 127);
}

#[test]
fn files_that_are_added() {
    let (directory, cache) = cache();
    let place = fs::canonicalize(directory.path()).unwrap();
    let folder = place.join("folder");
    fs::create_dir_all(folder.join("deep/deeper")).unwrap();
    fs::write(folder.join("deep/file"), "contents").unwrap();
    fs::hard_link(folder.join("deep/file"), folder.join("hard")).unwrap();
    symlink("../hard", folder.join("deep/link")).unwrap();
    fs::write(place.join("passwd"), "replaced").unwrap();
    symlink("folder/deep", place.join("to-folder")).unwrap();
    let mut bare = request("dash");
    bare.bare = true;
    bare.add = vec![
        (folder.clone(), "/opt/new/place".into()),
        (place.join("passwd"), "/etc/passwd".into()),
        // Through a symbolic link of the root.
        (place.join("passwd"), "/bin/via-link".into()),
        (place.join("to-folder"), "/opt/linked".into()),
    ];
    let image = make(&cache, &bare).unwrap();
    let guest = Guest::open(&image);
    assert_eq!(guest.read("/opt/new/place/deep/link").unwrap(), b"contents");
    let hard = guest.find("/opt/new/place/hard").unwrap();
    assert_eq!((hard.nlink, hard.nid), (2, guest.find("/opt/new/place/deep/file").unwrap().nid));
    assert!(guest.names("/opt/new/place/deep/deeper").is_empty());
    assert_eq!(guest.read("/etc/passwd").unwrap(), b"replaced");
    assert_eq!(guest.read("/usr/bin/via-link").unwrap(), b"replaced");
    assert_eq!(guest.read("/opt/linked/file").unwrap(), b"contents");

    bare.add = vec![(place.join("missing"), "/x".into())];
    let error = make(&cache, &bare).unwrap_err();
    assert!(matches!(error, Error::Read(..)));
    assert_eq!(error.exit_status(), 125);
}

#[test]
fn a_program_that_is_added() {
    let (directory, cache) = cache();
    let folder = fs::canonicalize(directory.path()).unwrap().join("tools");
    fs::create_dir(&folder).unwrap();
    fs::copy("/bin/dash", folder.join("mine")).unwrap();
    for (program, to) in [("/opt/tools/mine", "/opt/tools"), ("mine", "/usr/local/bin")] {
        let mut bare = request(program);
        bare.bare = true;
        bare.search_path = "/usr/local/bin:/usr/bin".into();
        bare.add = vec![(folder.clone(), to.into())];
        let image = make(&cache, &bare).unwrap();
        let guest = Guest::open(&image);
        assert_eq!(image.program, Path::new(to).join("mine"));
        assert!(guest.find(folder.join("mine")).is_none(), "not at the host's path");
        if let Some(text) = guest.run(&[&image.program.to_string_lossy(), "-c", "echo here"]) {
            assert_eq!(text, "here\n");
        }
    }
}

#[test]
fn a_directory_as_root() {
    let (directory, cache) = cache();
    let place = fs::canonicalize(directory.path()).unwrap();
    let root = place.join("root");
    fs::create_dir_all(root.join("usr/bin")).unwrap();
    symlink("usr/bin", root.join("bin")).unwrap();
    compile(&place, "int main(void) { return 0; }", &["-static", "-o", "root/usr/bin/program"]);
    compile(&place, "int main(void) { return 0; }", &["-o", "root/usr/bin/dynamic"]);
    let mut request = request("program");
    request.root = Some(root.clone());
    let image = make(&cache, &request).unwrap();
    assert_eq!(image.program, Path::new("/usr/bin/program"));
    let guest = Guest::open(&image);
    assert_eq!(guest.names("/"), [b"bin".to_vec(), b"usr".to_vec()], "nothing is added");
    assert_eq!(guest.target("/bin").unwrap(), Path::new("usr/bin"));
    let metadata = fs::metadata(&root).unwrap();
    assert_eq!(
        u64::from(guest.find("/").unwrap().mode),
        u64::from(std::os::unix::fs::MetadataExt::mode(&metadata))
    );

    request.program = "/bin/dynamic".into();
    assert!(matches!(make(&cache, &request).unwrap_err(), Error::MissingInterpreter(..)));
    request.program = "bash".into();
    assert!(matches!(make(&cache, &request).unwrap_err(), Error::ProgramNotFound(_)));
    request.root = Some(place.join("missing"));
    assert!(matches!(make(&cache, &request).unwrap_err(), Error::Read(..)));
}

/// Version managers put scripts on the search path that ask them for the program. The managers are not in the guest.
#[test]
fn shims_are_passed_over() {
    let (directory, cache) = cache();
    let shims = fs::canonicalize(directory.path()).unwrap().join("shims");
    fs::create_dir(&shims).unwrap();
    for name in ["cat", "only-here"] {
        executable(&shims.join(name), "#!/bin/dash\nexec /no/manager\n");
    }
    let search_path = format!("{}:/usr/bin:/bin", shims.display());
    let with_path = |name: &str| {
        let mut request = request(name);
        request.bare = true;
        request.search_path = search_path.clone().into();
        request
    };
    let image = make(&cache, &with_path("cat")).unwrap();
    assert_eq!(image.program, Path::new("/usr/bin/cat"));
    assert!(image.warnings.iter().any(|text| text.contains("version manager")), "{:?}", image.warnings);
    assert_eq!(make(&cache, &with_path("only-here")).unwrap().program, shims.join("only-here"));
}

/// A library that is added is found where `LD_LIBRARY_PATH` will say that it is.
#[test]
fn libraries_that_are_added() {
    let (directory, cache) = cache();
    let place = fs::canonicalize(directory.path()).unwrap();
    compile(&place, "int answer(void) { return 42; }", &["-shared", "-fPIC", "-o", "libanswer.so"]);
    let program = "int answer(void); int main(void) { return answer() - 42; }";
    compile(&place, program, &["-o", "program", "-L.", "-lanswer"]);
    let mut request = request("/opt/program");
    request.add = vec![
        (place.join("program"), "/opt/program".into()),
        (place.join("libanswer.so"), "/opt/lib/libanswer.so".into()),
    ];
    assert!(matches!(make(&cache, &request), Err(Error::MissingLibrary(..))));
    request.library_path = vec!["/opt/lib".into()];
    let guest = Guest::open(&make(&cache, &request).unwrap());
    assert!(guest.find("/opt/lib/libanswer.so").is_some());
    assert!(guest.find(place.join("libanswer.so")).is_none(), "once is enough");
    guest.run(&["/usr/bin/env", "LD_LIBRARY_PATH=/opt/lib", "/opt/program"]);
}

/// A person at a shell expects more than the Essential packages.
#[test]
fn tools_of_a_shell_are_in_the_base() {
    let (_directory, cache) = cache();
    let guest = Guest::open(&make(&cache, &request("true")).unwrap());
    for name in ["less", "ps", "top"] {
        let path = Path::new("/usr/bin").join(name);
        if path.exists() {
            assert!(guest.find(&path).is_some(), "{name}");
        } else {
            println!("skipped: 1 (this host has no {name})");
        }
    }
}
