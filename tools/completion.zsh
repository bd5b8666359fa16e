#compdef graphrun
# zsh completion of graphrun, printed by graphrun --completion zsh
_graphrun() {
    if (( CURRENT == 2 )); then
        local -a commands=(
            'check:check a graph file and print all its errors'
            'plan:show steps, memory and time of an iteration before anything runs'
            'exec:run a graph; with --resume GRAPH may be left out'
            'verify:prove a finished plan, independently of the planner'
            'diff:what differs between two plans, in words'
            'pack:find offsets for buffers with lifetimes'
            'init:make a checkpoint of random weights'
            'ops:list the ops and their keys'
            'schema:print a JSON Schema of graph files'
            'calibrate:measure this machine for --hardware FILE'
            'export:write the weights of a run in Hugging Face form'
            'report:sum up run directories; html: a page with curves, times, memory and samples, several runs over each other'
            'watch:serve that page while the runs go on, and their numbers for Prometheus under /metrics'
            'serve:answer calls of OpenAI'\''s form with a checkpoint (a folder, or RUN[@STEP|@best]): print the plan and the URL, and go on until SIGINT or SIGTERM; docs/ENVIRONMENTS.md has the calls and what --set may set'
            'audit:run iterations again from their checkpoint, in another folder, and compare metrics and weights with the recorded bits'
        )
        _describe command commands
        return
    fi
    case $words[2] in
    check) _arguments -S '--help[show the options]' \
        '*--set=[override a parameter of the graph; may be repeated]:KEY=VALUE:' \
        '--ranks=[ranks to plan for, or hosts by devices such as 2x8; exec\: to run on, on this machine]:N|HxD:' \
        '--explain[show each value'\''s type, size and stage]' \
        '*:file:_files' ;;
    plan) _arguments -S '--help[show the options]' \
        '*--set=[override a parameter of the graph; may be repeated]:KEY=VALUE:' \
        '--ranks=[ranks to plan for, or hosts by devices such as 2x8; exec\: to run on, on this machine]:N|HxD:' \
        '--device=[device to run on; default\: cuda where there is one]:NAME:(cpu cuda)' \
        '--hardware=[machine to plan for; default\: this one]:NAME|FILE:_files' \
        '--budget=[device memory, such as 80GiB; default, and max\: all that is usable]:BYTES|max:' \
        '--host-budget=[host memory that the plan may use; default, and max\: all that is usable]:BYTES|max:' \
        '--disk=[a folder on a disk, and how much of it each rank may take for state that device and host have no room for; nothing is left there]:DIR\:BYTES:_files' \
        '--policy=[where state is kept, for what '\''residency'\'' does not say]:NAME:(auto keep transition every_node)' \
        '--format=[form of the plan; with --sweep table, csv or svg]:NAME:(table json csv dot svg html)' \
        '--sweep=[N plans over a range\: budget=24GiB..140GiB\:8, host-budget, ranks, or a --set key]:NAME=A..B\[\:N\]:' \
        '--explore[other layouts (micro-batches, slices, shards, context), and what each takes\: time, memory, bits]' \
        '--out=[write to a file; default, and -\: print]:FILE:_files' \
        '*:file:_files' ;;
    exec) _arguments -S '--help[show the options]' \
        '*--set=[override a parameter of the graph; may be repeated]:KEY=VALUE:' \
        '--ranks=[ranks to plan for, or hosts by devices such as 2x8; exec\: to run on, on this machine]:N|HxD:' \
        '--device=[device to run on; default\: cuda where there is one]:NAME:(cpu cuda)' \
        '--hardware=[machine to plan for; default\: this one]:NAME|FILE:_files' \
        '--budget=[device memory, such as 80GiB; default, and max\: all that is usable]:BYTES|max:' \
        '--host-budget=[host memory that the plan may use; default, and max\: all that is usable]:BYTES|max:' \
        '--disk=[a folder on a disk, and how much of it each rank may take for state that device and host have no room for; nothing is left there]:DIR\:BYTES:_files' \
        '--policy=[where state is kept, for what '\''residency'\'' does not say]:NAME:(auto keep transition every_node)' \
        '--out=[run directory; default\: runs/NAME-TIME]:DIR:_files' \
        '--plan=[run this plan instead of making one]:FILE:_files' \
        '--steps=[last step, counted over all resumes]:N:' \
        '--seed=[seed of all random numbers]:S:' \
        '--resume=[go on with a run, bit for bit, from its last checkpoint or an earlier one]:RUN\[@STEP|@best\]:_files' \
        '--replan[with --resume\: make a new plan]' \
        '--check-memory[CPU device\: end the run if a step touches memory that it did not declare; touched.csv says how much of the peak was written (slow)]' \
        '--hosts=[with --ranks HxD\: the H hosts to run on, as mpirun reaches them]:A,B,...:' \
        '--accept-changes[go on although a checkpoint, or a file that the run reads, has changed; warnings name each change]' \
        '--until=[stop after iteration N, with a checkpoint; schedules stay those of all iterations]:N:' \
        '--restarts=[go on by itself when a rank, a worker or a device fails, N times at most between two checkpoints]:N:' \
        '*:file:_files' ;;
    verify) _arguments -S '--help[show the options]' \
        '*:file:_files' ;;
    diff) _arguments -S '--help[show the options]' \
        '*:file:_files' ;;
    pack) _arguments -S '--help[show the options]' \
        '--out=[write to a file; default, and -\: print]:FILE:_files' \
        '--capacity=[size of the memory to pack into; default\: the smallest that can be found]:BYTES:' \
        '*:file:_files' ;;
    init) _arguments -S '--help[show the options]' \
        '--out=[folder to write]:DIR:_files' \
        '--seed=[seed of all random numbers]:S:' \
        '--config=[config.json of the model'\''s shape]:FILE:_files' \
        '--tokenizer=[folder with the tokenizer'\''s files]:DIR:_files' \
        '*:file:_files' ;;
    ops) _arguments -S '--help[show the options]' \
        '*:file:_files' ;;
    schema) _arguments -S '--help[show the options]' \
        '*:file:_files' ;;
    calibrate) _arguments -S '--help[show the options]' \
        '--device=[device to run on; default\: cuda where there is one]:NAME:(cpu cuda)' \
        '--hardware=[machine to plan for; default\: this one]:NAME|FILE:_files' \
        '--disk=[a folder on a disk, and how much of it each rank may take for state that device and host have no room for; nothing is left there]:DIR\:BYTES:_files' \
        '--out=[write to a file; default, and -\: print]:FILE:_files' \
        '*--from=[instead of measuring, refine --hardware with what a run measured of its steps; may be repeated]:RUN:_files' \
        '*:file:_files' ;;
    export) _arguments -S '--help[show the options]' \
        '--out=[folder to write]:DIR:_files' \
        '--model=[model of the graph to export]:NAME:' \
        '--dtype=[type of the weights written]:NAME:(float32 bfloat16 fp32 bf16)' \
        '--shard=[largest size of one file]:BYTES:' \
        '--merge[of a model with adapters\: the whole model, with these merged; default\: the adapters, in the form of Hugging Face peft]' \
        '--mtp=[copy the layers that predict further tokens from FOLDER, the checkpoint that training began with, as they are there]:FOLDER:' \
        '--accept-changes[go on although a checkpoint, or a file that the run reads, has changed; warnings name each change]' \
        '*:file:_files' ;;
    report) _arguments -S '--help[show the options]' \
        '--out=[write to a file; default, and -\: print]:FILE:_files' \
        '--format=[form of the report]:NAME:(text html)' \
        '*:file:_files' ;;
    watch) _arguments -S '--help[show the options]' \
        '--port=[port to listen on; default\: a free one]:N:' \
        '--host=[address to listen on; default\: 127.0.0.1, which this machine alone can reach]:ADDRESS:' \
        '*:file:_files' ;;
    serve) _arguments -S '--help[show the options]' \
        '*--set=[override a parameter of the graph; may be repeated]:KEY=VALUE:' \
        '--device=[device to run on; default\: cuda where there is one]:NAME:(cpu cuda)' \
        '--hardware=[machine to plan for; default\: this one]:NAME|FILE:_files' \
        '--budget=[device memory, such as 80GiB; default, and max\: all that is usable]:BYTES|max:' \
        '--host-budget=[host memory that the plan may use; default, and max\: all that is usable]:BYTES|max:' \
        '--port=[port to listen on; default\: a free one]:N:' \
        '--host=[address to listen on; default\: 127.0.0.1, which this machine alone can reach]:ADDRESS:' \
        '--model=[model of the run, where it has several]:NAME:' \
        '--out=[keep graph, plan and trace there; default\: nothing is kept]:DIR:_files' \
        '*:file:_files' ;;
    audit) _arguments -S '--help[show the options]' \
        '--disk=[a folder on a disk, and how much of it each rank may take for state that device and host have no room for; nothing is left there]:DIR\:BYTES:_files' \
        '*:file:_files' ;;
    esac
}
_graphrun "$@"
