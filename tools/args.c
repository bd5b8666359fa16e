/* tools/args.c: commands and options: one table, from which help, man page and completion are made. */
#include "tools/args.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef enum kind { FLAG, TEXT, LIST, COUNT, BYTES } kind;

typedef struct option {
    const char *name, *value; /* value: what --help calls it */
    char letter;              /* or 0 */
    kind kind;
    size_t at, given; /* offsets in gr_args; given 0: none */
    const char *choices;
    const char *doc;
} option;

#define AT(field) offsetof(gr_args, field)

enum {
    SET,
    RANKS,
    DEVICE,
    HARDWARE,
    BUDGET,
    HOST_BUDGET,
    DISK,
    POLICY,
    FORMAT,
    SWEEP,
    EXPLORE,
    OUT_FILE,
    OUT_DIR,
    RUN_DIR,
    PLAN,
    STEPS,
    SEED,
    RESUME,
    REPLAN,
    EXPLAIN,
    CONFIG,
    TOKENIZER,
    MODEL,
    DTYPE,
    SHARD,
    MERGE,
    MTP,
    CAPACITY,
    CHECK_MEMORY,
    HOSTS,
    ACCEPT,
    UNTIL,
    RESTARTS,
    FROM,
    REPORT_FORMAT,
    PORT,
    HOST,
    SERVED,
    RUN_FILES,
    N_OPTIONS
};

