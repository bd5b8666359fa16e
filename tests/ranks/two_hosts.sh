# Sourced: two hosts, as namespaces of this machine (net, uts, ipc, mount: names, addresses and shared memory of their own, a wire
# between them), and mpirun on the first, which reaches the second by an agent in the place of ssh.
# enter_hosts comes first: it runs the script again in namespaces of which everything in it is a part; or skips (77) where they may not be
# made. make_hosts comes behind lib.sh. Both hosts have the folder $work.

enter_hosts() { # ARGUMENTS of the script
    [ -z "${GR_HOSTS_INSIDE:-}" ] || return 0
    for tool in mpirun ip unshare nsenter; do
        command -v $tool >/dev/null || { echo "skipped: there is no $tool" >&2; exit 77; }
    done
    [ "$(id -u)" = 0 ] && user='' || user='--user --map-root-user'
    inside="unshare $user --net --mount --uts --pid --fork --kill-child --mount-proc" # with it, all in it is gone
    $inside ip link add eth-a type veth peer name eth-b 2>/dev/null || { echo "skipped: no namespaces here" >&2; exit 77; }
    GR_HOSTS_INSIDE=$(readlink /proc/self/ns/mnt) exec $inside sh "$(realpath "$0")" "$@"
}

here_is_a() { # COMMAND...
    nsenter -t "$(cat a.pid)" --net --uts --ipc --mount --wd="$work" "$@"
}

across() { # OPTIONS...: mpirun, told on host a
    here_is_a mpirun --bind-to none --mca mpi_yield_when_idle 1 "$@"
}

make_hosts() {
    [ "${GR_HOSTS_INSIDE:-}" ] && [ "$GR_HOSTS_INSIDE" != "$(readlink /proc/self/ns/mnt)" ] ||
        fail "this is not a namespace of its own, whose files and links are ours to change"
    ip link add eth-a type veth peer name eth-b
    cat >hosts.txt <<'END_HOSTS'
127.0.0.1 localhost
10.77.0.1 a
10.77.0.2 b
END_HOSTS
    mount --bind hosts.txt /etc/hosts
    n=0
    for host in a b; do
        n=$((n + 1))
        unshare --net --uts --ipc --mount \
            sh -c "mount -t tmpfs shm /dev/shm && hostname $host && echo 1 >$host.up && exec sleep infinity" &
        holder=$!
        while [ ! -s $host.up ]; do sleep 0.05; kill -0 $holder || fail "host $host does not come up"; done
        echo $holder >$host.pid
        ip link set eth-$host netns "$(cat $host.pid)"
        nsenter -t "$(cat $host.pid)" --net sh -c "ip link set lo up; ip addr add 10.77.0.$n/24 dev eth-$host; ip link set eth-$host up"
    done

    # on.sh HOST COMMAND...: as ssh does it: a shell of its own there, in the home directory, with little environment
    cat >on.sh <<END
#!/bin/sh
pid=\$(cat "$work/\$1.pid")
shift
exec nsenter -t "\$pid" --net --uts --ipc --mount env -i PATH="$PATH" HOME=/ ASAN_OPTIONS="${ASAN_OPTIONS-}" \
    TSAN_OPTIONS="${TSAN_OPTIONS-}" GRAPHRUN_MPI="${GRAPHRUN_MPI-}" sh -c "cd; \$*"
END
    chmod +x on.sh
    [ "$(./on.sh b hostname)" = b ] && ./on.sh a "getent hosts b" >/dev/null || fail "the hosts are not two"

    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm_rsh_agent="$work/on.sh"
}
