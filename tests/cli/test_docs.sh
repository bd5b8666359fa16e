#!/bin/sh
# usage: test_docs.sh GRAPHRUN [--update]
# The graph of docs/LANGUAGE.md's tutorial is the file that ships. The reference at the end of docs/LANGUAGE.md is what `graphrun ops` prints, the man page and the completion what
# graphrun prints of itself, and every graph that docs/LANGUAGE.md shows in full checks. --update writes them anew.
set -eu
graphrun=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

quoted() { # docs/LANGUAGE.md with graph files put in where a line <!-- graphs/NAME.yaml --> says so
    awk '/^<!-- graphs\/.*\.yaml -->$/ { file = $2; print; getline; print; while ((getline line <file) > 0) print line
                                        skip = 1; next }
         skip && /^```$/ { skip = 0 }
         !skip' docs/LANGUAGE.md
}
{
    quoted | sed '/^<!-- graphrun ops -->$/q'
    echo '```text'
    "$graphrun" ops
    echo '```'
} >"$dir/LANGUAGE.md"
"$graphrun" --man >"$dir/graphrun.1"
for shell in bash zsh fish; do "$graphrun" --completion $shell >"$dir/completion.$shell"; done
if [ "${2-}" = --update ]; then
    cp "$dir/LANGUAGE.md" "$dir/graphrun.1" docs/
    cp "$dir"/completion.* tools/
fi
diff -u docs/LANGUAGE.md "$dir/LANGUAGE.md"
diff -u docs/graphrun.1 "$dir/graphrun.1"
for shell in bash zsh fish; do diff -u tools/completion.$shell "$dir/completion.$shell"; done

# Where the shells are, they take them.
if command -v zsh >/dev/null; then zsh -n "$dir/completion.zsh"; fi
if command -v fish >/dev/null; then
    fish --no-config -c "source $dir/completion.fish; complete -C 'graphrun exec --device '" | grep -q '^cuda' || { echo "fish completes nothing"; exit 1; }
fi
bash -c ". $dir/completion.bash; COMP_WORDS=(graphrun exec --device '') COMP_CWORD=3; _graphrun; [ \"\${COMPREPLY[*]}\" = 'cpu cuda' ]" ||
    { echo "bash completes nothing"; exit 1; }

awk -v dir="$dir" '/^```yaml$/ { n++; inside = 1; next } /^```$/ { inside = 0 } inside { print >(dir "/" n ".yaml") }' \
    docs/LANGUAGE.md README.md
for graph in "$dir"/*.yaml; do
    if grep -q '^graph:' "$graph"; then
        "$graphrun" check "$graph" >"$dir/said" 2>"$dir/warned" && ! grep -v " is not here: " "$dir/warned" ||
            { cat "$graph" "$dir/said" "$dir/warned"; exit 1; }
    fi
done
