/* graphrun init and graphrun export: folders of weights, made and copied. */
#include "tools/cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/model/checkpoint.h"
#include "ops/model/peft.h"
#include "ops/text/tokenizer.h"

/* A tokenizer with more ids than the model has rows would fail at the first prompt. */
static gr_status check_vocabulary(const gr_args *a, gr_diag *d)
{
    gr_model_shape shape;
    gr_tokenizer *t = NULL;
    gr_status st = gr_model_shape_read(&shape, a->config, d);
    if (st || !a->tokenizer) return st;
    st = gr_tokenizer_load(&t, a->tokenizer, d);
    if (!st && gr_tokenizer_size(t) > shape.vocab)
        st = gr_diag_error(d, (gr_loc){.file = a->config}, GR_E_INVALID,
                           "'vocab_size' is %u, but the tokenizer in '%s' has ids up to %zu", shape.vocab,
                           a->tokenizer, gr_tokenizer_size(t) - 1);
    gr_tokenizer_free(t);
    return st;
}

int gr_cmd_init(const gr_args *a, gr_diag *d)
{
    gr_status st = check_vocabulary(a, d);
    if (st) return gr_exit_status_input(st);
    st = gr_checkpoint_init(a->ask.out, a->config, a->tokenizer, a->ask.seed, d);
    if (!st) printf("wrote random weights of seed %llu to %s\n", (unsigned long long)a->ask.seed, a->ask.out);
    return gr_exit_status(st);
}

int gr_cmd_export(const gr_args *a, gr_diag *d)
{
    gr_st_dtype dtype = a->dtype && *a->dtype == 'b' ? GR_ST_BF16 : GR_ST_F32; /* args.c knows the names */
    uint64_t shard_bytes = 0;
    char *from = NULL;
    gr_status st = GR_OK;
    if (!gr_bytes_parse(a->shard ? a->shard : "50GB", &shard_bytes))
        st = gr_diag_error(d, (gr_loc){0}, GR_E_INVALID, "shard size '%s' is not a size like 5GB", a->shard);
    if (!st) st = gr_checkpoint_find(&from, a->operand[0], a->model, d);
    const bool adapters = !st && gr_peft_is(from);
    if (!st && a->merge && !adapters)
        st = gr_diag_error(d, (gr_loc){from, 0, 0}, GR_E_INVALID, "--merge is for a model with adapters");
    if (!st && a->mtp && adapters && !a->merge)
        st = gr_diag_error(d, (gr_loc){from, 0, 0}, GR_E_INVALID,
                           "--mtp is for whole models: say --merge, too, or leave it out, for the adapters' "
                           "base model has its layers");
    const gr_export ask = {a->ask.out, from, dtype, shard_bytes, a->accept_changes, a->mtp};
    if (!st) st = adapters ? gr_checkpoint_export_adapters(&ask, a->merge, d) : gr_checkpoint_export(&ask, d);
    if (!st) printf("wrote %s as %s to %s\n", from, dtype == GR_ST_BF16 ? "bfloat16" : "float32", a->ask.out);
    free(from);
    return gr_exit_status(st);
}
