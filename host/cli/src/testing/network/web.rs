//! A web server on tokio and hyper (`tests/web`), asked by this host and by curl beside it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};

use super::{Server, check_numbers, connect, expect, free_port, get_once, text};
use crate::guest::Kernel;
use crate::paths;
use crate::testing::cargo;

const PACKAGE: &str = "heddle-web-program";

/// Asks the server in all its ways from inside, and leaves a note of the result with it. The server is `$0`.
const INSIDE: &str = "$0 & server=$!
    seq 1 100000 > /tmp/numbers; web=http://127.0.0.1:3000
    until curl -fso /tmp/first $web/numbers; do sleep 0.1; done
    {
        cmp /tmp/first /tmp/numbers
        curl -fs $web/pieces | cmp - /tmp/numbers
        curl -fs --data-binary @/tmp/numbers $web/echo | cmp - /tmp/numbers
        curl -fs -H 'Transfer-Encoding: chunked' --data-binary @/tmp/numbers $web/echo | cmp - /tmp/numbers
        curl -fs 'http://[::1]:3000/numbers' $web/pieces | tail -c 588895 | cmp - /tmp/numbers
        curl -s -o /dev/null -w '%{http_code}' $web/nothing
    } > /tmp/note 2>&1
    curl -fs --data-binary @/tmp/note $web/note
    wait $server";

/// Runs the server on so many processors.
///
/// # Errors
/// How it failed.
pub fn serve(kernel: Kernel, processors: &str) -> Result<(), String> {
    let program = paths::repository().and_then(|repository| cargo::program(&repository, PACKAGE));
    let program = program.map_err(text)?.to_string_lossy().into_owned();
    let [web, plain] = [free_port()?, free_port()?].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let (publish_web, publish_plain) = (format!("{web}:3000"), format!("{plain}:3001"));
    let packages = "curl,bash,coreutils,diffutils";
    let options = ["--smp", processors, "-p", &publish_web, "-p", &publish_plain, "--deb", packages];
    let file = format!("{program}:/usr/bin/web");
    let program = ["--add", &file, "--", "bash", "-c", INSIDE, "/usr/bin/web"];
    let mut server = Server::start(kernel, &[&options[..], &program[..]].concat())?;
    check_numbers(&mut server, web, true, 8)?;
    let told = server.until(|| {
        get_once(web, "/note")
            .and_then(|note| if note.is_empty() { Err(String::from("no note")) } else { Ok(note) })
    })?;
    expect(String::from_utf8_lossy(&told).into_owned(), String::from("404"))?;
    let mut stream = connect(plain)?;
    let sent: Vec<u8> = (0..300_000_u32).map(|number| b'a' + (number % 26) as u8).collect();
    let mut writer = stream.try_clone().map_err(text)?;
    let (expected, sender) = (
        sent.to_ascii_uppercase(),
        std::thread::spawn(move || {
            writer.write_all(&sent)?;
            writer.shutdown(Shutdown::Write)
        }),
    );
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(text)?;
    sender.join().map_err(|_| String::from("a thread panicked"))?.map_err(text)?;
    expect(answer == expected, true)
}
