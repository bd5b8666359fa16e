# bash completion of graphrun, printed by graphrun --completion
_graphrun()
{
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=
    if [ "$COMP_CWORD" = 1 ]; then
        words='check plan exec verify diff pack init ops schema calibrate export report watch serve audit --help'
    else
        case $before in
        --device) COMPREPLY=($(compgen -W 'cpu cuda' -- "$word")); return ;;
        --policy) COMPREPLY=($(compgen -W 'auto keep transition every_node' -- "$word")); return ;;
        --format) COMPREPLY=($(compgen -W 'table json csv dot svg html' -- "$word")); return ;;
        --dtype) COMPREPLY=($(compgen -W 'float32 bfloat16 fp32 bf16' -- "$word")); return ;;
        esac
        case ${COMP_WORDS[1]} in
        check) words='--help --set --ranks --explain' ;;
        plan) words='--help --set --ranks --device --hardware --budget --host-budget --disk --policy --format --sweep --explore --out' ;;
        exec) words='--help --set --ranks --device --hardware --budget --host-budget --disk --policy --out --plan --steps --seed --resume --replan --check-memory --hosts --accept-changes --until --restarts' ;;
        verify) words='--help' ;;
        diff) words='--help' ;;
        pack) words='--help --out --capacity' ;;
        init) words='--help --out --seed --config --tokenizer' ;;
        ops) words='--help' ;;
        schema) words='--help' ;;
        calibrate) words='--help --device --hardware --disk --out --from' ;;
        export) words='--help --out --model --dtype --shard --merge --mtp --accept-changes' ;;
        report) words='--help --out --format' ;;
        watch) words='--help --port --host' ;;
        serve) words='--help --set --device --hardware --budget --host-budget --port --host --model --out' ;;
        audit) words='--help --disk' ;;
        esac
    fi
    case $word in
    -*) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
    *) COMPREPLY=($(compgen -W "$words" -- "$word") $(compgen -f -- "$word")) ;;
    esac
}
complete -o filenames -F _graphrun graphrun
