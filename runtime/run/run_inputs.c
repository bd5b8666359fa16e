/* runtime/run/run_inputs.c: what a run reads, from its graph: compared between ranks, and with what the run
 * had read when it made the checkpoint that it goes on from. */
#include "runtime/run/run_parts.h"

#include "ops/model/checkpoint.h"
#include "ops/model/peft.h"
#include "runtime/io/manifest.h"
#include "runtime/base/files.h"
#include "runtime/base/guard.h"

#include <stdlib.h>
#include <string.h>

#define PROGRAM "program"

/* ---- what there is ----------------------------------------------------------------------------------------
 */

/* A file of a folder, where it is there. */
static gr_status add_there(gr_inputs *in, gr_input_kind kind, const char *owner, const char *folder,
                           const char *name, gr_diag *d)
{
    char *path = gr_printf("%s/%s", folder, name);
    gr_status st = gr_path_exists(path) ? gr_inputs_add_file(in, kind, owner, name, path, d) : GR_OK;
    free(path);
    return st;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static gr_status add_tasks(gr_inputs *in, gr_diag *d)
{
    char *module = gr_comm_mpi_module();
    gr_status st = gr_inputs_add_file(in, GR_INPUT_PROGRAM, PROGRAM, "graphrun", gr_own_code(), d);
    if (!st && module) st = gr_inputs_add_file(in, GR_INPUT_PROGRAM, PROGRAM, base_name(module), module, d);
    free(module);
    return st;
}

static void add_graph(gr_inputs *in, const gr_plan *p)
{
    const uint64_t bytes = strlen(p->graph_text);
    gr_inputs_add(in, (gr_input){.kind = GR_INPUT_GRAPH,
                                 .owner = "graph",
                                 .name = "graph.yaml",
                                 .bytes = bytes,
                                 .hash = gr_hash_bytes(p->graph_text, bytes),
                                 .hashed = true});
}

/* Every checkpoint of a trained model has a copy of its tokenizer, whoever uses it here. */
static gr_status add_tokenizer(gr_inputs *in, const char *owner, const gr_model *m, gr_diag *d)
{
    gr_status st = GR_OK;
    for (const char *const *f = gr_tokenizer_files; *f && !st; f++)
        st = add_there(in, strncmp(*f, "chat_template", 13) ? GR_INPUT_TOKENIZER : GR_INPUT_TEMPLATE, owner,
                       m->files.folder, *f, d);
    return st;
}

/* Tensors come in the order of their names; files as they are met. */
static gr_status add_weights(gr_inputs *in, const char *owner, const gr_model *m, gr_diag *d)
{
    gr_safetensors *s = NULL;
    gr_index known = {0};
    gr_status st = gr_safetensors_open(&s, m->files.checkpoint, d);
    for (size_t i = 0; !st && i < gr_safetensors_count(s); i++) {
        const char *path = gr_safetensors_at(s, i)->file;
        if (gr_index_add(&known, path, 0))
            st = gr_inputs_add_file(in, GR_INPUT_WEIGHTS, owner, base_name(path), path, d);
    }
    if (!st)
        st = add_there(in, GR_INPUT_WEIGHTS, owner, m->files.checkpoint, "model.safetensors.index.json", d);
    gr_index_release(&known);
    gr_safetensors_free(s);
    return st;
}

/* The frozen model beneath has its own. */
static gr_status add_adapters(gr_inputs *in, const char *owner, const gr_model *m, gr_diag *d)
{
    if (!m->lora.from) return GR_OK;
    gr_status st = add_there(in, GR_INPUT_CONFIG, owner, m->lora.from, GR_PEFT_CONFIG, d);
    return st ? st : add_there(in, GR_INPUT_WEIGHTS, owner, m->lora.from, GR_PEFT_STEM ".safetensors", d);
}

/* Whether a path of this rank restores something of a model from the model's own checkpoint. */
static bool reads_weights(const gr_running *r, const gr_model *m, bool resumes)
{
    const gr_path *p = &r->p->plan->paths[resumes ? GR_PATH_RESUME : GR_PATH_INIT];
    bool reads = false;
    for (uint32_t i = 0; i < p->n && !reads; i++) {
        const uint32_t object =
            p->steps[i].kind == GR_STEP_RESTORE ? gr_tasks_find(r->p->tasks, p->steps[i].what) : GR_NONE;
        const char *of = object != GR_NONE ? r->p->tasks->objects[object].model : NULL;
        reads = of && gr_graph_model(r->g, of) == m;
    }
    return reads && (gr_model_has_lora(m) || !m->files.random) && !(resumes && m->trained);
}

static gr_status add_model(const gr_running *r, const gr_model *m, bool resumes, gr_diag *d)
{
    char *owner = gr_inputs_model(m->name);
    const bool has_tokenizer = m->trained || r->session.tokenizer[m->index];
    gr_status st =
        m->files.random
            ? gr_inputs_add_file(r->read, GR_INPUT_CONFIG, owner, "config.json", m->files.checkpoint, d)
            : add_there(r->read, GR_INPUT_CONFIG, owner, m->files.checkpoint, "config.json", d);
    if (!st) st = add_there(r->read, GR_INPUT_CONFIG, owner, m->files.folder, "generation_config.json", d);
    if (!st && has_tokenizer) st = add_tokenizer(r->read, owner, m, d);
    if (!st && reads_weights(r, m, resumes))
        st = gr_model_has_lora(m) ? add_adapters(r->read, owner, m, d) : add_weights(r->read, owner, m, d);
    free(owner);
    return st;
}

static gr_status add_node(const gr_running *r, const gr_node *n, gr_diag *d)
{
    const void *state = r->session.state[n->index];
    if (!n->op->inputs || !state) return GR_OK;
    char *owner = gr_inputs_node(n->name);
    gr_status st = n->op->inputs(state, owner, r->read, d);
    free(owner);
    return st;
}

gr_status gr_run_list_inputs(gr_running *r, const char *from, gr_diag *d)
{
    r->read = gr_inputs_new();
    gr_status st = add_tasks(r->read, d);
    add_graph(r->read, r->all->plan);
    for (size_t i = 0; i < r->g->n_models && !st; i++) st = add_model(r, r->g->models[i], from, d);
    for (size_t i = 0; i < r->g->n_nodes && !st; i++) st = add_node(r, r->g->nodes[i], d);
    return st ? st : gr_inputs_begin(r->read, r->comms.all, r->o->threads, d);
}

/* ---- what it was ------------------------------------------------------------------------------------------
 */

/* Rank 0 holds it, for all. A checkpoint without a manifest, of an older graphrun, pins nothing; nor does one
 * whose damage was accepted. */
static gr_status hold(gr_running *r, const char *from, gr_diag *d)
{
    gr_manifest *m = NULL;
    gr_status st = gr_manifest_read(&m, from, r->o->accept_changes ? NULL : d);
    if (r->o->accept_changes) st = GR_OK;
    const json_t *pinned = m ? gr_manifest_inputs(m) : NULL;
    char *path = gr_printf("%s/" GR_MANIFEST, from);
    if (!st && pinned && !json_is_null(pinned))
        st = gr_inputs_hold(r->read, pinned, path, r->o->accept_changes, d);
    free(path);
    gr_manifest_free(m);
    return st;
}

gr_status gr_run_hold_inputs(gr_running *r, const char *from, gr_diag *d)
{
    const bool first = !gr_comm_rank(r->comms.all);
    gr_status st = gr_inputs_end(r->read, r->comms.all, d);
    if (st) return st;
    uint64_t held = first && from ? hold(r, from, d) : GR_OK;
    st = gr_comm_agree(r->comms.all, &held, d);
    if (!st && first) r->inputs = gr_inputs_json(r->read);
    if (!st) r->session.inputs = r->read;
    return st ? st : (gr_status)held;
}

gr_status gr_run_check_copied(const gr_running *r, gr_diag *d)
{
    gr_status st = GR_OK;
    for (size_t i = 0; i < r->g->n_models && !st; i++) {
        char *owner = gr_inputs_model(r->g->models[i]->name);
        if (r->g->models[i]->trained) st = gr_inputs_unchanged(r->read, owner, d);
        free(owner);
    }
    return st;
}
