/* graphs/loader/checkpoint.c: where the checkpoints of a graph's models are, and of what shape.
 *
 * Accepted: a folder in Hugging Face form (it has config.json), a hub cache folder (models--ORG--NAME with
 * refs/main and snapshots/), a run's step directory (its own config.json, or one folder a model), the same as
 * RUN@STEP or RUN@best, and a bare config.json (random weights).
 */
#include "graphs/loader/loader.h"
#include "ops/model/peft.h"
#include "runtime/base/files.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool has_config(gr_arena *arena, const char *dir)
{
    return gr_path_exists(gr_arena_printf(arena, "%s/config.json", dir));
}

static bool is_file(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISREG(st.st_mode);
}

/* The snapshot that refs/main of a hub cache folder names; NULL: there is none. */
static const char *hub_snapshot(gr_arena *arena, const char *dir)
{
    char *hash = NULL;
    size_t n = 0;
    const char *ref = gr_arena_printf(arena, "%s/refs/main", dir), *path = NULL;
    if (is_file(ref) && !gr_file_read(ref, 4096, &hash, &n, NULL)) {
        hash[strcspn(hash, " \r\n")] = '\0';
        path = gr_arena_printf(arena, "%s/snapshots/%s", dir, hash);
    }
    free(hash);
    return path && has_config(arena, path) ? path : NULL;
}

typedef struct model_folders {
    gr_arena *arena;
    gr_str *names;
    const char *last;
    size_t n;
} model_folders;

static gr_status add_folder(void *user, const char *dir, const char *name, gr_diag *d)
{
    model_folders *m = user;
    const char *path = gr_arena_printf(m->arena, "%s/%s", dir, name);
    (void)d;
    if (*name == '.' || !has_config(m->arena, path)) return GR_OK;
    gr_str_printf(m->names, "%s%s", m->n++ ? ", " : "", name);
    m->last = path;
    return GR_OK;
}

/* The folder of one model in a run's step directory; NULL and *several where it cannot be told. */
static const char *model_of_step(gr_arena *arena, const char *dir, const char *model, gr_str *several)
{
    const char *own = gr_arena_printf(arena, "%s/%s", dir, model);
    if (has_config(arena, own)) return own;
    model_folders m = {.arena = arena, .names = several};
    gr_status st = gr_dir_each(dir, add_folder, &m, NULL); /* what is no folder has no models */
    return !st && m.n == 1 ? m.last : NULL;
}

/* The step directory that RUN@STEP or RUN@best means; else the path itself. */
static const char *step_of_run(gr_arena *arena, const char *path)
{
    const char *at = strrchr(path, '@');
    if (!at || at == path || gr_path_exists(path)) return path;
    const char *run = gr_arena_strndup(arena, path, (size_t)(at - path)), *step = at + 1;
    if (!strcmp(step, "best")) return gr_arena_printf(arena, "%s/checkpoints/best", run);
    bool number = *step && !step[strspn(step, "0123456789")];
    return number ? gr_arena_printf(arena, "%s/checkpoints/step-%s", run, step) : path;
}

const char *gr_adapters_folder(gr_arena *arena, const char *path, const char *model)
{
    const char *own = gr_arena_printf(arena, "%s/%s", step_of_run(arena, path), model);
    return !gr_peft_is(path) && gr_peft_is(own) ? own : path;
}

/* Whether a path is of adapters alone: a folder of them, or a step of a run that has them of a model of this
 * name. */
static bool has_adapters(const gr_loader *l, const char *path)
{
    bool found = false;
    for (size_t i = 0; i < l->g->n_models && !found; i++)
        found = gr_peft_is(gr_adapters_folder(l->arena, path, l->g->models[i]->name));
    return found;
}

/* ORG/NAME as the hub has it, and nothing on this machine says otherwise. */
static bool hub_name(gr_arena *arena, const char *text)
{
    const char *slash = strchr(text, '/');
    if (!slash || slash == text || !slash[1] || strchr(slash + 1, '/') || *text == '.') return false;
    return !gr_path_exists(gr_arena_strndup(arena, text, (size_t)(slash - text))) &&
           strncmp(text, "models/", 7);
}