static const option options[N_OPTIONS] = {
    [SET] = {"set", "KEY=VALUE", 0, LIST, AT(ask.set), 0, NULL,
             "override a parameter of the graph; may be repeated"},
    [RANKS] = {"ranks", "N|HxD", 0, TEXT, AT(ask.ranks), 0, NULL,
               "ranks to plan for, or hosts by devices such as 2x8; exec: to run on, on this machine"},
    [HOSTS] = {"hosts", "A,B,...", 0, TEXT, AT(hosts), 0, NULL,
               "with --ranks HxD: the H hosts to run on, as mpirun reaches them"},
    [DEVICE] = {"device", "NAME", 0, TEXT, AT(ask.device), 0, "cpu cuda",
                "device to run on; default: cuda where there is one"},
    [HARDWARE] = {"hardware", "NAME|FILE", 0, TEXT, AT(ask.hardware), 0, NULL,
                  "machine to plan for; default: this one"},
    [BUDGET] = {"budget", "BYTES|max", 0, BYTES, AT(ask.budget), 0, NULL,
                "device memory, such as 80GiB; default, and max: all that is usable"},
    [HOST_BUDGET] = {"host-budget", "BYTES|max", 0, BYTES, AT(ask.host_budget), 0, NULL,
                     "host memory that the plan may use; default, and max: all that is usable"},
    [DISK] =
        {"disk", "DIR:BYTES", 0, TEXT, AT(ask.disk), 0, NULL,
         "a folder on a disk, and how much of it each rank may take for state that device and host have no "
         "room for; nothing is left there"},
    [POLICY] = {"policy", "NAME", 0, TEXT, AT(ask.policy), 0, "auto keep transition every_node",
                "where state is kept, for what 'residency' does not say"},
    [FORMAT] = {"format", "NAME", 0, TEXT, AT(format), 0, "table json csv dot svg html",
                "form of the plan; with --sweep table, csv or svg"},
    [SWEEP] = {"sweep", "NAME=A..B[:N]", 0, TEXT, AT(sweep), 0, NULL,
               "N plans over a range: budget=24GiB..140GiB:8, host-budget, ranks, or a --set key"},
    [EXPLORE] =
        {"explore", NULL, 0, FLAG, AT(explore), 0, NULL,
         "other layouts (micro-batches, slices, shards, context), and what each takes: time, memory, bits"},
    [OUT_FILE] = {"out", "FILE", 'o', TEXT, AT(ask.out), 0, NULL, "write to a file; default, and -: print"},
    [OUT_DIR] = {"out", "DIR", 'o', TEXT, AT(ask.out), 0, NULL, "folder to write"},
    [RUN_DIR] = {"out", "DIR", 'o', TEXT, AT(ask.out), 0, NULL, "run directory; default: runs/NAME-TIME"},
    [PLAN] = {"plan", "FILE", 0, TEXT, AT(ask.plan), 0, NULL, "run this plan instead of making one"},
    [STEPS] = {"steps", "N", 0, COUNT, AT(ask.steps), AT(ask.has_steps), NULL,
               "last step, counted over all resumes"},
    [SEED] = {"seed", "S", 0, COUNT, AT(ask.seed), AT(ask.has_seed), NULL, "seed of all random numbers"},
    [RESUME] = {"resume", "RUN[@STEP|@best]", 0, TEXT, AT(ask.resume), 0, NULL,
                "go on with a run, bit for bit, from its last checkpoint or an earlier one"},
    [REPLAN] = {"replan", NULL, 0, FLAG, AT(ask.replan), 0, NULL, "with --resume: make a new plan"},
    [EXPLAIN] = {"explain", NULL, 0, FLAG, AT(explain), 0, NULL, "show each value's type, size and stage"},
    [CONFIG] = {"config", "FILE", 0, TEXT, AT(config), 0, NULL, "config.json of the model's shape"},
    [TOKENIZER] = {"tokenizer", "DIR", 0, TEXT, AT(tokenizer), 0, NULL, "folder with the tokenizer's files"},
    [MODEL] = {"model", "NAME", 0, TEXT, AT(model), 0, NULL, "model of the graph to export"},
    [DTYPE] = {"dtype", "NAME", 0, TEXT, AT(dtype), 0, "float32 bfloat16 fp32 bf16",
               "type of the weights written"},
    [SHARD] = {"shard", "BYTES", 0, TEXT, AT(shard), 0, NULL, "largest size of one file"},
    [MERGE] = {"merge", NULL, 0, FLAG, AT(merge), 0, NULL,
               "of a model with adapters: the whole model, with these merged; default: the adapters, in the "
               "form of Hugging Face peft"},
    [MTP] = {"mtp", "FOLDER", 0, TEXT, AT(mtp), 0, NULL,
             "copy the layers that predict further tokens from FOLDER, the checkpoint that training began "
             "with, as they are there"},
    [CHECK_MEMORY] =
        {"check-memory", NULL, 0, FLAG, AT(ask.check_memory), 0, NULL,
         "CPU device: end the run if a step touches memory that it did not declare; touched.csv says "
         "how much of the peak was written (slow)"},
    [UNTIL] = {"until", "N", 0, COUNT, AT(until), 0, NULL,
               "stop after iteration N, with a checkpoint; schedules stay those of all iterations"},
    [ACCEPT] = {"accept-changes", NULL, 0, FLAG, AT(accept_changes), 0, NULL,
                "go on although a checkpoint, or a file that the run reads, has changed; warnings name each "
                "change"},
    [RESTARTS] = {"restarts", "N", 0, COUNT, AT(restarts), 0, NULL,
                  "go on by itself when a rank, a worker or a device fails, N times at most between two "
                  "checkpoints"},
    [FROM] =
        {"from", "RUN", 0, LIST, AT(from), 0, NULL,
         "instead of measuring, refine --hardware with what a run measured of its steps; may be repeated"},
    [REPORT_FORMAT] = {"format", "NAME", 0, TEXT, AT(format), 0, "text html", "form of the report"},
    [PORT] = {"port", "N", 0, COUNT, AT(port), 0, NULL, "port to listen on; default: a free one"},
    [HOST] = {"host", "ADDRESS", 0, TEXT, AT(host), 0, NULL,
              "address to listen on; default: 127.0.0.1, which this machine alone can reach"},
    [SERVED] = {"model", "NAME", 0, TEXT, AT(model), 0, NULL, "model of the run, where it has several"},
    [RUN_FILES] = {"out", "DIR", 'o', TEXT, AT(ask.out), 0, NULL,
                   "keep graph, plan and trace there; default: nothing is kept"},
    [CAPACITY] = {"capacity", "BYTES", 0, BYTES, AT(capacity), 0, NULL,
                  "size of the memory to pack into; default: the smallest that can be found"},
};

#define BIT(o) (UINT64_C(1) << (o))
#define TARGET \
    (BIT(SET) | BIT(RANKS) | BIT(DEVICE) | BIT(BUDGET) | BIT(HOST_BUDGET) | BIT(DISK) | BIT(POLICY))

typedef struct command {
    const char *name, *operands; /* "GRAPH"; [ABC] may be left out, and more of A... may be given */
    unsigned n_operands;         /* at most */
    uint64_t options, required;
    bool built;
    const char *doc;
} command;

