#!/bin/sh
# A header is named as its source: what X.c defines for others, X.h declares. So may the header of a family, whose name
# its sources begin with (safetensors.h of safetensors_write.c; run_parts.h and chat_impl.h, which are private, of run_*.c
# and chat_*.c), and the private header of a whole room, which says of each function in which source it is.
# Prints the public functions that any other header declares, and fails where they are more than the rest that is left.
# usage: check_headers.sh
set -eu
cd "$(dirname "$0")/.."
rest=70 # 64 in ops/kernels, whose tables are declared by device; in the search; of code that is made and not run

find runtime memplan graphs ops scheduler -name '*.[ch]' |
    awk -v rest=$rest '
    BEGIN {
        split("graphs/loader/loader.h graphs/expr/expr_ir.h graphs/expr/expr_ast.h memplan/verify/verifier.h " \
              "ops/kernels/cpu/cpu.h scheduler/search/planner_parts.h " \
              "scheduler/search/schedule_parts.h", rooms)
        for (i in rooms) of_room[rooms[i]] = 1
    }
    # the function that a line at the margin begins to declare or define
    function name_of(line) {
        gsub(/GR_PRINTF\([0-9, ]*\)/, "", line)
        return match(line, /gr_[a-z0-9_]+\(/) ? substr(line, RSTART, RLENGTH - 1) : ""
    }
    function is_of(source, header) {
        sub(/\.c$/, "", source)
        sub(/(_parts|_impl)?\.h$/, "", header)
        return source == header || index(source, header "_") == 1
    }
    {
        file = $0
        while ((getline line < file) > 0) {
            if (line !~ /^[A-Za-z_]/ || line ~ /^(static|typedef|extern|enum) /) continue
            name = name_of(line)
            if (name == "") continue
            if (file ~ /\.h$/) headers[name] = headers[name] " " file
            else if (line !~ /;$/) source[name] = file
        }
        close(file)
    }
    END {
        for (name in source) {
            n = split(headers[name], at, " ")
            good = n == 0
            for (i = 1; i <= n; i++) good = good || at[i] in of_room || is_of(source[name], at[i])
            if (good) continue
            found++
            lines = lines source[name] ": " name " is declared in" headers[name] "\n"
        }
        printf "%s", lines | "sort"
        close("sort")
        if (found != rest) print found + 0 " public functions are declared under another name; the rest is said to be " rest
        exit found > rest
    }'
