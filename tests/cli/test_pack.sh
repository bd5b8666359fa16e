#!/bin/sh
# usage: test_pack.sh GRAPHRUN
# Files of buffers in and out, what does not fit, and bad files.
set -eu
graphrun=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# pack STATUS ARGUMENT...: the file is $dir/in; standard output in $dir/out, error in $dir/said
pack() {
    want=$1
    shift
    status=0
    "$graphrun" pack "$dir/in" "$@" >"$dir/out" 2>"$dir/said" || status=$?
    [ "$status" = "$want" ] || { echo "exit status $status, not $want"; cat "$dir/said"; exit 1; }
}
has() {
    grep -qF -- "$1" "$dir/said" || { echo "not said: $1"; cat "$dir/said"; exit 1; }
}

# Columns in any order; a and c do not meet, b meets both.
printf 'size,id,upper,lower\r\n512,a,2,0\r\n256,b,3,1\r\n\n512,c,4,2\n' >"$dir/in"
cat >"$dir/want" <<'END'
id,lower,upper,size,offset
a,0,2,512,0
b,1,3,256,512
c,2,4,512,0
END
pack 0
has 'height 768, lower bound 768, proven the lowest'
cmp "$dir/out" "$dir/want"
pack 0 --capacity 768 -o "$dir/file"
cmp "$dir/file" "$dir/want"
[ ! -s "$dir/out" ]
pack 3 --capacity 767 -o "$dir/none"
has 'cannot fit 767 bytes: lower bound 768, best height found 768, proven the lowest'
[ ! -e "$dir/none" ]
cp "$dir/want" "$dir/in" # what it wrote it reads
pack 0
cmp "$dir/out" "$dir/want"

# More than the live bytes is needed, which only a search can tell.
cat >"$dir/in" <<'END'
id,lower,upper,size
0,1,4,2
1,2,4,1
2,0,2,3
3,1,3,1
4,3,5,3
5,0,1,3
6,2,3,2
7,4,5,3
END
pack 3 --capacity 6
has 'cannot fit 6 bytes: lower bound 7, best height found 7, proven the lowest'
pack 0
has 'height 7, lower bound 7, proven the lowest'

echo 'id,lower,upper,size' >"$dir/in"
pack 0
has 'height 0'

bad() { # PLACE-AND-TEXT; the file on standard input
    cat >"$dir/in"
    pack 2
    has "$dir/in:$1"
    [ ! -s "$dir/out" ]
}
bad "1:1: error: a header 'id,lower,upper,size' is missing" </dev/null
printf 'id,lower,width,size\n' | bad "1:10: error: 'width' is not a column"
printf 'id,id\n' | bad "1:4: error: 'id' is not a column, once each"
printf 'id,lower,upper\n' | bad "1:1: error: column 'size' is missing"
rows() {
    printf 'id,lower,upper,size\na,0,1,1\n%s\n' "$1"
}
rows 'b,5,5,3' | bad "3:5: error: '5' must be greater than lower"
rows 'b,0,x,3' | bad "3:5: error: 'x' must be a whole number"
rows 'b,-1,4,3' | bad "3:3: error: '-1' must be a whole number"
rows 'b,0,1,99999999999999999999' | bad "3:7: error: '99999999999999999999' must be"
rows 'b,0,1,4611686018427387904' | bad "3:7: error: '4611686018427387904' is too large"
rows 'b,0,1,0' | bad "3:7: error: '0' must be greater than 0"
rows 'b,0,1' | bad '3:6: error: 3 fields where the header has 4'
rows 'b,0,1,4,5' | bad "3:9: error: '5' is one field more"
rm "$dir/in"
pack 2
has "$dir/in"