static const command commands[] = {
    {"check", "GRAPH", 1, BIT(SET) | BIT(RANKS) | BIT(EXPLAIN), 0, true,
     "check a graph file and print all its errors"},
    {"plan", "GRAPH", 1, TARGET | BIT(HARDWARE) | BIT(FORMAT) | BIT(SWEEP) | BIT(EXPLORE) | BIT(OUT_FILE), 0,
     true, "show steps, memory and time of an iteration before anything runs"},
    {"exec", "GRAPH", 1,
     TARGET | BIT(HOSTS) | BIT(HARDWARE) | BIT(PLAN) | BIT(STEPS) | BIT(SEED) | BIT(RUN_DIR) | BIT(RESUME) |
         BIT(REPLAN) | BIT(CHECK_MEMORY) | BIT(ACCEPT) | BIT(UNTIL) | BIT(RESTARTS),
     0, true, "run a graph; with --resume GRAPH may be left out"},
    {"verify", "PLAN.json", 1, 0, 0, true, "prove a finished plan, independently of the planner"},
    {"diff", "PLAN_A.json PLAN_B.json", 2, 0, 0, true, "what differs between two plans, in words"},
    {"pack", "BUFFERS.csv", 1, BIT(CAPACITY) | BIT(OUT_FILE), 0, true,
     "find offsets for buffers with lifetimes"},
    {"init", "", 0, BIT(CONFIG) | BIT(TOKENIZER) | BIT(SEED) | BIT(OUT_DIR), BIT(CONFIG) | BIT(OUT_DIR), true,
     "make a checkpoint of random weights"},
    {"ops", "", 0, 0, 0, true, "list the ops and their keys"},
    {"schema", "", 0, 0, 0, true, "print a JSON Schema of graph files"},
    {"calibrate", "", 0, BIT(DEVICE) | BIT(OUT_FILE) | BIT(HARDWARE) | BIT(FROM) | BIT(DISK), 0, true,
     "measure this machine for --hardware FILE"},
    {"export", "RUN[@STEP|@best]", 1,
     BIT(MODEL) | BIT(DTYPE) | BIT(SHARD) | BIT(MERGE) | BIT(MTP) | BIT(OUT_DIR) | BIT(ACCEPT), BIT(OUT_DIR),
     true, "write the weights of a run in Hugging Face form"},
    {"report", "RUN...", GR_OPERANDS_MAX, BIT(REPORT_FORMAT) | BIT(OUT_FILE), 0, true,
     "sum up run directories; html: a page with curves, times, memory and samples, several runs over each "
     "other"},
    {"watch", "RUN...", GR_OPERANDS_MAX, BIT(HOST) | BIT(PORT), 0, true,
     "serve that page while the runs go on, and their numbers for Prometheus under /metrics"},
    {"serve", "MODEL", 1,
     BIT(SET) | BIT(DEVICE) | BIT(BUDGET) | BIT(HOST_BUDGET) | BIT(HARDWARE) | BIT(HOST) | BIT(PORT) |
         BIT(SERVED) | BIT(RUN_FILES),
     0, true,
     "answer calls of OpenAI's form with a checkpoint (a folder, or RUN[@STEP|@best]): print the plan and "
     "the "
     "URL, and go on until SIGINT or SIGTERM; docs/ENVIRONMENTS.md has the calls and what --set may set"},
    {"audit", "RUN [STEP]", 2, BIT(DISK), 0, true,
     "run iterations again from their checkpoint, in another folder, and compare metrics and weights with "
     "the recorded bits"},
};

/* ---- parsing ------------------------------------------------------------------------------------------- */

static const command *find_command(const char *name, gr_diag *d)
{
    const char *names[GR_LEN(commands)];
    for (size_t i = 0; i < GR_LEN(commands); i++) {
        if (!strcmp(commands[i].name, name)) return &commands[i];
        names[i] = commands[i].name;
    }
    const char *near = gr_near(name, names, GR_LEN(names));
    gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "unknown command '%s'%s%s%s", name,
                  near ? "; did you mean '" : "", near ? near : "; see graphrun --help", near ? "'?" : "");
    return NULL;
}

