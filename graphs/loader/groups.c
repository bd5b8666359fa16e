/* graphs/loader/groups.c: `train: {groups: ...}`: settings of some of a model's tensors, by their names. */
#include "graphs/loader/loader.h"

#include "ops/text/pattern.h"

#include <math.h>
#include <string.h>

enum { GROUPS_MAX = 64 };

typedef struct group_cfg {
    gr_train_group group;
} group_cfg;

#define AT(f) offsetof(group_cfg, group.f)
/* clang-format off */
const gr_key gr_group_keys[] = {
    {"tensors", GR_KEY_TEXT, AT(tensors), true, NULL, 0, 0, NULL, "a regular expression (PCRE2) that is looked for in a tensor's name in the checkpoint"},
    {"lr", GR_KEY_SCALAR, AT(lr), false, NULL, 0, 1, NULL, "their learning rate; schedule and warmup apply; default: the model's"},
    {"weight_decay", GR_KEY_NUMBER, AT(weight_decay), false, NULL, 0, 1, NULL, "their weight decay, also of those that are no matrices; default: the model's, of matrices"},
    {0}};
/* clang-format on */

void gr_read_groups(gr_loader *l, const gr_value *v, gr_model *m)
{
    gr_train *t = &m->train;
    if (v->kind != GR_VALUE_LIST || v->n > GROUPS_MAX) {
        gr_diag_error(
            l->d, v->at, GR_E_INVALID,
            "'groups' must be a list of at most %d maps, such as [{tensors: embed_tokens, lr: 1e-7}]",
            GROUPS_MAX);
        return;
    }
    gr_train_group *groups = gr_arena_alloc(l->arena, v->n * sizeof(*groups));
    for (size_t i = 0; i < v->n; i++) {
        const gr_value *one = &v->items[i];
        group_cfg c = {{0}};
        if (one->broken || !gr_value_is_map(l, "groups", one)) return;
        gr_keys_read(l, one, one->at, "a group of tensors", gr_group_keys, NULL, &c, NULL);
        groups[i] = c.group;
        groups[i].has_lr = gr_value_get(one, "lr") != NULL;
        groups[i].has_decay = gr_value_get(one, "weight_decay") != NULL;
    }
    t->groups = groups;
    t->n_groups = v->n;
}

/* ---- which tensors they are of ------------------------------------------------------------------------- */

static const gr_value *written(const gr_loader *l, const gr_model *m, size_t group)
{
    const gr_value *models = gr_value_get(&l->g->source->root, "models"),
                   *model = gr_value_get(models, m->name);
    const gr_value *groups = gr_value_get(gr_value_get(model, "train"), "groups");
    return gr_value_get(&groups->items[group], "tensors");
}

static pcre2_code *compile(gr_loader *l, const gr_model *m, size_t group)
{
    const char *text = m->train.groups[group].tensors;
    int error;
    size_t at;
    PCRE2_UCHAR why[128];
    pcre2_code *code = gr_pattern_compile(text, strlen(text), PCRE2_UTF, &error, &at);
    if (code) return code;
    pcre2_get_error_message(error, why, sizeof(why));
    gr_diag_error(l->d, written(l, m, group)->at, GR_E_INVALID, "'tensors': %s at character %zu of '%s'",
                  (const char *)why, at + 1, text);
    return NULL;
}

static bool matches(const pcre2_code *code, pcre2_match_data *found, const char *name)
{
    return pcre2_match(code, (PCRE2_SPTR)name, strlen(name), 0, 0, found, NULL) >= 0;
}

static void assign(gr_loader *l, gr_model *m, pcre2_code *const *code, pcre2_match_data *found, bool *used)
{
    gr_train *t = &m->train;
    const uint32_t buckets = gr_model_buckets(&m->shape);
    const uint8_t **all = gr_arena_alloc(l->arena, buckets * sizeof(*all));
    for (uint32_t b = 0; b < buckets; b++) {
        gr_tensor tensors[GR_BUCKET_TENSORS_MAX];
        const size_t n = gr_bucket_tensors(&m->shape, b, tensors);
        uint8_t *of = gr_arena_alloc(l->arena, n);
        for (size_t i = 0; i < n; i++)
            for (size_t g = 0; g < t->n_groups && !of[i]; g++)
                if (matches(code[g], found, tensors[i].name)) of[i] = (uint8_t)(g + 1), used[g] = true;
        all[b] = of;
    }
    t->group_of = all;
}

static void find_groups(gr_loader *l, gr_model *m)
{
    pcre2_code *code[GROUPS_MAX] = {NULL};
    bool used[GROUPS_MAX] = {false}, ok = true;
    const gr_train *t = &m->train;
    for (size_t g = 0; g < t->n_groups; g++) ok = (code[g] = compile(l, m, g)) != NULL && ok;
    if (ok) {
        pcre2_match_data *found = pcre2_match_data_create(1, gr_pattern_memory());
        assign(l, m, code, found, used);
        pcre2_match_data_free(found);
    }
    for (size_t g = 0; g < t->n_groups; g++) {
        if (ok && !used[g])
            gr_diag_error(l->d, written(l, m, g)->at, GR_E_INVALID,
                          "'tensors': no tensor of model '%s' is called like '%s', or an earlier group has "
                          "them; names are such as model.layers.0.self_attn.q_proj.weight",
                          m->name, t->groups[g].tensors);
        pcre2_code_free(code[g]);
    }
}

void gr_find_groups(gr_loader *l)
{
    for (size_t i = 0; i < l->g->n_models; i++) {
        gr_model *m = l->g->models[i];
        if (m->train.n_groups && m->shape.layers) find_groups(l, m);
    }
}
