#!/bin/sh
# The rooms of the source, in the order of meson.build: a room includes and calls what is in itself or in a room before it.
# Prints every include and, with a built library, every call that looks the other way; and with -t the table of who looks
# into whom. usage: check_rooms.sh [-t] [LIBRARY.a]
set -eu
cd "$(dirname "$0")/.."
table=
if [ "${1-}" = -t ]; then
    table=1
    shift
fi

rooms=$(sed -n "/^foreach room/,/^]/s/^ *'\(.*\)',\$/\1/p" meson.build)
sources() {
    find runtime memplan ops graphs scheduler -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh'
}
edges() { # FROM-FILE TO-FILE WHAT: a line each
    sources | while read -r file; do
        sed -n 's/^[[:space:]]*#[[:space:]]*include "\([^"]*\)".*/\1/p' "$file" | sed "s|^|$file |; s|\$| include|"
    done
    [ -z "${1-}" ] || symbols "$1"
}
# Objects are named by their paths, / as _: looked up among the files that there are.
symbols() {
    sources | awk '/\.c$/ {o = $0; gsub("/", "_", o); print "file", o, $0}' >"$names"
    { cat "$names"; nm -A -g "$1" 2>/dev/null; } | awk '
        $1 == "file" { path[$2] = $3; next }
        { split($1, at, ":"); object = at[2]; sub(/.*\//, "", object); sub(/\.o$/, "", object); name = $NF }
        !(object in path) { next }
        $(NF - 1) == "U" { wanted[++n] = path[object] " " name; next }
        { where[name] = path[object] }
        END { for (i = 1; i <= n; i++) { split(wanted[i], w, " "); if (w[2] in where) print w[1], where[w[2]], w[2] } }'
}

names=$(mktemp)
trap 'rm -f "$names"' EXIT
{
    echo "$rooms" | sed 's/^/room /'
    edges "${1-}"
} | awk -v table="$table" '
    # A room of which another is a folder (ops/kernels of ops/kernels/cpu) is one with it where a table of functions joins them.
    function room(file,    r) {
        r = file
        while (sub(/\/[^\/]*$/, "", r)) if (r in place) return r
        return ""
    }
    function joined(a, b) { return a ~ "^ops/kernels" && b ~ "^ops/kernels" }
    $1 == "room" && NF == 2 { place[$2] = ++n; name[n] = $2; next }
    {
        a = room($1); b = room($2)
        if (a == "" || b == "" || a == b) next
        count[a, b]++
        if (place[b] > place[a] && !joined(a, b)) { print $1 " -> " $2 " (" $3 "): " a " may not look into " b; bad = 1 }
    }
    END {
        for (i = 1; table && i <= n; i++) {
            line = ""
            for (j = 1; j <= n; j++) if ((name[i], name[j]) in count) line = line " " name[j] " " count[name[i], name[j]] ","
            sub(/,$/, "", line)
            print name[i] ":" line
        }
        exit bad
    }'