static const option *find_option(const command *c, const char *name, size_t n, gr_diag *d)
{
    const char *names[N_OPTIONS + 1] = {"help"};
    size_t n_names = 1;
    for (int i = 0; i < N_OPTIONS; i++) {
        if (!(c->options & BIT(i))) continue;
        if (strlen(options[i].name) == n && !memcmp(options[i].name, name, n)) return &options[i];
        names[n_names++] = options[i].name;
    }
    char *word = gr_strndup(name, n);
    const char *near = gr_near(word, names, n_names);
    gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "unknown option '--%s' of graphrun %s%s%s%s", word, c->name,
                  near ? "; did you mean '--" : "", near ? near : "", near ? "'?" : "");
    free(word);
    return NULL;
}

static bool is_choice(const char *choices, const char *value)
{
    size_t n = strlen(value);
    for (const char *c = choices; *c; c += strcspn(c, " "), c += *c == ' ')
        if (strcspn(c, " ") == n && !memcmp(c, value, n)) return true;
    return false;
}

static bool parse_count(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && !errno;
}

enum { FEW_BYTES = 1 << 20 }; /* of a budget: a unit may have been forgotten */

static gr_status wrong_value(const option *o, const char *value, const char *want, gr_diag *d)
{
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "--%s '%s' must be %s", o->name, value, want);
}

/* 80G and 80gb: which unit is meant is asked. */
static gr_status wrong_size(const option *o, const char *value, gr_diag *d)
{
    const size_t n = strspn(value, "0123456789.");
    static const char units[] = "KMGT";
    const char *unit = value[n] ? strchr(units, toupper((unsigned char)value[n])) : NULL;
    if (!n || (value[n] && !unit)) return wrong_value(o, value, "a size such as 80GiB, or max", d);
    char which = unit ? *unit : 'G';
    char *wants = gr_printf("a size with its unit, such as %.*s%ciB (or %.*s%cB, %s bytes each), or max",
                            (int)n, value, which, (int)n, value, which,
                            which == 'K'   ? "1000"
                            : which == 'M' ? "10^6"
                            : which == 'G' ? "10^9"
                                           : "10^12");
    const gr_status st = wrong_value(o, value, wants, d);
    free(wants);
    return st;
}

static gr_status store(gr_args *a, const option *o, const char *value, gr_diag *d)
{
    char *field = (char *)a + o->at;
    if (o->given) *(bool *)((char *)a + o->given) = true;
    if (o->choices && !is_choice(o->choices, value)) {
        char *want = gr_printf("one of %s", o->choices);
        gr_status st = wrong_value(o, value, want, d);
        free(want);
        return st;
    }
    uint64_t number = 0;
    switch (o->kind) {
    case FLAG:
        *(bool *)field = true;
        return GR_OK;
    case TEXT: /* a file to write that is called -: standard output, as without the option */
        *(const char **)(void *)field = o == &options[OUT_FILE] && !strcmp(value, "-") ? NULL : value;
        return GR_OK;
    case LIST:
        if (o == &options[FROM]) {
            GR_PUSH(a->from, a->n_from, a->cap_from, value);
            return GR_OK;
        }
        if (!strchr(value, '=') || *value == '=') return wrong_value(o, value, "of the form KEY=VALUE", d);
        GR_PUSH(a->ask.set, a->ask.n_set, a->ask.cap_set, value);
        return GR_OK;
    case COUNT:
        if (!parse_count(value, &number)) return wrong_value(o, value, "an integer of at least 0", d);
        if (o == &options[PORT] && number > UINT16_MAX)
            return wrong_value(o, value, "a port, at most 65535", d);
        if ((o == &options[STEPS] || o == &options[UNTIL]) && !number)
            return wrong_value(o, value, "an integer of at least 1", d);
        break;
    case BYTES:
        if (strcmp(value, "max") && (!gr_bytes_parse(value, &number) || !number))
            return wrong_size(o, value, d);
        if (strspn(value, "0123456789") == strlen(value) && number < FEW_BYTES)
            gr_diag_warn(d, (gr_loc){0}, "--%s %s is %s bytes; %sGiB has its unit", o->name, value, value,
                         value);
        break;
    }
    *(uint64_t *)(void *)field = number;
    return GR_OK;
}

static const option *find_letter(const command *c, const char *arg, gr_diag *d)
{
    for (int i = 0; i < N_OPTIONS; i++)
        if (c->options & BIT(i) && options[i].letter == arg[1]) return &options[i];
    gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "unknown option '-%c' of graphrun %s", arg[1], c->name);
    return NULL;
}

