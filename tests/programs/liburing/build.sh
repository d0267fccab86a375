#!/bin/sh -e
# Fetches liburing's source as Debian has it, builds its tests as they are into a folder, and prints their names. What is
# there already is built no second time.
#
#     build.sh FOLDER

folder=$1
mkdir -p "$folder/apt/sources" "$folder/apt/lists/partial" "$folder/apt/cache/archives/partial" "$folder/source"
cd "$folder"
if [ ! -e complete ]; then
    . /etc/os-release
    # The host's own list of archives has programs only: the same archive is asked for sources.
    site=$(apt-get indextargets --format '$(SITE)' | head -n 1)
    cat > apt/sources/source.sources <<END
Types: deb-src
URIs: $site
Suites: $VERSION_CODENAME
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
    options="-q -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts=$folder/apt/sources
        -o Dir::State::Lists=$folder/apt/lists -o Dir::Cache=$folder/apt/cache -o APT::Sandbox::User=root"
    # shellcheck disable=SC2086
    apt-get $options update >&2
    # shellcheck disable=SC2086
    (cd source && apt-get $options source --download-only liburing >&2)
    # Beside the archive is its signature.
    tar -xf source/liburing_*.orig.tar.?z -C source --strip-components=1
    (cd source && ./configure >&2 && make -s -C src >&2 && make -s -C test >&2)
    rm -rf tests
    mkdir tests
    cp source/test/*.t tests
    : > complete
fi
# exec-target is what another test executes.
cd tests
for test in *.t; do
    [ "$test" = exec-target.t ] || printf '%s\n' "${test%.t}"
done
