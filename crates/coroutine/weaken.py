"""Makes COPY a crate of its own whose one line is weakened as NAME in weaken.list says: weaken.py NAME COPY.

Run in the folder of the crate, which has weaken.list and weaken.toml, the copy's manifest."""

import os
import re
import sys

name, copy = sys.argv[1:]
for line in open("weaken.list"):
    fields = [field.replace("\\|", "|").replace("\\n", "\n") for field in re.split(r"(?<!\\)\|", line.rstrip("\n"))]
    if fields[0] == name:
        break
else:
    sys.exit(f"weaken.list has no {name}")
_, file, old, new, model = fields
path = f"{copy}/src/{file}"
text = open(path).read()
if text.count(old) != 1:
    sys.exit(f"{name}: {text.count(old)} matches in {file}, want 1")
open(path, "w").write(text.replace(old, new))
open(f"{copy}/model", "w").write(model)
manifest = open("weaken.toml").read().replace("REPOSITORY", os.path.realpath("../.."))
open(f"{copy}/Cargo.toml", "w").write(manifest)