/* One option at argv[*i], and its value. */
static gr_status parse_option(gr_args *a, const command *c, int argc, char **argv, int *i, uint64_t *seen,
                              gr_diag *d)
{
    const char *arg = argv[*i], *value = NULL;
    const option *o;
    if (arg[1] == '-') {
        const char *equals = strchr(arg, '=');
        o = find_option(c, arg + 2, equals ? (size_t)(equals - arg - 2) : strlen(arg + 2), d);
        value = equals ? equals + 1 : NULL;
    } else {
        o = find_letter(c, arg, d);
        value = arg[2] ? arg + 2 : NULL;
    }
    if (!o) return GR_E_INVALID;
    *seen |= BIT(o - options);
    if (o->kind == FLAG && value)
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "--%s takes no value", o->name);
    if (o->kind != FLAG && !value) {
        if (*i + 1 >= argc)
            return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "--%s needs a value: %s", o->name, o->value);
        value = argv[++*i];
    }
    return store(a, o, value, d);
}

static gr_status check_complete(const gr_args *a, const command *c, unsigned n, uint64_t seen, gr_diag *d)
{
    gr_status st = GR_OK;
    for (int i = 0; i < N_OPTIONS; i++)
        if (c->required & ~seen & BIT(i))
            st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "graphrun %s needs --%s %s", c->name,
                               options[i].name, options[i].value);
    bool resumes = a->ask.resume && !n; /* the run directory holds the graph */
    const bool may_lack_one = strstr(c->operands, " [") != NULL,
               any_number = strstr(c->operands, "...") != NULL;
    const unsigned least = any_number ? 1 : c->n_operands - may_lack_one;
    if (n < least && !resumes)
        st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "graphrun %s needs %s", c->name, c->operands);
    return st;
}

gr_status gr_args_parse(gr_args *a, int argc, char **argv, gr_diag *d)
{
    *a = (gr_args){0};
    const char *first = argc > 1 ? argv[1] : "";
    if (!strcmp(first, "--help") || !strcmp(first, "-h") || !strcmp(first, "help")) {
        a->help = true;
        if (argc < 3) return GR_OK;
        const command *of = find_command(argv[2], d);
        a->command = of ? of->name : NULL;
        return of ? GR_OK : GR_E_INVALID;
    }
    if (argc < 2)
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "a command is missing; see graphrun --help");
    const command *c = find_command(first, d);
    if (!c) return GR_E_INVALID;
    a->command = c->name;
    gr_status st = GR_OK;
    unsigned n = 0;
    uint64_t seen = 0;
    bool ended = false;
    for (int i = 2; i < argc; i++) {
        const char *arg = argv[i];
        gr_status now = GR_OK;
        if (!ended && (!strcmp(arg, "--help") || !strcmp(arg, "-h")))
            a->help = true;
        else if (!ended && !strcmp(arg, "--"))
            ended = true;
        else if (!ended && arg[0] == '-' && arg[1])
            now = parse_option(a, c, argc, argv, &i, &seen, d);
        else if (n < c->n_operands)
            a->operand[n++] = arg, a->n_operands = n;
        else
            now = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "unexpected argument '%s' of graphrun %s", arg,
                                c->name);
        if (now) st = now;
    }
    a->ask.graph = a->operand[0];
    if (a->help) return GR_OK;
    if (!c->built)
        return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "graphrun %s is not built yet", c->name);
    gr_status whole = check_complete(a, c, n, seen, d);
    return st ? st : whole;
}

void gr_args_release(gr_args *a)
{
    free(a->ask.set);
    free(a->from);
    *a = (gr_args){0};
}

/* ---- texts --------------------------------------------------------------------------------------------- */

static const char *const statuses[] = {
    "0  done, also after SIGINT or SIGTERM, which finish the iteration and write a checkpoint",
    "1  failed while running, or stopped by a second signal",
    "2  usage, or the graph is invalid",
    "3  does not fit the budget",
};