/* A run has whole paths: where it was moved, or what it read was, they are told anew. */
static void say_where_it_is_now(gr_loader *l, const gr_model *m)
{
    gr_str set = {0};
    for (size_t i = m->index; i < l->g->n_models; i++) {
        const char *other = l->g->models[i]->files.checkpoint;
        if (i == m->index ||
            (other && !strcmp(gr_path_from(l->arena, l->g->models[i]->files.at, other), m->files.checkpoint)))
            gr_str_printf(&set, " --set models.%s.checkpoint=DIR", l->g->models[i]->name);
    }
    gr_diag_note(l->d, m->files.at, "if it lies elsewhere now: graphrun exec --resume %s%s", l->o->run,
                 set.text);
    gr_str_release(&set);
}

/* Said once, however many models begin with it. */
static void missing(gr_loader *l, const gr_model *m, const char *written)
{
    const char *name = hub_name(l->arena, written) ? written : "ORG/NAME";
    for (size_t i = 0; l->g->models[i] != m; i++)
        if (l->g->models[i]->files.checkpoint &&
            !strcmp(l->g->models[i]->files.checkpoint, m->files.checkpoint))
            return;
    gr_diag_error(l->d, m->files.at, GR_E_INVALID, "no checkpoint at '%s'", m->files.checkpoint);
    if (has_adapters(l, m->files.checkpoint)) {
        gr_diag_note(
            l->d, m->files.at,
            "there are adapters alone: train: {lora: {from: DIR}} begins with them, and graphrun export "
            "RUN --merge makes a model of them");
        return;
    }
    if (gr_path_exists(gr_arena_printf(l->arena, "%s/checkpoints", m->files.checkpoint))) {
        gr_diag_note(l->d, m->files.at, "it is a run: name a step of it, such as '%s@100', or '%s@best'",
                     m->files.checkpoint, m->files.checkpoint);
        return;
    }
    if (l->o->run) {
        say_where_it_is_now(l, m);
        return;
    }
    gr_diag_note(l->d, m->files.at, "download one: hf download %s --local-dir %s", name, m->files.checkpoint);
    gr_diag_note(l->d, m->files.at,
                 "or make a random one: graphrun init --config CONFIG.json --tokenizer DIR --seed 0 -o %s",
                 m->files.checkpoint);
    gr_diag_note(l->d, m->files.at, "to plan, its config.json is enough: put it there, or name it here");
}

static const char *find(gr_loader *l, const gr_model *m, gr_str *several)
{
    const char *path = m->files.checkpoint, *found;
    if (is_file(path) || has_config(l->arena, path)) return path;
    if ((found = hub_snapshot(l->arena, path))) return found;
    return model_of_step(l->arena, step_of_run(l->arena, path), m->name, several);
}

/* The folder a file lies in. */
static const char *folder_of(gr_arena *arena, const char *file)
{
    const char *slash = strrchr(file, '/');
    return slash ? gr_arena_strndup(arena, file, (size_t)(slash - file)) : ".";
}

static void find_checkpoint(gr_loader *l, gr_model *m)
{
    const char *written = m->files.checkpoint;
    gr_str several = {0};
    m->files.checkpoint = gr_path_from(l->arena, m->files.at, written);
    const char *found = find(l, m, &several);
    bool need = l->o && l->o->need_shapes;
    if (found) {
        m->files.checkpoint = found;
        m->files.random = is_file(found);
        m->files.folder = m->files.random ? folder_of(l->arena, found) : found;
        m->head_known = !gr_model_shape_read(&m->shape, found, l->d);
        if (!m->head_known) gr_diag_note(l->d, m->files.at, "needed here");
    } else if (several.len) {
        gr_diag_error(l->d, m->files.at, GR_E_INVALID, "'%s' has several models and none is called '%s': %s",
                      m->files.checkpoint, m->name, several.text);
    } else if (need) {
        missing(l, m, written);
    }
    if (m->value_head) {
        gr_model_shape_to_value(&m->shape);
        m->head_known = true;
    }
    gr_str_release(&several);
}

void gr_find_checkpoints(gr_loader *l)
{
    for (size_t i = 0; i < l->g->n_models; i++)
        if (l->g->models[i]->files.checkpoint) find_checkpoint(l, l->g->models[i]);
}
