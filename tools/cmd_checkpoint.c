/* graphrun init and graphrun export: folders of weights, made and copied. */
#include "tools/cmd.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/checkpoint.h"

static const char init_usage[] =
    "usage: graphrun init --config config.json [--tokenizer DIR] [--seed S] -o DIR";
static const char export_usage[] = "usage: graphrun export RUN[@STEP] [--model M] [--dtype float32|bfloat16] "
                                   "[--shard 50GB] -o DIR";

struct args {
    const char *config, *tokenizer, *seed, *out, *model, *dtype, *shard, *run;
};

static const struct option init_options[] = {
    {"config", required_argument, NULL, 'c'}, {"tokenizer", required_argument, NULL, 't'},
    {"seed", required_argument, NULL, 's'},   {"out", required_argument, NULL, 'o'},
    {"help", no_argument, NULL, 'h'},         {0},
};

static const struct option export_options[] = {
    {"model", required_argument, NULL, 'm'}, {"dtype", required_argument, NULL, 'd'},
    {"shard", required_argument, NULL, 'b'}, {"out", required_argument, NULL, 'o'},
    {"help", no_argument, NULL, 'h'},        {0},
};

/* False, with the usage printed, unless the arguments are sound; help: that was what was asked. */
static bool parse(struct args *a, int argc, char **argv, const struct option *options, bool wants_run,
                  const char *usage, bool *help)
{
    *help = false;
    bool ok = true;
    optind = 1;
    for (int c; ok && (c = getopt_long(argc, argv, "o:h", options, NULL)) != -1;) {
        switch (c) {
        case 'c':
            a->config = optarg;
            break;
        case 't':
            a->tokenizer = optarg;
            break;
        case 's':
            a->seed = optarg;
            break;
        case 'o':
            a->out = optarg;
            break;
        case 'm':
            a->model = optarg;
            break;
        case 'd':
            a->dtype = optarg;
            break;
        case 'b':
            a->shard = optarg;
            break;
        case 'h':
            *help = true;
            break;
        default:
            ok = false;
        }
    }
    if (wants_run && optind < argc) a->run = argv[optind++];
    ok = ok && optind == argc && a->out && (wants_run ? a->run : a->config);
    if (*help || !ok) fprintf(*help ? stdout : stderr, "%s\n", usage);
    return ok && !*help;
}

static int finish(gr_status st, gr_diag *d)
{
    for (size_t i = 0; i < d->n; i++) {
        char *text = gr_message_format(&d->messages[i]);
        fprintf(stderr, "%s\n", text);
        free(text);
    }
    gr_diag_release(d);
    return st == GR_OK ? 0 : st == GR_E_INVALID ? 2 : st == GR_E_NOFIT ? 3 : 1;
}

static gr_status parse_seed(const char *text, uint64_t *seed, gr_diag *d)
{
    char *end;
    errno = 0;
    *seed = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && !*end && !errno) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "seed '%s' is not an integer of at least 0", text);
}

int gr_cmd_init(int argc, char **argv)
{
    struct args a = {.seed = "0"};
    bool help;
    if (!parse(&a, argc, argv, init_options, false, init_usage, &help)) return help ? 0 : 2;
    gr_diag d;
    gr_diag_init(&d);
    uint64_t seed;
    gr_status st = parse_seed(a.seed, &seed, &d);
    if (!st) st = gr_checkpoint_init(a.out, a.config, a.tokenizer, seed, &d);
    if (!st) printf("wrote random weights of seed %s to %s\n", a.seed, a.out);
    return finish(st, &d);
}

static gr_status parse_dtype(const char *text, gr_st_dtype *dtype, gr_diag *d)
{
    *dtype = !strcmp(text, "bfloat16") ? GR_ST_BF16 : GR_ST_F32;
    if (*dtype == GR_ST_BF16 || !strcmp(text, "float32")) return GR_OK;
    return gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "dtype '%s' must be float32 or bfloat16", text);
}

int gr_cmd_export(int argc, char **argv)
{
    struct args a = {.dtype = "float32", .shard = "50GB"};
    bool help;
    if (!parse(&a, argc, argv, export_options, true, export_usage, &help)) return help ? 0 : 2;
    gr_diag d;
    gr_diag_init(&d);
    gr_st_dtype dtype;
    uint64_t shard_bytes;
    char *from = NULL;
    gr_status st = parse_dtype(a.dtype, &dtype, &d);
    if (!st && !gr_bytes_parse(a.shard, &shard_bytes))
        st = gr_diag_error(&d, (gr_loc){0}, GR_E_INVALID, "shard size '%s' is not a size like 5GB", a.shard);
    if (!st) st = gr_checkpoint_find(&from, a.run, a.model, &d);
    if (!st) st = gr_checkpoint_export(a.out, from, dtype, shard_bytes, &d);
    if (!st) printf("wrote %s as %s to %s\n", from, a.dtype, a.out);
    free(from);
    return finish(st, &d);
}