static void help_command(const command *c, gr_str *out)
{
    gr_str_printf(out, "usage: graphrun %s%s%s%s\n\n%s%s\n", c->name, *c->operands ? " " : "", c->operands,
                  c->options ? " [OPTION]..." : "", c->doc, c->built ? "" : " (not built yet)");
    if (c->options) gr_str_puts(out, "\noptions:\n");
    for (int i = 0; i < N_OPTIONS; i++) {
        const option *o = &options[i];
        if (!(c->options & BIT(i))) continue;
        char *left = gr_printf("%s--%s %s", o->letter ? "-o, " : "", o->name, o->value ? o->value : "");
        gr_str_printf(out, "  %-26s %s%s\n", left, o->doc, c->required & BIT(i) ? " (required)" : "");
        if (o->choices) gr_str_printf(out, "  %-26s one of %s\n", "", o->choices);
        free(left);
    }
}

void gr_args_help(const char *name, gr_str *out)
{
    for (size_t i = 0; name && i < GR_LEN(commands); i++)
        if (!strcmp(commands[i].name, name)) {
            help_command(&commands[i], out);
            return;
        }
    gr_str_puts(out, "usage: graphrun COMMAND [ARGUMENT]...\n\ncommands:\n");
    for (size_t i = 0; i < GR_LEN(commands); i++) {
        char *left = gr_printf("%s %s", commands[i].name, commands[i].operands);
        gr_str_printf(out, "  %-30s %s%s\n", left, commands[i].doc,
                      commands[i].built ? "" : " (not built yet)");
        free(left);
    }
    gr_str_puts(out,
                "\ngraphrun COMMAND --help shows a command's options, graphrun --version what this "
                "is,\ngraphrun --completion bash|zsh|fish a completion of that shell.\n\nexit status:\n");
    for (size_t i = 0; i < GR_LEN(statuses); i++) gr_str_printf(out, "  %s\n", statuses[i]);
}

void gr_args_man(gr_str *out)
{
    gr_str_puts(out, ".TH GRAPHRUN 1\n.SH NAME\ngraphrun \\- plan and run reinforcement learning graphs\n"
                     ".SH SYNOPSIS\n.B graphrun\n.I COMMAND\n[\\fIARGUMENT\\fR]...\n.SH COMMANDS\n");
    for (size_t i = 0; i < GR_LEN(commands); i++) {
        const command *c = &commands[i];
        gr_str_printf(out, ".SS %s %s\n%s%s\n", c->name, c->operands, c->doc,
                      c->built ? "" : " (not built yet)");
        for (int k = 0; k < N_OPTIONS; k++) {
            const option *o = &options[k];
            if (!(c->options & BIT(k))) continue;
            gr_str_printf(out, ".TP\n\\fB%s\\-\\-%s\\fR %s\n%s\n", o->letter ? "\\-o\\fR, \\fB" : "", o->name,
                          o->value ? o->value : "", o->doc);
        }
    }
    gr_str_puts(out, ".SH EXIT STATUS\n");
    for (size_t i = 0; i < GR_LEN(statuses); i++)
        gr_str_printf(out, ".TP\n%.1s\n%s\n", statuses[i], statuses[i] + 3);
}

static void complete_bash(gr_str *out)
{
    gr_str_puts(out, "# bash completion of graphrun, printed by graphrun --completion\n_graphrun()\n{\n"
                     "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=\n"
                     "    if [ \"$COMP_CWORD\" = 1 ]; then\n        words='");
    for (size_t i = 0; i < GR_LEN(commands); i++) gr_str_printf(out, "%s%s", i ? " " : "", commands[i].name);
    gr_str_puts(out, " --help'\n    else\n        case $before in\n");
    for (int i = 0; i < REPORT_FORMAT; i++) /* which has some of FORMAT's */
        if (options[i].choices)
            gr_str_printf(out, "        --%s) COMPREPLY=($(compgen -W '%s' -- \"$word\")); return ;;\n",
                          options[i].name, options[i].choices);
    gr_str_puts(out, "        esac\n        case ${COMP_WORDS[1]} in\n");
    for (size_t i = 0; i < GR_LEN(commands); i++) {
        gr_str_printf(out, "        %s) words='--help", commands[i].name);
        for (int k = 0; k < N_OPTIONS; k++)
            if (commands[i].options & BIT(k)) gr_str_printf(out, " --%s", options[k].name);
        gr_str_puts(out, "' ;;\n");
    }
    gr_str_puts(out,
                "        esac\n    fi\n    case $word in\n    -*) COMPREPLY=($(compgen -W \"$words\" -- "
                "\"$word\")) ;;\n    *) COMPREPLY=($(compgen -W \"$words\" -- \"$word\") $(compgen -f -- "
                "\"$word\")) ;;\n    esac\n}\ncomplete -o filenames -F _graphrun graphrun\n");
}

