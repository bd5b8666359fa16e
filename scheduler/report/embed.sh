#!/bin/sh
# usage: embed.sh FILE NAME >FILE.c
# A file as a C string, for what a program has to carry with it.
set -eu
echo "extern const char $2[];"
echo "const char $2[] ="
od -An -v -to1 "$1" | sed 's/ /\\/g; s/.*/"&"/'
echo ';'
