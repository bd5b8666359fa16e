#!/bin/sh
# usage: embed.sh FILE NAME >FILE.c
# A file as a C string, for what a program has to carry with it. A line @page.css@ or @page.js@ stands for that file, which
# lies beside this one: what all pages share.
set -eu
here=$(dirname "$0")
echo "extern const char $2[];"
echo "const char $2[] ="
sed -e "/^@page\.css@\$/{
r $here/page.css
d
}" -e "/^@page\.js@\$/{
r $here/page.js
d
}" "$1" | od -An -v -to1 | sed 's/ /\\/g; s/.*/"&"/'
echo ';'