/* In single quotes of a shell, for zsh without what its _arguments takes for itself. */
static void put_quoted(gr_str *out, const char *text, bool zsh)
{
    for (const char *p = text; *p; p++) {
        if (*p == '\'')
            gr_str_puts(out, "'\\''");
        else if (zsh && strchr(":[]", *p))
            gr_str_printf(out, "\\%c", *p);
        else
            gr_str_putc(out, *p);
    }
}

/* Values that are files or folders are completed as such. */
static bool is_file(const option *o)
{
    return o->value && (strstr(o->value, "FILE") || strstr(o->value, "DIR") || strstr(o->value, "RUN"));
}

static void complete_zsh(gr_str *out)
{
    gr_str_puts(out, "#compdef graphrun\n# zsh completion of graphrun, printed by graphrun --completion zsh\n"
                     "_graphrun() {\n    if (( CURRENT == 2 )); then\n        local -a commands=(\n");
    for (size_t i = 0; i < GR_LEN(commands); i++) {
        gr_str_printf(out, "            '%s:", commands[i].name);
        put_quoted(out, commands[i].doc, false);
        gr_str_puts(out, "'\n");
    }
    gr_str_puts(
        out,
        "        )\n        _describe command commands\n        return\n    fi\n    case $words[2] in\n");
    for (size_t i = 0; i < GR_LEN(commands); i++) {
        gr_str_printf(out, "    %s) _arguments -S '--help[show the options]'", commands[i].name);
        for (int k = 0; k < N_OPTIONS; k++) {
            const option *o = &options[k];
            if (!(commands[i].options & BIT(k))) continue;
            gr_str_printf(out, " \\\n        '%s--%s%s[", o->kind == LIST ? "*" : "", o->name,
                          o->value ? "=" : "");
            put_quoted(out, o->doc, true);
            gr_str_puts(out, "]");
            if (o->value) gr_str_puts(out, ":"), put_quoted(out, o->value, true);
            if (o->choices) gr_str_printf(out, ":(%s)", o->choices);
            if (o->value && !o->choices) gr_str_puts(out, is_file(o) ? ":_files" : ":");
            gr_str_puts(out, "'");
        }
        gr_str_puts(out, " \\\n        '*:file:_files' ;;\n");
    }
    gr_str_puts(out, "    esac\n}\n_graphrun \"$@\"\n");
}

static void complete_fish(gr_str *out)
{
    gr_str_puts(out, "# fish completion of graphrun, printed by graphrun --completion fish\n");
    for (size_t i = 0; i < GR_LEN(commands); i++) {
        gr_str_printf(out, "complete -c graphrun -n __fish_use_subcommand -f -a %s -d '", commands[i].name);
        put_quoted(out, commands[i].doc, false);
        gr_str_puts(out, "'\n");
    }
    for (size_t i = 0; i < GR_LEN(commands); i++)
        for (int k = 0; k < N_OPTIONS; k++) {
            const option *o = &options[k];
            if (!(commands[i].options & BIT(k))) continue;
            gr_str_printf(out, "complete -c graphrun -n '__fish_seen_subcommand_from %s' -l %s",
                          commands[i].name, o->name);
            if (o->letter) gr_str_printf(out, " -s %c", o->letter);
            if (o->choices) gr_str_printf(out, " -x -a '%s'", o->choices);
            if (!o->choices && o->value) gr_str_puts(out, is_file(o) ? " -r -F" : " -x");
            gr_str_puts(out, " -d '");
            put_quoted(out, o->doc, false);
            gr_str_puts(out, "'\n");
        }
}

bool gr_args_completion(const char *shell, gr_str *out)
{
    static const struct {
        const char *name;
        void (*make)(gr_str *out);
    } shells[] = {{"bash", complete_bash}, {"zsh", complete_zsh}, {"fish", complete_fish}};
    for (size_t i = 0; i < GR_LEN(shells); i++)
        if (!strcmp(shell, shells[i].name)) {
            shells[i].make(out);
            return true;
        }
    return false;
}
